"""Micro-kernels that pass only the taps inside the image: right at every edge, and priced as they are emitted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import roller
from roller import ops
from roller.expr.canonical import fuse_axes
from roller.runtime.guard_pages import AVAILABLE, find_out_of_bounds_access
from roller.templates.cpu.emit.axis_tiling_plans import program_decisions
from roller.templates.cpu.tiled.candidates import candidate_reduction_chunks
from roller.templates.cpu.window_clipping import (
    segments_of_equal_clipping,
    shortest_segment,
    slides_over_padding,
    tile_starts,
)
from roller.tile.geometry import Geometry
from tests.codegen.cpu_programs import assert_right, kernel, program

SPEC = roller.load_spec("cpu-avx512")

#: Image, window, stride, padding (top, left, bottom, right), dilation, groups.
_CASES = {
    "rate 12": ((17, 17), (3, 3), 1, (12, 12, 12, 12), (12, 12), 1),
    "a side each": ((13, 19), (3, 5), 1, (11, 0, 3, 31), (7, 9), 1),
    "uneven": ((20, 23), (3, 3), 1, (9, 9, 5, 5), (7, 7), 1),
    "padding of one side": ((11, 11), (3, 3), 1, (0, 14, 14, 0), (7, 7), 1),
    "step 2": ((19, 19), (3, 3), 2, (9, 8, 8, 8), (9, 8), 1),
    "step 3 by gaps of 2": ((23, 23), (7, 7), 3, (6, 6, 6, 6), (4, 4), 1),
    "groups": ((17, 13), (3, 3), 1, (10, 10, 10, 10), (10, 10), 4),
    "one row": ((1, 29), (3, 3), 1, (4, 20, 4, 20), (4, 20), 1),
    "one column": ((31, 1), (5, 1), 1, (40, 0, 40, 0), (20, 1), 1),
}


def convolution(case, channels=8, filters=24, **more):
    (h, w), (kh, kw), stride, padding, dilation, groups = _CASES[case]
    top, left, bottom, right = padding
    return ops.conv2d(
        1, channels, h, w, filters, kh, kw, stride, (top, bottom, left, right), dilation, groups,
        epilogue=("bias", "relu"), **more,
    )  # fmt: skip


def skipped(prog):
    return [prog.axis_names[a] for a in np.flatnonzero(program_decisions(prog).live[0] < 1.0)]


def tiled(e, filters, columns, vector, task, staged=("X", "W"), chunk=None):
    form = fuse_axes(e)
    names = [a.name for a in form.anchor.spatial_axes]
    lanes = [n for n in names if n.startswith("f")][-1] if vector == "f" else names[-1]
    register = {lanes: 16, next(n for n in names if n != lanes): filters}
    register |= {names[-1]: columns if vector == "f" else 16}
    blocks = {n: register.get(n, 1) * task for n in names}
    return program(form, "tiled", register, blocks, lanes, chunk=chunk, staged=staged)


@pytest.mark.parametrize("vector", ["f", "columns"])
@pytest.mark.parametrize("case", _CASES)
def test_kernels_are_right(case, vector):
    e = convolution(case)
    assert_right(e, tiled(e, 1, 5, vector, 3))


def test_kernels_of_single_outputs_are_right():
    e = convolution("a side each")
    assert_right(e, tiled(e, 1, 1, "f", 1))


def test_taps_are_left_out_where_the_image_is_not_much_wider_than_the_gaps():
    e = convolution("rate 12")
    assert skipped(tiled(e, 1, 1, "f", 4)) == ["kh", "kw"]
    assert skipped(tiled(e, 1, 17, "f", 4)) == ["kh"]  # a tile of whole rows has an element of each tap in a row
    near = ops.conv2d(1, 8, 17, 17, 24, 3, 3, 1, 1)
    assert skipped(tiled(near, 1, 1, "f", 4)) == []


@pytest.mark.parametrize("case", _CASES)
def test_the_share_is_that_of_the_taps_inside(case):
    form = fuse_axes(convolution(case))
    g, live = Geometry.of(form), program_decisions(tiled(convolution(case), 1, 1, "f", 1)).live[0]
    for s in slides_over_padding(g):
        taps, outputs = int(g.extents[s.tap]), int(g.extents[s.output])
        inside = [[s.low <= s.step * o + s.gap * k < s.high for k in range(taps)] for o in range(outputs)]
        if live[s.tap] < 1.0:  # of tiles of one output
            assert live[s.tap] == pytest.approx(np.mean(inside))


@pytest.mark.parametrize("layout", ["NCHW", "NCHW16c"])
def test_what_construction_chooses_is_right(layout):
    e = convolution("rate 12", 32, 32, layout=layout)
    programs = [c.program for c in roller.construct(e, SPEC, top_k=12)]
    passing = [p for p in programs if p.structure == "tiled" and skipped(p)]
    assert passing, "expected programs that leave taps out among the best"
    for p in passing[:2]:
        assert_right(e, p)


def test_taps_that_are_left_out_are_not_priced():
    options = roller.ConstructOptions(winograd=False)
    seconds = []
    for d in (1, 12, 24, 30):
        e = ops.conv2d(1, 64, 33, 33, 64, 3, 3, 1, d, d)
        seconds.append(roller.construct(e, SPEC, top_k=1, options=options)[0].estimate.terms["compute_s"])
    assert seconds[0] > 1.3 * seconds[1] > 1.6 * seconds[2] > 1.7 * seconds[3]


@pytest.mark.skipif(not AVAILABLE, reason="needs Linux to protect pages")
@pytest.mark.parametrize("case", ["rate 12", "step 2", "one row"])
def test_nothing_is_read_beyond_the_tensors(case):
    e = convolution(case)
    assert find_out_of_bounds_access(kernel(e, tiled(e, 1, 5, "f", 3))) is None


#: Cases whose image is left by taps at segments of two outputs or more.
_CUT = ["rate 12", "uneven", "padding of one side", "step 2", "one row", "one column"]


@pytest.mark.parametrize("vector", ["f", "columns"])
@pytest.mark.parametrize("case", _CUT)
def test_images_are_read_in_place_where_tiles_end_at_the_guards(case, vector):
    e = convolution(case)
    prog = tiled(e, 1, 5, vector, 3, ("W",))
    assert program_decisions(prog).segments
    assert_right(e, prog)
    if AVAILABLE:
        assert find_out_of_bounds_access(kernel(e, prog)) is None


@pytest.mark.parametrize("case", _CUT)
def test_every_tap_is_inside_for_all_of_a_tile_or_for_none(case):
    form = fuse_axes(convolution(case))
    g, found = Geometry.of(form), segments_of_equal_clipping(Geometry.of(form), ("W",))
    for s in slides_over_padding(g):
        ends, outputs = found[s.output], int(g.extents[s.output])
        for tile in range(1, shortest_segment(ends) + 1):
            begin = tile_starts(ends, tile)
            assert set(np.add.outer(begin, np.arange(tile)).ravel()) == set(range(outputs))
            taps = s.gap * np.arange(g.extents[s.tap])
            place = s.step * np.add.outer(begin, np.arange(tile))[:, None, :] + taps[None, :, None]
            inside = (place >= s.low) & (place < s.high)
            assert (inside.all(axis=2) == inside.any(axis=2)).all()


def test_single_outputs_are_no_segment():
    form = fuse_axes(ops.conv2d(1, 8, 17, 17, 24, 3, 3, 1, 1))
    assert (
        segments_of_equal_clipping(Geometry.of(form), ("W",)) == {}
        and segments_of_equal_clipping(Geometry.of(form), ("X", "W")) == {}
    )


@pytest.mark.parametrize("staged", [("X", "W"), ("W",)])
def test_channels_in_pieces_around_a_window(staged):
    e = convolution("rate 12", 10)
    prog = tiled(e, 1, 5, "f", 3, staged, {"c": 4})
    assert program_decisions(prog).chunk_count[0] == 3
    assert_right(e, prog)


def test_channels_of_an_image_beyond_l2_may_be_passed_in_pieces():
    deep = fuse_axes(ops.conv2d(1, 960, 33, 33, 256, 3, 3, 1, 12, 12))
    assert [c[list(deep.anchor.extents).index("c")] for c in candidate_reduction_chunks(Geometry.of(deep), SPEC)][
        :2
    ] == [8, 16]
    small = fuse_axes(ops.conv2d(1, 96, 33, 33, 256, 3, 3, 1, 12, 12))
    assert candidate_reduction_chunks(Geometry.of(small), SPEC) == []


def test_a_window_in_pieces_is_passed_whole():
    e = convolution("rate 12")
    pieces = tiled(e, 1, 1, "f", 4)
    tiles = dict(pieces.tiles)
    at = pieces.axis_names.index("kh")
    l1 = tuple(1 if a == at else n for a, n in enumerate(tiles["l1"]))
    pieces = replace(pieces, tiles=(("register", tiles["register"]), ("l1", l1), ("l2", tiles["l2"])))
    assert skipped(pieces) == ["kw"]
    assert_right(e, pieces)
