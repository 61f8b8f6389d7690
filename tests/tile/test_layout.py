"""Bank conflicts by enumeration, storage padding, and the layout of staged tiles."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roller import ops
from roller.expr.canonical import fuse_axes
from roller.tile import RProgram
from roller.tile.memory_strides import row_major_strides
from roller.tile.staged_tile_layout import (
    LaneReads,
    lane_reads,
    least_conflict_storage_padding,
    thread_read_ratio,
    tile_layout,
)
from tests.offenders import every


def published_padding(tile_row_bytes: int, reader_row_bytes: int, banks: int, bank_width_bytes: int) -> int:
    """Return the paper's storage padding in bytes: ``(B*L - N % (B*L) + L*ceil(n/L)) % (B*L)``.

    Examples
    --------
    A tile of rows of 4 words on 4 banks, read by a [3, 1] tile, is padded by one word:

    >>> published_padding(16, 4, 4, 4)
    4
    """
    row, width = banks * bank_width_bytes, bank_width_bytes
    return (row - tile_row_bytes % row + width * -(-reader_row_bytes // width)) % row


def _block_128x64(interleaved):
    """The published block: 16 x 16 threads of 8 x 4 outputs, reduction step 32."""
    return RProgram(
        ops.matmul(4096, 4096, 4096), "gpu", "tiled", (("register", (8, 4, 1)), ("shared", (128, 64, 32))),
        staged=("A", "B"), vector_axis="j", vector_elements=4, interleaved=interleaved,
    )  # fmt: skip


def test_a_3x4_tile_on_4_banks_read_by_3x1_pads_1():
    assert published_padding(tile_row_bytes=16, reader_row_bytes=4, banks=4, bank_width_bytes=4) == 4
    column = LaneReads(columns=(0, 0, 0), rows=(0, 1, 2), row_elements=4, width=1, itemsize_bytes=4)
    assert [column.worst_conflict_degree(pad, 4, 4) for pad in range(5)] == [3, 1, 2, 1, 3]


def test_contiguous_rows_stay_conflicted_for_every_vector_friendly_pad():
    reads = lane_reads(_block_128x64(interleaved=False), 32)["A"]
    assert [reads.worst_conflict_degree(pad, 32, 4) for pad in range(0, 129, 4)] == [2] * 33
    assert least_conflict_storage_padding(reads, 32, 4) == (0, 2)


def test_interleaved_rows_do_not():
    reads = lane_reads(_block_128x64(interleaved=True), 32)["A"]
    assert reads.worst_conflict_degree(0, 32, 4) == 2
    assert least_conflict_storage_padding(reads, 32, 4) == (4, 1)
    assert [reads.worst_conflict_degree(pad, 32, 4) for pad in range(4, 32, 4)] == [1] * 7


@pytest.mark.parametrize("interleaved", [False, True])
def test_lanes_read_where_the_threads_of_the_block_stand(interleaved):
    """Thread ``t`` of 16 x 16 owns rows ``8*ty`` or ``ty`` on, and four columns from ``4*tx``."""
    reads = lane_reads(_block_128x64(interleaved), 32)
    a, b = reads["A"], reads["B"]
    assert a.rows == tuple((t // 16) * (1 if interleaved else 8) for t in range(32))
    assert a.columns == (0,) * 32 and a.row_elements == 32 and a.width == 1
    assert b.columns == tuple(4 * (t % 16) for t in range(32))
    assert b.rows == (0,) * 32 and b.row_elements == 64 and b.width == 4


@given(
    lanes=st.lists(st.tuples(st.integers(0, 70), st.integers(0, 9)), min_size=32, max_size=32),
    row=st.integers(1, 80), pad=st.integers(0, 8), width=st.sampled_from([1, 2, 4]), size=st.sampled_from([2, 4, 8]),
    banks=st.sampled_from([4, 32, 64]),
)  # fmt: skip
def test_conflict_degree_by_brute_force(lanes, row, pad, width, size, banks):
    """Every byte of every lane, in the groups the hardware serves at once; equal words are broadcast."""
    reads = LaneReads(tuple(c for c, _ in lanes), tuple(r for _, r in lanes), row, width, size)
    worst = 1
    group = max(1, min(32, banks) // width)
    for first in range(0, 32, group):
        words_of_bank = defaultdict(set)
        for column, r in lanes[first : first + group]:
            start = (column + (row + pad) * r) * size
            for element in range(width):
                word = (start + element * size) // 4
                words_of_bank[word % banks].add(word)
        worst = max(worst, *(len(words) for words in words_of_bank.values()))
    assert reads.worst_conflict_degree(pad, banks, 4) == worst


@given(
    lanes=st.lists(st.tuples(st.integers(0, 31), st.integers(0, 40)), min_size=32, max_size=32),
    row=st.integers(1, 64), size=st.sampled_from([2, 4, 8]),
)  # fmt: skip
def test_padding_is_the_smallest_with_the_fewest_conflicts_and_keeps_vectors_whole(lanes, row, size):
    reads = LaneReads(tuple(c for c, _ in lanes), tuple(r for _, r in lanes), row, 1, size)
    pad, degree = least_conflict_storage_padding(reads, 32, 4)
    vector = 16 // size
    step = vector if row % vector == 0 else 1
    degrees = {p: reads.worst_conflict_degree(p, 32, 4) for p in range(0, 8 * step + 1, step)}
    assert degree == min(degrees.values())
    assert pad == min(p for p, d in degrees.items() if d == degree)


def test_an_affine_tile_keeps_the_layout_of_its_tensor():
    expr = ops.conv2d(2, 4, 16, 16, 8, 3, 3, padding=1)
    load = expr.anchor.loads[0]
    tile = {"n": 1, "f": 4, "ho": 4, "wo": 8, "c": 2, "kh": 3, "kw": 3}
    layout = tile_layout(expr.anchor, load, expr.tensors["X"], tile)
    assert layout.extents == (1, 2, 6, 10) and layout.axes == ()
    assert layout.pitches(padding=2) == (144, 72, 12, 1)
    assert row_major_strides(layout.extents) == (120, 60, 10, 1)


def test_a_strided_tile_without_windows_is_staged_by_its_axes():
    expr = fuse_axes(ops.conv2d(2, 4, 16, 16, 8, 1, 1, stride=2))
    tile = {a.name: 2 for a in expr.axes} | {"wo": 8}
    layout = tile_layout(expr.anchor, expr.anchor.loads[0], expr.tensors["X"], tile)
    assert set(layout.axes) == {"n", "ho", "wo", "c"}
    assert layout.axes[0] == "c" and layout.axes[-1] == "wo" and layout.extents[-1] == 8


@every("interleaved", [True, False])
@every(("window", "stride", "columns", "vector"), [(3, 1, 8, 4), (5, 2, 6, 2), (7, 1, 4, 1), (1, 1, 8, 4)])
def test_elements_a_thread_reads_by_enumeration(interleaved, window, stride, columns, vector):
    """Windows of neighbouring outputs overlap; those of chunks that lie apart do not."""
    expr = ops.pool2d("max", 1, 1, 32, 200, window, window, stride=stride)
    threads, block = 3, {"wo": 3 * columns, "kh": window, "kw": window}
    names = tuple(a.name for a in expr.axes)
    tiles = [{"wo": columns, "kw": window}, block]
    rows = tuple(
        (layer, tuple(t.get(n, 1) for n in names)) for layer, t in zip(("register", "shared"), tiles, strict=True)
    )
    program = RProgram(expr, "gpu", "tiled", rows, (), ("X",), "wo", vector, interleaved)
    outputs = [
        chunk * vector * (threads if interleaved else 1) + x
        for chunk in range(columns // vector)
        for x in range(vector)
    ]
    pieces = {} if not interleaved else {c: outputs[c * vector : (c + 1) * vector] for c in range(columns // vector)}
    read = [{o * stride + k for o in piece for k in range(window)} for piece in (pieces.values() or [outputs])]
    whole = len({o * stride + k for o in range(columns) for k in range(window)})
    assert thread_read_ratio(program) == {"X": pytest.approx(sum(map(len, read)) / whole)}
