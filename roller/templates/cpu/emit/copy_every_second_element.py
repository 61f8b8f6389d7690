"""Copies every second element of a row in vectors, with two loads and a shuffle instead of a load per element."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from roller.te.compat import tirx
from roller.te.emit_tvm_expressions import Expr
from roller.templates.cpu.decisions import FEWEST_HALVES, HALVED
from roller.templates.cpu.emit.copy_grouped_axis_runs import indices_of_address
from roller.templates.cpu.emit.tir_loop_constructors import (
    Buffer,
    LoopBuilder,
    Stmt,
    if_then,
    int32_index,
    smaller_extent,
)


def emit_copy_of_every_second(
    nest: LoopBuilder,
    length: int | Expr,
    lanes: int,
    source: tuple[Buffer, Expr],
    target: tuple[Buffer, Sequence[Expr]],
    element: Callable[[Expr], Stmt],
) -> Stmt:
    """Return the statement that copies ``length`` elements, two apart, to adjacent positions."""

    # The last vector is shifted back to the end of the row, and the second load of each vector ends with its last
    # element, so no access exceeds the row. Rows shorter than a vector use vectors of FEWEST_HALVES lanes, and still
    # shorter ones are copied element by element.
    def vectors(width: int) -> Stmt:
        count = (
            -(-length // width) if isinstance(length, int) else tirx.floordiv(length + (width - 1), int32_index(width))
        )
        end = length - width

        def one(n: Expr) -> Stmt:
            whole = isinstance(length, int) and length % width == 0
            return _emit_vector_copy(width, source, target, n * width if whole else smaller_extent(n * width, end))

        return nest.loop(count, one, name="halves")

    widths = sorted({w for w in (lanes, FEWEST_HALVES) if w >= FEWEST_HALVES}, reverse=True)
    if isinstance(length, int):
        fitting = [w for w in widths if w <= length]
        return vectors(fitting[0]) if fitting else nest.loop(length, element, name="element")
    out = nest.loop(length, element, name="element")
    for width in reversed(widths):
        out = if_then(length >= width, vectors(width), out)
    return out


def _emit_vector_copy(width: int, source: tuple[Buffer, Expr], target: tuple[Buffer, Sequence[Expr]], at: Expr) -> Stmt:
    (buffer, place), (panel, to) = source, target

    def load(first: Expr) -> Expr:
        *zeros, last = indices_of_address(buffer, first)
        return tirx.BufferLoad(buffer, [*zeros, tirx.Ramp(last, int32_index(1), width)])

    begin = place + at * HALVED
    pair = [load(begin), load(begin + (width - 1))]
    kept = [HALVED * n if HALVED * n < width else HALVED * n + 1 for n in range(width)]
    value = tirx.Shuffle(pair, [tirx.const(x, "int32") for x in kept])
    return tirx.BufferStore(panel, value, [*to[:-1], tirx.Ramp(to[-1] + at, int32_index(1), width)])
