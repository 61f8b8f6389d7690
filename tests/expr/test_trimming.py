"""Reductions without the points that always add nothing: spans against brute force, values against the whole sum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roller import ops
from roller.expr import REDUCTION, SPATIAL, Axis, Bound, Index, Load, Stage, Tensor, TensorExpr, Term, axis_index
from roller.expr.canonical import fuse_axes
from roller.expr.evaluate import evaluate
from roller.expr.reduction_trimming import contributing_reduction_span, trim_reductions


def reductions(expr):
    return {a.name: a.extent for a in expr.anchor.reduction_axes}


def windowed(outputs, taps, step, gap, const, size, combiner="sum", outside=0.0):
    """Return a sum over positions ``step * i + gap * k + const`` of a row, where they are inside."""
    at = Index((Term("i", step), Term("k", gap)), const)
    load = Load("X", (at,), (Bound(at, 0, size),), outside)
    axes = (Axis("i", outputs, SPATIAL), Axis("k", taps, REDUCTION))
    stage = Stage(Tensor("Y", (outputs,)), axes, (axis_index("i"),), load, combiner)
    return TensorExpr("window", (Tensor("X", (size,)),), (stage,), ("Y",))


@settings(max_examples=200, deadline=None)
@given(
    outputs=st.integers(1, 9), taps=st.integers(1, 7), step=st.integers(-3, 3), gap=st.integers(-5, 5),
    const=st.integers(-20, 20), size=st.integers(1, 12),
)  # fmt: skip
def test_the_span_is_that_of_the_points_inside(outputs, taps, step, gap, const, size):
    e = windowed(outputs, taps, step, gap, const, size)
    inside = [k for k in range(taps) if any(0 <= step * i + gap * k + const < size for i in range(outputs))]
    first, end = contributing_reduction_span(e.anchor, e.anchor.axes[1])
    if inside:
        assert first <= inside[0] and end > inside[-1]
        if abs(step) <= 1:  # larger steps may jump over the image
            assert (first, end) == (inside[0], inside[-1] + 1)
    x = np.random.default_rng(0).standard_normal(size)
    np.testing.assert_array_equal(evaluate(trim_reductions(e), [x])[0], evaluate(e, [x])[0])


def test_gaps_wider_than_the_image_leave_a_product_of_matrices():
    fused = fuse_axes(ops.conv2d(1, 8, 17, 17, 4, 3, 3, padding=24, dilation=24))
    assert reductions(fused) == {"c": 8} and [a.extent for a in fused.anchor.spatial_axes] == [4, 289]
    assert not any(ld.guard for ld in fused.anchor.loads)


@pytest.mark.parametrize("rate", [(6, 24), (24, 6)])
def test_one_side_at_a_time(rate):
    found = reductions(trim_reductions(ops.conv2d(1, 8, 17, 17, 4, 3, 3, padding=rate, dilation=rate)))
    assert found == {"c": 8, "kh": 3 if rate[0] == 6 else 1, "kw": 3 if rate[1] == 6 else 1}


def test_padding_on_one_side_trims_that_side():
    above = ops.conv2d(1, 4, 5, 5, 4, 5, 1, padding=(15, 0, 0, 0), dilation=(4, 1))
    kh = next(a for a in above.anchor.axes if a.name == "kh")
    assert contributing_reduction_span(above.anchor, kh) == (3, 5)  # rows y + 4 k - 15 of five, y below four


def test_what_adds_something_outside_stays():
    assert trim_reductions(windowed(3, 3, 1, 9, -9, 3, "sum", 1.0)) == windowed(3, 3, 1, 9, -9, 3, "sum", 1.0)
    assert reductions(trim_reductions(windowed(3, 3, 1, 9, -9, 3, "max", float("-inf")))) == {"k": 1}
    assert reductions(trim_reductions(windowed(3, 3, 1, 9, -9, 3, "max", 0.0))) == {"k": 3}


def test_a_window_that_never_meets_the_image_stays_whole():
    e = windowed(3, 3, 1, 1, 50, 5)
    assert trim_reductions(e) is e and not evaluate(e, [np.ones(5)])[0].any()
