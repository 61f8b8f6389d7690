"""What the CPU model says of caches: loops that find data again, lines nobody fetched ahead, sets that collide."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import roller
from roller import ops
from roller.construction.explicit_tiles import program_from_tiles
from roller.templates import price_with_templates
from roller.templates.cpu.common.data_kept_in_caches import bandwidth_of_active_cores, share_still_cached
from roller.tile.program import RProgram


@pytest.fixture
def spec():
    return roller.load_spec("cpu-avx512")


def _program(expr, spec, axis, staged, register, block) -> RProgram:
    """One matmul program with the vector axis and packing a test is about."""
    tiles = {"register": dict(zip("ijk", register, strict=True)), "l2": dict(zip("ijk", block, strict=True))}
    panel = {"i": register[0], "j": register[1], "k": block[2]}
    found = program_from_tiles(expr, spec, {**tiles, "l1": panel})
    return replace(found, vector_axis=axis, staged=staged)


def _terms(program, spec):
    return price_with_templates.estimate_program(program, spec).terms


def test_the_share_kept_falls_smoothly_with_the_working_set():
    shares = share_still_cached(1.0, 1.0 / np.array([0.5, 1.0, 1.1, 2.0, 8.0]))
    assert shares[0] == shares[1] == 1.0
    assert (np.diff(shares[1:]) < 0).all() and shares[-1] < 1e-3
    assert shares[3] == pytest.approx(np.exp((shares[3] - 1) * 2.0), abs=1e-6)


def test_one_core_draws_no_more_than_it_can_and_all_no_more_than_there_is(spec):
    layer = replace(spec.layer("l3"), bandwidth_bytes_per_s=1.5e11, bandwidth_per_teu_bytes_per_s=1.0e11)
    assert bandwidth_of_active_cores(layer, np.array([1, 2]), spec).tolist() == [1.0e11, 1.5e11]
    unknown = replace(layer, bandwidth_per_teu_bytes_per_s=None)
    assert bandwidth_of_active_cores(unknown, np.array([1, 2]), spec).tolist() == [7.5e10, 1.5e11]


def test_a_panel_larger_than_l2_comes_from_l3_for_every_row_of_tiles(spec):
    small, large = (_program(ops.matmul(240, n, 8192), spec, "j", ("B",), (6, n, 1), (240, n, 8192)) for n in (16, 64))
    panels = [n * 8192 * 4 for n in (16, 64)]
    room = spec.layer("l2").usable_bytes
    assert panels[0] < room < panels[1]
    # Forty rows of tiles: the small panel is brought in once, the large one forty times.
    assert _terms(large, spec)["l3_s"] > 5 * _terms(small, spec)["l3_s"]


def test_an_unpacked_operand_far_apart_is_waited_for_line_by_line(spec):
    near, far = ops.matmul(64, 256, 4096), ops.matmul(64, 4096, 4096)
    times = []
    for expr in (near, far):
        program = _program(expr, spec, "i", ("A",), (16, 4, 1), (64, 64, 4096))
        lines = expr.anchor.extents["j"]
        times.append(_terms(program, spec)["l3_s"] / lines)
    assert times[1] > 1.3 * times[0]  # rows 16 KiB apart against 1 KiB: no prefetcher follows the former


def test_tiles_of_a_strided_window_read_only_what_they_use(spec):
    """A register tile of a stride-2 convolution loads each element once per tap, not the columns between."""
    expr = ops.conv2d(1, 16, 64, 64, 16, 3, 3, stride=2, padding=1)
    best = roller.construct(expr, spec, top_k=1)[0]
    flops = 2.0 * sum(s.points for s in expr.stages)
    peak = 2 * spec.compute.ops_per_cycle_per_unit["fma"] * spec.clock_hz * spec.units
    assert best.estimate.terms["compute_s"] < 2.5 * flops / peak


def test_what_lies_between_the_taps_of_a_window_is_not_moved(spec):
    """Nine taps, far apart, bring in nine pieces at most, not the image that lies between them."""
    moved = []
    for gap in (1, 12):
        expr = ops.conv2d(1, 64, 9 + 2 * gap, 9 + 2 * gap, 64, 3, 3, dilation=gap)
        tile = {"f": 16, "ho": 1, "wo": 3, "c": 16, "kh": 3, "kw": 3}
        found = program_from_tiles(
            expr, spec, {"register": tile, "l2": {**tile, "f": 64, "ho": 9, "wo": 9}, "l1": tile}
        )
        moved.append(_terms(replace(found, vector_axis="f", staged=("W",)), spec)["l2_s"])
    assert moved[0] <= moved[1] < 9 * moved[0]


def test_named_tiles_of_a_cpu_are_priced_whatever_their_extents(spec):
    expr = ops.matmul(1000, 1000, 1000)
    odd = {"register": {"i": 5, "j": 37}, "l1": {"k": 100}, "l2": {"i": 33, "j": 100, "k": 100}}
    whole = {"register": {"i": 5, "j": 37}, "l1": {"k": 100}, "l2": {"i": 35, "j": 111, "k": 100}}
    assert roller.predict(expr, spec, odd).seconds == roller.predict(expr, spec, whole).seconds
    hard = {"register": {"i": 14, "j": 32}}  # 28 accumulators: beyond the usable ones, within the architecture's
    assert np.isfinite(roller.predict(expr, spec, hard).seconds)
    with pytest.raises(roller.RollerError, match="vector registers"):
        roller.predict(expr, spec, {"register": {"i": 33, "j": 33}})


@pytest.mark.parametrize("n", [3, 9, 15, 16])
def test_a_short_axis_is_one_task(n):
    """Nine elements are two overlapping vectors of eight, and no reason to wake a worker."""
    best = roller.construct(ops.elementwise("relu", (n,)), "cpu-avx512", top_k=1)[0]
    assert best.estimate.terms["tasks"] == 1
    if n == 9:
        assert _plans(best.program) == [(8, 2, 2)]


def _plans(program):
    from roller.templates.cpu.emit.axis_tiling_plans import spatial_plans

    return [(p.tile, p.tiles, p.per_task) for p in spatial_plans(program)]


def test_rates_of_a_data_type_are_its_own(spec):
    """A register tile bound by its multiply-adds takes as long as those of its type take."""
    tiles = {"register": {"i": 6, "j": 32}, "l1": {"k": 512}, "l2": {"i": 48, "j": 64, "k": 512}}
    slow = spec.with_overrides({"compute.ops_per_cycle_per_unit.fma.float64": 4}, "given")
    times = {}
    for dtype in ("float32", "float64"):
        expr = ops.matmul(512, 512, 512, dtype=dtype)
        times[dtype] = [roller.predict(expr, s, tiles).terms["compute_s"] for s in (spec, slow)]
    assert times["float32"][0] == times["float32"][1]
    assert times["float64"][1] > 3 * times["float64"][0]
