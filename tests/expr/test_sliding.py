"""Which axes slide, against points that touch the same element."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from roller import ops
from roller.expr import Index, Term
from roller.expr.sliding_windows import sliding_window_axes
from roller.tile.geometry import Geometry
from roller.tile.structures import structure_of
from tests.offenders import every

COEF = st.integers(-5, 6).filter(bool)
EXTENT = st.integers(1, 5)
SPATIAL, REDUCED = ("s0", "s1"), ("r0", "r1")


def touching(index, extents):
    """Axes in which two points of one element differ, where they differ in a spatial and a reduction axis."""
    names = list(extents)
    points = np.array(list(itertools.product(*map(range, extents.values()))))
    steps = np.array([sum(t.coef for t in index.terms if t.axis == n) for n in names])
    moved = points[:, steps != 0]
    used = [n for n, s in zip(names, steps, strict=True) if s]
    found = set()
    for x, y in itertools.combinations(np.unique(moved, axis=0), 2):
        if (x - y) @ steps[steps != 0] == 0:
            apart = {n for n, d in zip(used, x - y, strict=True) if d}
            if apart & set(SPATIAL) and apart & set(REDUCED):
                found |= apart
    return found


@given(coefs=st.tuples(COEF, COEF), sizes=st.tuples(EXTENT, EXTENT), const=st.integers(-3, 3))
def test_one_axis_of_each_kind_slides_exactly_where_points_meet(coefs, sizes, const):
    index = Index((Term("s0", coefs[0]), Term("r0", coefs[1])), const)
    spatial, reduced = {"s0": sizes[0]}, {"r0": sizes[1]}
    assert set(sliding_window_axes(index, spatial, reduced)) == touching(index, spatial | reduced)


@given(
    terms=st.lists(st.tuples(st.sampled_from(SPATIAL + REDUCED), COEF | st.sampled_from([16, 32])), max_size=4),
    sizes=st.tuples(*[st.integers(1, 4)] * 4),
)
def test_no_axis_by_which_points_meet_is_missed(terms, sizes):
    extents = dict(zip(SPATIAL + REDUCED, sizes, strict=True))
    index = Index(tuple(Term(a, c) for a, c in terms))
    found = sliding_window_axes(index, {a: extents[a] for a in SPATIAL}, {a: extents[a] for a in REDUCED})
    assert touching(index, extents) <= set(found)


def test_a_window_over_channels_in_blocks_slides_with_both_digits():
    index = Index((Term("out"), Term("block", 8), Term("inner")))
    assert sliding_window_axes(index, {"out": 3}, {"block": 4, "inner": 8}) == ("out", "block", "inner")
    assert sliding_window_axes(Index((Term("out", 32), *index.terms[1:])), {"out": 3}, {"block": 4, "inner": 8}) == ()


@every(
    ("expr", "windows"),
    [
        (ops.conv2d(1, 8, 9, 9, 8, 3, 3), {"kh", "kw"}),
        (ops.conv2d(1, 8, 9, 9, 8, 3, 1), {"kh"}),
        (ops.conv2d(1, 8, 8, 8, 8, 2, 2, stride=2), set()),
        (ops.pool2d("max", 1, 8, 9, 9, 3, 3, stride=2), {"kh", "kw"}),
        (ops.matmul(8, 8, 8), set()),
    ],
)
def test_windows_of_operators(expr, windows):
    g = Geometry.of(expr)
    assert {g.names[a] for a in np.flatnonzero(g.window_axes)} == windows


def test_windows_side_by_side_can_still_be_walked():
    assert structure_of(Geometry.of(ops.pool2d("max", 1, 8, 8, 8, 2, 2, stride=2))).name == "tiled"


def test_cpu_kernels_walk_windows_side_by_side_outermost_too():
    g = Geometry.of(ops.conv2d(1, 8, 8, 8, 8, 2, 2, stride=2))
    assert [g.names[a] for a in g.reduction_order] == ["kh", "kw", "c"]
