"""Changes the extents of an expression's axes, and all axes, dimensions and guards that depend on them.

The extent of a convolution's output axis determines the size of the image: ``2 * y + k - 1`` reaches two elements
further per output element. An axis is rejected if its extent does not determine every extent that depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from roller.errors import ExprError
from roller.expr.scalar import Bound, Const, Index, IndexValue, Load, Scalar, transform_scalar, walk_scalar_tree
from roller.expr.tensor_expr import REDUCTION, Axis, Stage, Tensor, TensorExpr

#: A stage's axis by name, or a tensor's dimension by position.
_Node = tuple[str, str | int]
#: Constants that, in the terms of a sum, do not depend on any extent.
_NEUTRAL = (0.0, 1.0)


@dataclass(frozen=True)
class Stretch:
    """The axes and dimensions that grow with one axis of an expression.

    Parameters
    ----------
    rates
        Number of elements by which each axis (stage, name) and dimension (tensor, position) grows per element of
        ``axis``; entries are absent for axes and dimensions that do not grow.
    """

    expr: TensorExpr
    axis: str
    rates: Mapping[_Node, int]

    @cached_property
    def extent(self) -> int:
        """Extent of the axis in the expression (elements)."""
        return next(s.extents[self.axis] for s in self.expr.stages if self.axis in s.extents)

    @property
    def inputs(self) -> dict[tuple[int, int], int]:
        """Rates of the dimensions of the inputs, by the positions of the input and of the dimension."""
        names = {t.name: n for n, t in enumerate(self.expr.inputs)}
        return {(names[t], d): r for (t, d), r in self.rates.items() if t in names and isinstance(d, int)}


def find_stretch(expr: TensorExpr, axis: str) -> Stretch:
    """Return the axes and dimensions that grow with an axis.

    Examples
    --------
    >>> from roller import ops
    >>> find_stretch(ops.conv2d(1, 4, 9, 9, 4, 3, 3, stride=2), "ho").inputs
    {(0, 2): 2}
    """
    known = sorted({a.name for s in expr.stages for a in s.axes})
    if axis not in known:
        raise ExprError(f"{expr.name}: expected an axis of {known}, got '{axis}'.")
    if len({s.extents[axis] for s in expr.stages if axis in s.extents}) > 1:
        raise _undetermined_extent_error(expr, axis, "stages have different extents of it")
    rates: dict[_Node, int] = {(s.name, axis): 1 for s in expr.stages if axis in s.extents}
    while _propagate_growth_once(expr, axis, rates):
        pass
    for stage, tensor, position, index in _indices_of_expression(expr):
        if _index_growth_rate(expr, axis, stage, index, rates) != rates.get((tensor, position), 0):
            raise _undetermined_extent_error(
                expr, axis, f"dimension {position} of '{tensor}' may move with other indices"
            )
    for stage in expr.stages:
        _check_guards_and_constants(expr, axis, stage, rates)
    return Stretch(expr, axis, rates)


def apply_stretches(
    expr: TensorExpr, moves: list[Stretch] | tuple[Stretch, ...], extents: Mapping[str, int]
) -> TensorExpr:
    """Return the expression with the axes of ``moves`` set to ``extents``."""
    more: dict[_Node, int] = {}
    for move in moves:
        for node, rate in move.rates.items():
            more[node] = more.get(node, 0) + rate * (extents[move.axis] - move.extent)

    def tensor(t: Tensor) -> Tensor:
        shape = tuple(e + more.get((t.name, n), 0) for n, e in enumerate(t.shape))
        if min(shape, default=1) < 1:
            raise ExprError(f"{expr.name}: '{t.name}': expected elements at {dict(extents)}, got the shape {shape}.")
        return replace(t, shape=shape)

    def load(node: Scalar) -> Scalar:
        return _move_guard_ends(node, expr, more) if isinstance(node, Load) else node

    def stage(s: Stage) -> Stage:
        axes = tuple(Axis(a.name, a.extent + more.get((s.name, a.name), 0), a.kind) for a in s.axes)
        return replace(s, output=tensor(s.output), axes=axes, body=transform_scalar(s.body, load))

    return replace(expr, inputs=tuple(map(tensor, expr.inputs)), stages=tuple(map(stage, expr.stages)))


def _move_guard_ends(load: Load, expr: TensorExpr, more: Mapping[_Node, int]) -> Load:
    """Return ``load`` with each guard that ended with a dimension changed to end with the dimension's new extent."""

    def bound(b: Bound) -> Bound:
        d = _dimension_ended_by_guard(b, load, expr)
        return b if d is None else replace(b, high=b.high + more.get((load.tensor, d), 0))

    return replace(load, guard=tuple(map(bound, load.guard)))


