"""Pictures sampled at places that are no place: NaN and infinities give what PyTorch's kernels for processors do."""

import itertools

import numpy as np
import pytest

from roller_runtime.session.sample_scatter_pool_functions import grid_sample, roi_align
from tests.offenders import every

ODD = (np.nan, np.inf, -np.inf)
PICTURE = np.arange(1, 6, dtype=np.float32).reshape(1, 1, 1, 5)
VOLUME = np.arange(1, 9, dtype=np.float32).reshape(1, 1, 2, 2, 2)
MODES, PADDINGS = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")
N = np.nan
#: What PyTorch 2.9 computes on a processor of the places (NaN, 0), (inf, 0), (-inf, 0).
WANTED = {
    ("linear", "zeros"): (N, N, N), ("linear", "border"): (1, 5, 1), ("linear", "reflection"): (1, 1, 1),
    ("nearest", "zeros"): (0, 0, 0), ("nearest", "border"): (1, 5, 1), ("nearest", "reflection"): (1, 1, 1),
    ("cubic", "zeros"): (N, N, N), ("cubic", "border"): (N, N, N), ("cubic", "reflection"): (N, N, N),
}  # fmt: skip


def sampled(data, grid, mode, padding, align):
    return grid_sample(np, (data, grid), {"mode": mode, "padding": padding, "align_corners": align})[0]


@every("align", [False, True])
@every("case", WANTED)
def test_a_picture(case, align):
    grid = np.array([[[[x, 0] for x in ODD]]], np.float32)
    np.testing.assert_array_equal(sampled(PICTURE, grid, *case, align).ravel(), np.float32(WANTED[case]))


@every("align", [False, True])
def test_a_volume(align):
    grid = np.array([[[[[x, -1, -1] for x in ODD]]]], np.float32)
    wanted = {"zeros": [0, 0, 0], "border": [2, 2, 1], "reflection": [2, 2, 2]}
    for padding, want in wanted.items():
        for mode in ("nearest", "linear") if align else ("nearest",):
            np.testing.assert_array_equal(sampled(VOLUME, grid, mode, padding, align).ravel(), np.float32(want))


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="PyTorch is an optional extra: pip install 'roller[torch]'")


@every("mode", MODES)
@every("padding", PADDINGS)
def test_as_pytorch(mode, padding, torch):
    places = np.array(list(itertools.product((*ODD, 0.3, -1.4, 2.2, 5.0), repeat=2)), np.float32).reshape(1, 7, 7, 2)
    data = np.arange(1, 49, dtype=np.float32).reshape(1, 2, 4, 6)
    theirs = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    for align in (False, True):
        want = torch.nn.functional.grid_sample(
            torch.from_numpy(data), torch.from_numpy(places), theirs, padding, align
        ).numpy()
        np.testing.assert_allclose(sampled(data, places, mode, padding, align), want, 1e-4, 1e-4)


def test_a_region_far_beyond_its_picture_is_refused_not_sampled_for_ever():
    picture, number = np.ones((1, 1, 4, 4), np.float32), np.zeros(1, np.int64)
    attributes = {"mode": "avg", "size": (2, 2), "samples": 0, "scale": 1.0, "shift": 0.5}
    with pytest.raises(ValueError, match="regions of at most 1048576 samples along a side, got 1e"):
        roi_align(np, [picture, np.array([[0, 0, 1e30, 1e30]], np.float32), number], attributes)
