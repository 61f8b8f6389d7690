"""Copies and stores along a grouped axis: whole vectors inside a run, and pieces where a tile crosses a jump."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from roller.expr import Index, Load, Scalar, Stage, StridedRun, TensorExpr, Term, strided_run_along, transform_scalar
from roller.te.compat import tirx
from roller.te.emit_tvm_expressions import Expr, emit_index
from roller.templates.cpu.emit.axis_tiling_plans import SpatialPlan
from roller.templates.cpu.emit.tir_loop_constructors import (
    Buffer,
    LoopBuilder,
    Stmt,
    bind_value,
    clamp_expression,
    if_then,
    int32_index,
    row_major_strides,
    sequence_of_statements,
)

#: Axis of a flat access that counts the elements of a run; a second axis is the address of the run's first element.
ELEMENT = "@element"


def emit_row_major_address(index: Sequence[Index], shape: Sequence[int], env: Mapping[str, Any]) -> Expr:
    """Return the row-major address (elements) of an access."""
    total: Expr = int32_index(0)
    for i, pitch in zip(index, row_major_strides(shape), strict=True):
        total = total + emit_index(i, env) * pitch
    return total


def emit_axis_address(index: Sequence[Index], shape: Sequence[int], axis: str, value: Expr) -> Expr:
    """Return the part of an access's address that depends on ``axis``, at ``value``, so that it is computed once."""
    mine = [Index(tuple(t for t in i.terms if t.axis == axis)) for i in index]
    return emit_row_major_address(mine, shape, {axis: value})


def indices_of_address(buffer: Buffer, place: Expr) -> tuple[Expr, ...]:
    """Return the indices of the element at an address: zeros, and a last index that may exceed its extent."""
    return (*(int32_index(0) for _ in range(len(buffer.ty.shape) - 1)), place)


def emit_tile_by_runs(
    nest: LoopBuilder,
    run: StridedRun,
    start: Expr,
    tile: SpatialPlan,
    whole: Callable[[], Stmt],
    piece: Callable[[Expr, Expr], Stmt],
    before: Sequence[Stmt] = (),
) -> Stmt:
    """Return ``whole()`` if a tile from ``start`` is inside one run, else a ``piece`` per run that the tile touches."""
    size = tile.tile
    if run.length % size == 0 and tile.extent % size == 0:  # tiles start at multiples of their size
        return whole()
    first = tirx.floordiv(start, run.length)
    touched = (size + run.length - 2) // run.length + 1

    def part(n: Expr) -> Stmt:
        at = (first + n) * run.length - start
        return bind_value(
            clamp_expression(at, 0, size),
            "begin",
            lambda begin: bind_value(
                clamp_expression(at + run.length, 0, size) - begin, "length", lambda length: piece(begin, length)
            ),
        )

    one = tirx.floordiv(start + (size - 1), run.length).equal(first)
    return if_then(one, whole(), sequence_of_statements(*before, nest.loop(touched, part, name="run")))


def runs_of_output(last: Stage, axis: str, extent: int) -> StridedRun | None:
    """Return the output's runs along ``axis``, or ``None`` unless they are contiguous and shorter than the axis."""
    run = strided_run_along(last.store, last.output.shape, axis, extent)
    return run if run is not None and run.step == 1 and run.length < extent else None


def flatten_loads(body: Scalar, expr: TensorExpr, axis: str, run: StridedRun) -> tuple[Scalar, dict[str, Load]] | None:
    """Return ``body`` with flat loads inside a run, and the replaced loads, or ``None`` if one jumps or has a guard."""
    # A replaced load reads ``@flat<n>`` at ``@flat<n> + @element``, whose first term is its address at the start of the
    # run.
    inputs = {t.name for t in expr.inputs}
    found: dict[str, Load] = {}
    refused: list[Load] = []

    def replace(n: Scalar) -> Scalar:
        if not isinstance(n, Load) or n.tensor not in inputs or not any(axis in i.axes for i in n.index):
            return n
        extent = next(a.extent for a in expr.anchor.spatial_axes if a.name == axis)
        mine = strided_run_along(n.index, expr.tensors[n.tensor].shape, axis, extent)
        if n.guard or mine is None or mine.length % run.length or mine.step not in (0, 1):
            refused.append(n)
            return n
        name = f"@flat{len(found)}"
        found[name] = n
        terms = (Term(name), Term(ELEMENT)) if mine.step else (Term(name),)
        return Load(name, (Index(terms),))

    made = transform_scalar(body, replace)
    return None if refused else (made, found)


def emit_loop_over_run(
    nest: LoopBuilder, length: int | Expr, lanes: int, body: Callable[[Expr], Stmt], step: int = 1
) -> Stmt:
    """Return a loop over the elements of a run, in whole vectors if the length is known and the run is contiguous."""
    if step == 1 and isinstance(length, int) and length % lanes == 0 and lanes > 1:
        return nest.loop(
            length // lanes, lambda u: nest.loop(lanes, lambda x: body(u * lanes + x), "vector", "lane"), "unroll"
        )
    return nest.loop(length, body, name="element")
