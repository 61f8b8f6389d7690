"""Maxima that need not propagate NaN, because a sum over the same elements does.

A softmax adds ``exp(x - max(x))`` over the elements of its maximum and divides by the sum: if an element is NaN, the
sum and all results of the row are NaN, whatever the maximum is. A maximum that may lose NaN is one instruction instead
of three.
"""

from __future__ import annotations

from collections.abc import Mapping

from roller.expr import Call, Load, Scalar, Stage, TensorExpr
from roller.templates.cpu.rows.emit_values_kept_by_reductions import is_exp_below_maximum

#: Functions that return NaN if an operand is NaN; the extrema do so in kernels that propagate NaN.
_PROPAGATING = frozenset(
    ("add", "sub", "mul", "div", "neg", "abs", "exp", "log", "sqrt", "tanh", "sigmoid", "max", "min")
)


def may_lose_nan(stage: Stage, expr: TensorExpr) -> bool:
    """Return whether ``stage`` is a maximum whose NaN all outputs also receive from a sum over its elements.

    Examples
    --------
    >>> from roller import ops
    >>> softmax = ops.softmax((8, 100))
    >>> [may_lose_nan(s, softmax) for s in softmax.stages], may_lose_nan(ops.reduce("max", (8, 100)).stages[0],
    ...     ops.reduce("max", (8, 100)))
    ([True, False, False], False)
    """
    if stage.combiner != "max":
        return False
    kept = {s.name: s for s in expr.stages if s.combiner is None}
    return any(
        _adds_exponentials_of_elements(s, stage, kept) and _all_outputs_are_nan_with(s, expr) for s in expr.stages
    )


def _adds_exponentials_of_elements(s: Stage, maximum: Stage, kept: Mapping[str, Stage]) -> bool:
    """Return whether ``s`` adds ``exp(x - maximum)`` over all elements ``x`` of ``maximum``."""
    if s.combiner != "sum" or _extents(s) != _extents(maximum) or s.store != maximum.store:
        return False
    body: Scalar = s.body
    if isinstance(body, Load) and not body.guard and body.tensor in kept and body.index == kept[body.tensor].store:
        if _extents(kept[body.tensor]) != _extents(maximum):
            return False
        body = kept[body.tensor].body
    return is_exp_below_maximum(body, [maximum])


def _extents(s: Stage) -> set[tuple[str, int]]:
    return {(a.name, a.extent) for a in s.axes}


def _all_outputs_are_nan_with(total: Stage, expr: TensorExpr) -> bool:
    """Return whether every output element of a row is NaN if ``total`` is NaN there."""
    stores = {total.name: total.store}

    def is_nan(n: Scalar) -> bool:
        if isinstance(n, Load):
            return not n.guard and stores.get(n.tensor) == n.index
        return isinstance(n, Call) and n.fn in _PROPAGATING and any(map(is_nan, n.args))

    for s in expr.stages:
        if s.combiner is None and is_nan(s.body):
            stores[s.name] = s.store
    return set(expr.outputs) <= set(stores)
