"""Weights of a linear or cubic kernel as a band: the same matrix, few taps where an access map says where they lie."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from roller.models.onnx.interpolation import AxisSampling, interpolation_matrix, narrowest_band
from tests.models.onnx.lowering_oracle import agrees, expressions, node
from tests.offenders import every

RNG = np.random.default_rng(6)
MODES = ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "half_pixel_symmetric"]


@given(
    source=st.integers(1, 40),
    target=st.integers(1, 90),
    mode=st.sampled_from(MODES),
    kind=st.sampled_from(["linear", "cubic"]),
    antialias=st.booleans(),
)
def test_a_band_is_its_matrix(source, target, mode, kind, antialias):
    table = interpolation_matrix(AxisSampling(source, target, target / source, mode), kind, antialias=antialias)
    found = narrowest_band(table)
    if found is None:
        return
    assert 2 * found.table.shape[1] <= source
    wide = np.zeros_like(table)
    for y, row in enumerate(found.table):
        for k, amount in enumerate(row):
            at = found.step * (y // found.period) + found.offset + k
            assert amount == 0 or 0 <= at < source
            if amount:
                wide[y, at] += amount
    np.testing.assert_array_equal(wide, table)


@every(
    ("source", "target", "mode", "kind", "taps"),
    [
        (33, 513, "align_corners", "linear", 2),
        (33, 513, "align_corners", "cubic", 4),
        (16, 48, "half_pixel", "linear", 3),
        (20, 30, "half_pixel", "linear", 4),
        (32, 16, "half_pixel", "linear", 2),
    ],
)
def test_taps_of_ratios(source, target, mode, kind, taps):
    found = narrowest_band(interpolation_matrix(AxisSampling(source, target, target / source, mode), kind))
    assert found is not None
    assert found.table.shape == (target, taps)


def test_a_matrix_without_a_narrow_band_stays_one():
    assert narrowest_band(interpolation_matrix(AxisSampling(640, 1000, 1000 / 640, "half_pixel"), "linear")) is not None
    assert narrowest_band(interpolation_matrix(AxisSampling(3, 8, 8 / 3, "half_pixel"), "linear")) is None
    assert narrowest_band(np.zeros((4, 9))) is None


def test_linear_interpolation_sums_two_terms_per_axis():
    x, sizes = RNG.standard_normal((1, 2, 9, 9)).astype(np.float32), np.array([1, 2, 65, 65], np.int64)
    n = node("Resize", 4, mode="linear", coordinate_transformation_mode="align_corners")
    found = expressions(n, [x, None, None, sizes], (3,))
    assert [[a.extent for s in expr.stages for a in s.reduction_axes] for expr, _ in found] == [[2], [2]]
    assert [arrays[1].shape for _, arrays in found] == [(65, 2), (65, 2)]


@every("mode", MODES)
@every("kind", ["linear", "cubic"])
@every("sizes", [(33, 60), (18, 17), (5, 10)])
def test_bands_resize_as_matrices_do(mode, kind, sizes):
    x = RNG.standard_normal((1, 2, 9, 20)).astype(np.float32)
    n = node("Resize", 4, mode=kind, coordinate_transformation_mode=mode)
    agrees(n, [x, None, None, np.array([1, 2, *sizes], np.int64)], (3,))


def test_a_band_beside_an_extrapolated_border():
    x = RNG.standard_normal((1, 1, 16, 16)).astype(np.float32)
    roi = np.array([0, 0, -0.2, 0.1, 1, 1, 0.9, 1.3], np.float32)
    n = node("Resize", 4, mode="linear", coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=-2.5)
    agrees(n, [x, roi, None, np.array([1, 1, 20, 40], np.int64)], (1, 3))
