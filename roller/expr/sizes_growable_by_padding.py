"""Sizes of an expression that may grow by zero padding, and the expression with one size changed.

Axes and dimensions that share an index have the same size. The size may grow if each of its indices is a bare axis:
zero borders leave the old results unchanged. A reduction keeps its sum if every new term has a zero factor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from roller.errors import ExprError
from roller.expr.scalar import Call, Cast, Index, IndexValue, Load, Scalar, walk_scalar_tree
from roller.expr.tensor_expr import Axis, Stage, Tensor, TensorExpr

#: A node of the union-find structure: an axis of a stage, or a dimension of a tensor by its position.
_Node = tuple[str, str | int]


@dataclass(frozen=True)
class GrowableSize:
    """A size of an expression that may grow.

    Parameters
    ----------
    extent
        Current size (elements).
    axes
        Stage and axis of each loop over the size.
    dims
        Tensor and position of each dimension of this size.
    reduced
        Whether a stage sums over the size.
    """

    extent: int
    axes: tuple[tuple[str, str], ...]
    dims: tuple[tuple[str, int], ...]
    reduced: bool

    @property
    def name(self) -> str:
        """Name of the size's axis in the first stage that loops over the size."""
        return self.axes[0][1]


def growing_sizes(expr: TensorExpr) -> tuple[GrowableSize, ...]:
    """Return the sizes of an expression that may grow by zero padding, in the order of their axes."""
    ties, stuck = _UnionFind(), set[_Node]()
    given = {t.name for t in expr.inputs}
    for stage in expr.stages:
        _tie_axes_to_dims(stage, expr, ties, stuck)
        stuck |= {(stage.name, a.name) for a in stage.reduction_axes if not _new_terms_are_zero(stage, a.name, given)}
    fixed = {ties.root(n) for n in stuck}
    groups: dict[_Node, list[_Node]] = defaultdict(list)
    for node in _axes_and_dimensions(expr):
        groups[ties.root(node)].append(node)
    found = [_size_of_nodes(nodes, expr) for root, nodes in groups.items() if root not in fixed]
    return tuple(s for s in found if s is not None)


def enlarge_size(expr: TensorExpr, size: GrowableSize, extent: int) -> TensorExpr:
    """Return the expression with one of its :func:`growing_sizes` enlarged to ``extent``."""
    # With zeros in the new elements of the inputs, the old elements of the results do not change, provided that the
    # factors of these zeros are finite.
    if extent < size.extent:
        raise ExprError(
            f"{expr.name}: {size.name}: expected an extent of at least {size.extent}, got {extent}. Sizes only grow."
        )
    return expression_with_size(expr, size, extent)


def expression_with_size(expr: TensorExpr, size: GrowableSize, extent: int) -> TensorExpr:
    """Return the expression with one of its :func:`growing_sizes` set to ``extent``."""
    axes, dims = set(size.axes), set(size.dims)

    def tensor(t: Tensor) -> Tensor:
        return replace(t, shape=tuple(extent if (t.name, n) in dims else e for n, e in enumerate(t.shape)))

    def axis(stage: Stage, a: Axis) -> Axis:
        return replace(a, extent=extent) if (stage.name, a.name) in axes else a

    stages = tuple(replace(s, output=tensor(s.output), axes=tuple(axis(s, a) for a in s.axes)) for s in expr.stages)
    return replace(expr, inputs=tuple(tensor(t) for t in expr.inputs), stages=stages)


def is_leading_dimension(expr: TensorExpr, size: GrowableSize) -> bool:
    """Return whether a size is the first dimension of its tensors, including an input, and one axis of each stage."""
    # In that case, the position of an element does not depend on the extent, and no loop nest iterates over it twice.
    stages, inputs = [stage for stage, _ in size.axes], {t.name for t in expr.inputs}
    first = all(position == 0 for _, position in size.dims)
    return first and not size.reduced and len(set(stages)) == len(stages) and any(t in inputs for t, _ in size.dims)


