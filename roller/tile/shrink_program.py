"""Shrinks a program to fewer tiles of the same kind, for example for emulation.

Axes shrink by whole blocks, so the last tile, guards and vectors stay the same. All accesses must agree on the new
tensor shapes, and no condition may name a position on the axis.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from roller.errors import RollerError
from roller.expr import SPATIAL, Axis, Index, Load, Stage, Tensor, TensorExpr, loads, transform_scalar
from roller.expr.scalar import Bound, Scalar, Term
from roller.tile.program import RProgram

#: Extents keep their remainder modulo this number (elements), on which vectors, transactions and swizzles may depend.
_KEPT = 64


def shrink_program(program: RProgram, tiles: int = 3) -> RProgram | None:
    """Return a program whose axes have only ``tiles`` tiles or a few more, or ``None`` if no axis may shrink.

    Examples
    --------
    >>> from roller import ops
    >>> from roller.expr.canonical import fuse_axes
    >>> tiles = (("register", (4, 4, 1)), ("shared", (64, 64, 8)))
    >>> found = shrink_program(RProgram(fuse_axes(ops.matmul(4096, 4090, 1024)), "gpu", "tiled", tiles))
    >>> [a.extent for a in found.axes]
    [256, 250, 64]
    """
    changed = program
    for axis in _shrinkable_axes(program.expr):
        extent = _shrunk_extent(changed, axis, tiles)
        if extent < axis.extent:
            expr = _with_extent(changed.expr, axis, extent)
            if expr is not None:
                changed = replace(changed, expr=expr)
    return changed if changed is not program else None


def _shrinkable_axes(expr: TensorExpr) -> Iterable[Axis]:
    """Return the axes of all stages, each once, except axes whose extents differ between stages."""
    found: dict[str, set[Axis]] = {}
    for s in expr.stages:
        for a in s.axes:
            found.setdefault(a.name, set()).add(Axis(a.name, a.extent, SPATIAL))
    return [next(iter(x)) for x in found.values() if len(x) == 1]


def _shrunk_extent(program: RProgram, axis: Axis, tiles: int) -> int:
    """Return the smallest extent with enough tiles or steps that keeps the axis's remainders and periods."""
    block = program.block_tile.get(axis.name, 1)
    reduces = axis.name in program.axis_names and axis.name not in program.grid
    periods = [t.div * max(t.mod, 1) for t in _terms(program.expr, axis.name)]
    unit = math.lcm(block, _KEPT if _is_part_of_stride(program.expr, axis.name) else 1, *periods)
    # Divisions by powers of two become shifts, which simplify further, so a count that is a power of two stays one, and
    # any other count does not become one.
    count = -(-axis.extent // block)
    tiles = tiles + 1 if count & (count - 1) == 0 and tiles & (tiles - 1) else tiles
    if reduces:
        unit, least = math.lcm(unit, block * program.split_k), block * program.split_k * (program.stages + 2)
    else:
        unit, least = unit * (program.raster if axis.name in program.grid else 1), block * tiles
    # The last block tile may exceed the axis; its actual extent is kept.
    least = max(least, 2 * max(periods, default=1)) - block + 1
    least += (axis.extent - least) % unit
    return min(least, axis.extent)


def _is_part_of_stride(expr: TensorExpr, axis: str) -> bool:
    """Return whether the extent of an axis is part of a stride: it indexes a dimension other than the first."""
    places = [i for s in expr.stages for i in (s.store, *(ld.index for ld in loads(s.body)))]
    return any(axis in i.axes for index in places for i in index[1:])


def _terms(expr: TensorExpr, axis: str) -> list[Term]:
    return [t for s in expr.stages for i in _indices(s) for t in i.terms if t.axis == axis]


def _indices(s: Stage) -> list[Index]:
    found = list(s.store)
    for ld in loads(s.body):
        found += [*ld.index, *(b.index for b in ld.guard)]
    return found


def _with_extent(expr: TensorExpr, axis: Axis, extent: int) -> TensorExpr | None:
    """Return the expression with a different extent of an axis, or ``None`` if its accesses would not agree."""
    less = axis.extent - extent
    shrink: dict[tuple[str, int], set[int]] = {}
    for s in expr.stages:
        places = [(s.output.name, s.store), *((ld.tensor, ld.index) for ld in loads(s.body))]
        for name, index in places:
            for d, i in enumerate(index):
                shrink.setdefault((name, d), set()).add(_decrease_of_maximum(i, axis.name, less))
        for ld in loads(s.body):
            if any(axis.name in b.index.axes and not _is_bounds_guard(expr, ld, b) for b in ld.guard):
                return None
    if any(len(amounts) > 1 or min(amounts) < 0 for amounts in shrink.values()):
        return None
    by = {key: amounts.pop() for key, amounts in shrink.items()}
    try:
        return _rebuild_with_extent(expr, axis, extent, by)
    except RollerError:  # an access would leave its tensor, or an output is not covered
        return None


def _decrease_of_maximum(index: Index, axis: str, less: int) -> int:
    """Return the decrease in the largest value of an index, or -1 if it is unknown."""
    total = 0
    for t in index.terms:
        if t.axis != axis or t.mod:
            continue
        if t.coef < 0 or less % t.div:
            return -1
        total += t.coef * (less // t.div)
    return total


def _is_bounds_guard(expr: TensorExpr, load: Load, b: Bound) -> bool:
    """Return whether a guard only keeps an index within its tensor."""
    shape = expr.tensors[load.tensor].shape
    return any(i == b.index and (b.low, b.high) == (0, n) for i, n in zip(load.index, shape, strict=True))


def _rebuild_with_extent(expr: TensorExpr, axis: Axis, extent: int, by: dict[tuple[str, int], int]) -> TensorExpr:
    def tensor(t: Tensor) -> Tensor:
        return replace(t, shape=tuple(n - by.get((t.name, d), 0) for d, n in enumerate(t.shape)))

    def leaf(node: Scalar) -> Scalar:
        if not isinstance(node, Load) or not node.guard:
            return node
        shape, cut = expr.tensors[node.tensor].shape, dict[Index, int]()
        for d, (i, n) in enumerate(zip(node.index, shape, strict=True)):
            cut[i] = n - by.get((node.tensor, d), 0)
        guard = tuple(replace(b, high=cut[b.index]) if _is_bounds_guard(expr, node, b) else b for b in node.guard)
        return replace(node, guard=guard)

    def stage(s: Stage) -> Stage:
        axes = tuple(replace(a, extent=extent) if a.name == axis.name else a for a in s.axes)
        return replace(s, output=tensor(s.output), axes=axes, body=transform_scalar(s.body, leaf))

    return TensorExpr(
        expr.name, tuple(tensor(t) for t in expr.inputs), tuple(stage(s) for s in expr.stages), expr.outputs,
        expr.allow_padding, expr.propagate_nan,
    )  # fmt: skip