def _dimension_ended_by_guard(bound: Bound, load: Load, expr: TensorExpr) -> int | None:
    """Return the dimension whose extent is the guard's upper bound, or ``None`` if there is none."""
    shape = expr.tensors[load.tensor].shape
    same = (d for d, i in enumerate(load.index) if i == bound.index and shape[d] == bound.high)
    return next(same, None)


def _indices_of_expression(expr: TensorExpr) -> Iterator[tuple[Stage, str, int, Index]]:
    """Yield each index that is read or written: stage, tensor, dimension and index."""
    for s in expr.stages:
        for load in s.loads:
            yield from ((s, load.tensor, n, i) for n, i in enumerate(load.index))
        yield from ((s, s.output.name, n, i) for n, i in enumerate(s.store))


def _index_growth_rate(expr: TensorExpr, axis: str, stage: Stage, index: Index, rates: Mapping[_Node, int]) -> int:
    """Return the number of elements by which an index reaches further per element of ``axis``."""
    moving = [t for t in index.terms if (stage.name, t.axis) in rates]
    if any(not t.is_affine or t.coef < 0 for t in moving):
        raise _undetermined_extent_error(expr, axis, f"stage '{stage.name}' divides it, or counts it backwards")
    return sum(t.coef * rates[stage.name, t.axis] for t in moving)


def _propagate_growth_once(expr: TensorExpr, axis: str, rates: dict[_Node, int]) -> bool:
    """Add one more axis or dimension that grows; return whether there was one."""
    for stage, tensor, position, index in _indices_of_expression(expr):
        rate, known = _index_growth_rate(expr, axis, stage, index, rates), rates.get((tensor, position), 0)
        if rate and not known:
            rates[tensor, position] = rate
            return True
        lone = len(index.terms) == 1 and index.is_axis(index.terms[0].axis)
        if known and not rate and lone and stage.extents[index.axes[0]] == expr.tensors[tensor].shape[position]:
            rates[stage.name, index.axes[0]] = known
            return True
    return False


def _check_guards_and_constants(expr: TensorExpr, axis: str, stage: Stage, rates: Mapping[_Node, int]) -> None:
    """Check that guards, and constants in reductions, mean the same at all extents."""
    for load in stage.loads:
        for b in load.guard:
            moves = any((stage.name, t.axis) in rates for t in b.index.terms)
            if moves and (b.low > 0 or _dimension_ended_by_guard(b, load, expr) is None):
                raise _undetermined_extent_error(expr, axis, f"'{load.tensor}' is guarded by more than its ends")
    summed = [a for a in stage.axes if a.kind == REDUCTION and (stage.name, a.name) in rates]
    if any(a.extent == 1 for a in summed):  # the factor of a mean is 1 then, and was left out
        raise _undetermined_extent_error(
            expr, axis, "it is summed over, and of one element a sum and a mean are the same"
        )
    if summed:
        for s in expr.stages:
            if _has_constant(s):
                raise _undetermined_extent_error(
                    expr, axis, f"it is summed over, and a constant of stage '{s.name}' may depend on it"
                )
    nodes = list(walk_scalar_tree(stage.body))
    details = any(isinstance(n, IndexValue) and any((stage.name, a) in rates for a in n.index.axes) for n in nodes)
    if details and (any(isinstance(n, IndexValue) and n.index.const for n in nodes) or _has_constant(stage)):
        raise _undetermined_extent_error(
            expr, axis, f"stage '{stage.name}' computes with positions, and its constants may depend on it"
        )


def _has_constant(stage: Stage) -> bool:
    return any(
        isinstance(n, Const) and abs(n.value) not in (*_NEUTRAL, float("inf")) for n in walk_scalar_tree(stage.body)
    )


def _undetermined_extent_error(expr: TensorExpr, axis: str, why: str) -> ExprError:
    return ExprError(
        f"{expr.name}: expected an axis whose extent says those of all tensors, '{axis}' does not: {why}. "
        "Name another axis, or compile for each extent."
    )