class _UnionFind:
    """Union-find of the nodes that have the same size."""

    def __init__(self) -> None:
        self._above: dict[_Node, _Node] = {}

    def root(self, node: _Node) -> _Node:
        while (above := self._above.get(node, node)) != node:
            node = above
        return node

    def unite(self, one: _Node, other: _Node) -> None:
        self._above[self.root(one)] = self.root(other)


def _axes_and_dimensions(expr: TensorExpr) -> Iterator[_Node]:
    """Yield the axes of all stages in order, then the dimensions of all tensors."""
    for s in expr.stages:
        yield from ((s.name, a.name) for a in s.axes)
    for t in expr.tensors.values():
        yield from ((t.name, n) for n in range(len(t.shape)))


def _tie_axes_to_dims(stage: Stage, expr: TensorExpr, ties: _UnionFind, stuck: set[_Node]) -> None:
    """Tie the axes of a stage to the dimensions they index; nodes indexed otherwise become stuck."""
    reads = [(n.tensor, n.index) for n in walk_scalar_tree(stage.body) if isinstance(n, Load)]
    for tensor, index in (*reads, (stage.output.name, stage.store)):
        shape = expr.tensors[tensor].shape
        for position, i in enumerate(index):
            axis = _only_axis(i, stage)
            stuck |= {n for n in _axes_in_index(stage, i) if n[1] != axis}
            if axis is not None and shape[position] == stage.extents[axis]:
                ties.unite((tensor, position), (stage.name, axis))
            else:
                stuck |= {(tensor, position), *_axes_in_index(stage, i)}
    for node in walk_scalar_tree(stage.body):
        if isinstance(node, Load):
            stuck.update(n for b in node.guard for n in _axes_in_index(stage, b.index))
        elif isinstance(node, IndexValue):
            stuck |= _axes_in_index(stage, node.index)


def _only_axis(index: Index, stage: Stage) -> str | None:
    """Return the axis that an index equals, apart from unit axes, or ``None`` if there is none."""
    moving = Index(tuple(t for t in index.terms if stage.extents[t.axis] > 1) or index.terms, index.const)
    return next((a for a in moving.axes if moving.is_axis(a)), None)


def _axes_in_index(stage: Stage, index: Index) -> set[_Node]:
    return {(stage.name, a) for a in index.axes}


def _new_terms_are_zero(stage: Stage, axis: str, given: set[str]) -> bool:
    """Return whether the new terms of a sum along an axis are zero if the inputs are zero there."""
    return stage.combiner == "sum" and _is_zero_if_inputs_are(stage.body, axis, given)


def _is_zero_if_inputs_are(body: Scalar, axis: str, given: set[str]) -> bool:
    """Return whether a value is zero if one of the ``given`` tensors is zero along an axis and the rest is finite."""
    if isinstance(body, Load):
        zero_beyond = not body.guard or body.outside == 0.0
        return body.tensor in given and zero_beyond and any(i.is_axis(axis) for i in body.index)
    if isinstance(body, Cast):
        return _is_zero_if_inputs_are(body.arg, axis, given)
    return (
        isinstance(body, Call) and body.fn == "mul" and any(_is_zero_if_inputs_are(a, axis, given) for a in body.args)
    )


def _size_of_nodes(nodes: list[_Node], expr: TensorExpr) -> GrowableSize | None:
    """Return the size of a set of tied nodes, or ``None`` if no loop iterates over it."""
    stages = {s.name: s for s in expr.stages}
    axes = tuple((n, a) for n, a in nodes if isinstance(a, str))
    if not axes:
        return None
    kinds = {a.kind for n, name in axes for a in stages[n].axes if a.name == name}
    dims = tuple((n, p) for n, p in nodes if isinstance(p, int))
    return GrowableSize(stages[axes[0][0]].extents[axes[0][1]], axes, dims, "reduction" in kinds)
