"""Slides: which rows a strip walks, what it holds, and how staged rows are aligned."""

from hypothesis import given
from hypothesis import strategies as st

from roller import ops
from roller.tile.sliding_windows import Slide, halo_layout, row_box, slide_of
from tests.offenders import every


def slide(taps, stride=1, dilation=1):
    found = slide_of(ops.depthwise_conv2d(1, 2, 99, 99, taps, 3, stride=stride, dilation=dilation).anchor)
    assert found is not None
    return found


@given(st.integers(2, 7), st.integers(1, 4), st.integers(1, 3), st.integers(1, 12))
def test_rows_hold_every_tap_of_every_output_once_and_in_order(taps, stride, dilation, outputs):
    walk = slide(taps, stride, dilation).rows(outputs)
    seen = [(i, k) for offset, pairs in walk for i, k in pairs if i * stride + k * dilation == offset]
    assert sorted(seen) == [(i, k) for i in range(outputs) for k in range(taps)] and len(set(seen)) == len(seen)
    assert [r for r, _ in walk] == sorted({r for r, _ in walk})


@given(st.integers(2, 7), st.integers(1, 4), st.integers(1, 3), st.integers(1, 12))
def test_live_outputs_are_those_begun_and_not_done(taps, stride, dilation, outputs):
    s = slide(taps, stride, dilation)
    begun, most, done = set(), 0, set()
    for _, pairs in s.rows(outputs):
        begun |= {i for i, _ in pairs}
        most = max(most, len(begun - done))
        done |= {i for i, k in pairs if k == taps - 1}
    assert most <= s.live(outputs) <= outputs


def test_the_slide_runs_along_the_slowest_window():
    s = slide_of(ops.conv2d(1, 1, 9, 9, 1, 3, 3).anchor)
    assert s is None or s.axis == "ho"
    s = slide_of(ops.pool2d("max", 1, 4, 9, 9, 1, 3).anchor)
    assert isinstance(s, Slide) and (s.axis, s.taps) == ("wo", 3)


@every(
    "expr",
    [
        ops.matmul(4, 4, 4),
        ops.conv2d(1, 4, 9, 9, 8, 3, 3),
        ops.reduce("sum", (8, 8), (1,)),
        ops.elementwise("relu", (8,)),
        ops.depthwise_conv2d(1, 4, 9, 9, 3, 3, multiplier=2),
    ],
    ids=lambda e: e.name,
)
def test_other_reductions_slide_nothing(expr):
    assert slide_of(expr.anchor) is None


def test_a_stride_without_a_window_leaves_gaps():
    s = slide_of(ops.depthwise_conv2d(1, 3, 13, 13, 3, 1, stride=2).anchor)
    assert s is not None
    found = row_box(s, {"n": 1, "c": 1, "ho": 3, "wo": 4, "kh": 3, "kw": 1})
    assert found.extents[-1] == 4 and found.steps[-1] == 2


def test_rows_start_where_vectors_of_the_tensor_do():
    """Padding of 1: three elements precede the tile, which then starts four before its image."""
    s = slide_of(ops.depthwise_conv2d(1, 3, 16, 16, 3, 3, padding=1).anchor)
    assert s is not None
    tile = {"n": 1, "c": 1, "ho": 4, "wo": 4, "kh": 3, "kw": 3}
    rows = halo_layout(s, (1, 3, 16, 16), 4, tile, {**tile, "wo": 8})
    assert (rows.copy, rows.shift, rows.lead, rows.width) == (4, 3, 3, 4)
    assert rows.extent % 4 == 0 and rows.lead + 6 <= rows.chunks * rows.width
    odd = halo_layout(s, (1, 3, 15, 15), 4, tile, {**tile, "wo": 8})
    assert (odd.copy, odd.shift, odd.width, odd.chunks) == (1, 0, 4, 2)
