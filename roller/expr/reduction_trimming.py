"""Canonical form: reductions without the points that add nothing to any output.

A window with gaps wider than the image has taps that always lie in the padding: 3x3 taps 24 apart on a 17x17 image
amount to one tap, and the convolution is a matrix product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from roller.expr.combiners import COMBINERS
from roller.expr.scalar import Bound, Call, Cast, Index, Load, Scalar, Term, map_indices, transform_scalar
from roller.expr.tensor_expr import Axis, Stage, TensorExpr


def trim_reductions(expr: TensorExpr) -> TensorExpr:
    """Return ``expr`` with reductions cut to the points that add to some output, and without guards that always hold.

    Examples
    --------
    >>> from roller import ops
    >>> wide = ops.conv2d(1, 8, 17, 17, 4, 3, 3, padding=24, dilation=24)
    >>> [a.extent for a in wide.anchor.reduction_axes]
    [8, 3, 3]
    >>> [a.extent for a in trim_reductions(wide).anchor.reduction_axes]
    [8, 1, 1]
    """
    # The points left out are zero times a finite weight: an infinity or NaN among the weights of such a tap no longer
    # reaches the result.
    s = expr.anchor
    if s.combiner is None or (len(expr.stages) > 1 and expr.epilogue is None):
        return expr
    kept = {a.name: span for a in s.reduction_axes if (span := contributing_reduction_span(s, a)) != (0, a.extent)}
    if not kept:
        return expr

    def index(i: Index) -> Index:
        return replace(i, const=i.const + sum(t.coef * kept[t.axis][0] for t in i.terms if t.axis in kept))

    axes = tuple(replace(a, extent=kept[a.name][1] - kept[a.name][0]) if a.name in kept else a for a in s.axes)
    extents = {a.name: a.extent for a in axes}
    body = transform_scalar(
        map_indices(s.body, index), lambda n: _drop_true_guards(n, extents) if isinstance(n, Load) else n
    )
    stage = replace(s, axes=axes, body=body)
    return replace(expr, stages=tuple(stage if x is s else x for x in expr.stages))


def contributing_reduction_span(stage: Stage, axis: Axis) -> tuple[int, int]:
    """Return the first point and the end of the reduction points that add to some output; all points if none do."""
    if any(
        not t.is_affine
        for ld in stage.loads
        for i in _indices_and_guard_indices(ld)
        for t in i.terms
        if t.axis == axis.name
    ):
        return 0, axis.extent
    first, end = 0, axis.extent
    for load in stage.loads:
        if load.guard and adds_nothing_outside(stage, load):
            for b in load.guard:
                low, high = _points_within_bound(b, axis, stage.extents)
                first, end = max(first, low), min(end, high)
    return (first, end) if first < end else (0, axis.extent)


def adds_nothing_outside(stage: Stage, load: Load) -> bool:
    """Return whether a point adds nothing to a stage's reduction if a guard of ``load`` fails."""
    neutral = COMBINERS[stage.combiner or "sum"].neutral

    def zero(n: Scalar) -> bool:
        if isinstance(n, Cast):
            return zero(n.arg)
        if isinstance(n, Call) and n.fn == "mul":
            return any(zero(a) for a in n.args)
        return n == load and load.outside == 0.0

    if stage.combiner == "sum":
        return zero(stage.body)
    return stage.body == load and load.outside == neutral


def _indices_and_guard_indices(load: Load) -> tuple[Index, ...]:
    return (*load.index, *(b.index for b in load.guard))


def _points_within_bound(b: Bound, axis: Axis, extents: Mapping[str, int]) -> tuple[int, int]:
    """Return the points of ``axis`` at which a bound may hold, as ``(first, end)``."""
    step = sum(t.coef for t in b.index.terms if t.axis == axis.name)
    if step == 0:
        return 0, axis.extent
    least, most = _index_range(replace(b.index, terms=tuple(t for t in b.index.terms if t.axis != axis.name)), extents)
    ends = b.low - most, b.high - 1 - least  # of step * point
    first, last = (-(-ends[0] // step), ends[1] // step) if step > 0 else (-(ends[1] // -step), -ends[0] // -step)
    return max(0, first), min(axis.extent, last + 1)


def _index_range(index: Index, extents: Mapping[str, int]) -> tuple[int, int]:
    """Return a lower and an upper bound on the values of an index."""
    ends = [_range_of_term(t, extents[t.axis]) for t in index.terms]
    return index.const + sum(low for low, _ in ends), index.const + sum(high for _, high in ends)


def _range_of_term(t: Term, extent: int) -> tuple[int, int]:
    largest = (extent - 1) // t.div
    largest = min(largest, t.mod - 1) if t.mod else largest
    return min(0, t.coef * largest), max(0, t.coef * largest)


def _drop_true_guards(load: Load, extents: Mapping[str, int]) -> Load:
    """Return a load without the guards that always hold."""

    def may_fail(b: Bound) -> bool:
        least, most = _index_range(b.index, extents)
        return least < b.low or most >= b.high

    return replace(load, guard=tuple(b for b in load.guard if may_fail(b)))
