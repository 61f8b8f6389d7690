"""Packing: boxes, which copy the rectangle of a tensor that one task touches, with its padding.

The micro-kernel reads a box without guards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from roller.te.compat import tirx
from roller.te.emit_tvm_expressions import Expr, constant, emit_index
from roller.templates.cpu.emit.axis_tiling_plans import power_of_two_below
from roller.templates.cpu.emit.tir_loop_constructors import (
    Buffer,
    LoopBuilder,
    Stmt,
    addressed_extents,
    clamp_expression,
    constant_extent,
    element_dtype,
    int32_index,
    read_element,
    sequence_of_statements,
    write_element,
)
from roller.templates.cpu.tiled.emit_load_staging_plans import BoxPlan
from roller_runtime.core.dtypes import DTYPE_BYTES


def emit_box_copy(nest: LoopBuilder, plan: BoxPlan, source: Buffer, box: Buffer, start: Mapping[str, Expr]) -> Stmt:
    """Return the statement that copies one task's box and fills positions outside the tensor with ``load.outside``."""
    shape = addressed_extents(source, plan.load.index)
    base = [emit_index(i, start) for i in plan.base]
    outside = constant(plan.load.outside, element_dtype(source))
    rank, lanes = len(shape), max(1, plan.vector_bytes // DTYPE_BYTES[str(box.ty.dtype)])

    def valid(d: int) -> tuple[int, int]:
        bounds = plan.bounds[d]
        if bounds is None:  # the extent may be known only at run time
            return 0, shape[d]
        return max(bounds[0], 0), min(bounds[1], shape[d])

    def fill(at: tuple[Expr, ...]) -> Stmt | None:
        rest, fixed = [int(x) for x in box.ty.shape][len(at) :], plan.fixed[len(at) :]
        inner = next((n for n, f in enumerate(reversed(fixed)) if not f), len(fixed))  # innermost, of known extents
        if not inner:
            return nest.grid(rest, lambda more: write_element(box, outside, *at, *more))
        loops, run = rest[:-inner], math.prod(rest[-inner:])
        zero = (int32_index(0),) * (inner - 1)  # a run over several dimensions: the last index exceeds its extent
        return nest.grid(
            loops,
            lambda more: emit_elements(nest, run, lanes, lambda i: write_element(box, outside, *at, *more, *zero, i)),
        )

    def dimension(d: int, at: tuple[Expr, ...], coords: tuple[Expr, ...]) -> Stmt:
        if d == rank - 1:
            return row(at, coords)
        (low, high), size = valid(d), plan.extents[d]

        def copy(i: Expr) -> Stmt:
            return dimension(d + 1, (*at, i), (*coords, base[d] + i))

        if not plan.base[d].terms and plan.base[d].const >= low and plan.base[d].const + size <= high:
            return nest.loop(size, copy)
        # Three loops instead of a condition per element, so that the copy stays a plain nest of contiguous runs.
        first = clamp_expression(low - base[d], 0, size)
        end = clamp_expression(high - base[d], first, size)
        return sequence_of_statements(
            nest.loop(first, lambda i: fill((*at, i))),
            nest.loop(end - first, lambda i: copy(first + i)),
            nest.loop(size - end, lambda i: fill((*at, end + i))),
        )

    def row(at: tuple[Expr, ...], coords: tuple[Expr, ...]) -> Stmt:
        low, high = valid(rank - 1)
        s, wide = plan.phases, lanes if plan.fixed[-1] else 1

        def phase(p: Expr) -> Stmt:
            pitch = plan.extents[-1]
            place = (*at, p) if s > 1 else at
            first = clamp_expression(tirx.floordiv(low - base[-1] - p + s - 1, s), 0, pitch)
            end = clamp_expression(tirx.floordiv(high - base[-1] - p + s - 1, s), first, pitch)

            def outside_from(begin: Expr, count: Expr) -> Stmt | None:
                return emit_elements(nest, count, wide, lambda i: write_element(box, outside, *place, begin + i))

            def element(i: Expr) -> Stmt:
                value = read_element(source, *coords, base[-1] + (first + i) * s + p)
                return write_element(box, value, *place, first + i)

            return sequence_of_statements(
                outside_from(int32_index(0), first),
                emit_elements(nest, end - first, wide if s == 1 else 1, element),
                outside_from(end, pitch - end),
            )

        return nest.loop(s, phase, "unroll")

    return dimension(0, (), ())


def emit_elements(nest: LoopBuilder, count: int | Expr, lanes: int, element: Callable[[Any], Stmt]) -> Stmt | None:
    """Return a loop over the elements of a run: in vectors if their number is known, of which the last may overlap."""
    # LLVM unrolls a loop of few iterations (such as one over a block of channels) completely before it makes vectors,
    # which are then taken across the loop around it, with gathers and scatters.
    known = constant_extent(count)
    if lanes == 1 or not isinstance(known, int):
        return nest.loop(count, element)
    if not known:
        return None
    width = min(lanes, power_of_two_below(known))

    def vector(first: int | Expr) -> Stmt:
        return nest.loop(width, lambda x: element(first + x), "vector", "lane")

    whole = nest.loop(known // width, lambda n: vector(n * width))
    return sequence_of_statements(whole, vector(known - width) if known % width else None)
