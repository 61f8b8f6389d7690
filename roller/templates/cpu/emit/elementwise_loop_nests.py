"""Element-wise loop nests: vectors along one axis, with the last vector shifted back instead of masked.

The streaming template uses them, as does the rows template for its stages without a reduction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from roller.expr import Stage, TensorExpr, stride_between_neighbours
from roller.te.compat import tirx
from roller.te.emit_tvm_expressions import Expr
from roller.templates.cpu.emit.axis_tiling_plans import SpatialPlan, power_of_two_below, tile_start_coordinate
from roller.templates.cpu.emit.tir_loop_constructors import (
    LoopBuilder,
    Stmt,
    clamp_expression,
    int32_index,
    smaller_extent,
    unravel_counter,
)

#: Minimum number of elements that one task of an element-wise nest writes, so that its start-up time is negligible.
_TASK_ELEMENTS = 1 << 14
#: Maximum number of vectors unrolled along the vector axis.
_UNROLL = 4


def count_contiguous_and_strided(stage: Stage, expr: TensorExpr, axis: str) -> tuple[int, int]:
    """Return the number of contiguous accesses along ``axis``, and the negated number of strided accesses."""
    accesses = [(stage.name, stage.store), *((ld.tensor, ld.index) for ld in stage.loads)]
    steps = [stride_between_neighbours(index, expr.tensors[name].shape, axis) for name, index in accesses]
    return sum(s == 1 for s in steps), -sum(s not in (0, 1) for s in steps)


def default_spatial_plans(
    stage: Stage, expr: TensorExpr, lanes: int, names: Sequence[str], open_axes: Collection[str] = ()
) -> tuple[SpatialPlan, ...]:
    """Return plans over the spatial axes ``names``: vectors along the most contiguous axis, tasks of useful size."""
    extents = stage.extents
    best = max(names, key=lambda n: (count_contiguous_and_strided(stage, expr, n)[::-1], names.index(n)), default=None)
    plans: list[SpatialPlan] = []
    work = 1
    for n in reversed(names):
        extent, tile, width = extents[n], 1, 1
        if n == best:
            width = power_of_two_below(min(lanes, extent))
            tile = width * max(1, min(_UNROLL, extent // width))
            if n in open_axes:  # the code depends only on whether the length is one vector, or several vectors, or less
                tile = width * (_UNROLL if extent >= width * _UNROLL and lanes > 1 else 1)
        tiles = -(-extent // tile)
        per_task = min(tiles, max(1, -(-_TASK_ELEMENTS // (work * tile))))
        work *= per_task * tile
        plan = SpatialPlan(n, extent, tile, tiles, per_task, width)
        plans.append(plan.opened() if n in open_axes else plan)
    return tuple(reversed(plans))


def non_overlapping_plan(plan: SpatialPlan) -> SpatialPlan:
    """Return the plan of an axis of whole vectors with tiles that divide it and do not overlap."""
    if plan.is_whole:
        return plan
    vectors = plan.extent // plan.lanes
    unrolled = max(n for n in range(1, _UNROLL + 1) if vectors % n == 0)
    return SpatialPlan(
        plan.name, plan.extent, plan.lanes * unrolled, vectors // unrolled, vectors // unrolled, plan.lanes
    )


def emit_task_loop(
    nest: LoopBuilder,
    plans: Sequence[SpatialPlan],
    body: Callable[[Mapping[str, Any]], Stmt],
    kind: str,
    to_line: Callable[[Mapping[str, Any]], Expr] | None = None,
    group: int = 1,
) -> Stmt:
    """Loop over the tasks and their register tiles; ``body`` receives the first coordinate per axis."""
    # If ``group`` is given, that many tiles of the last axis are unrolled, so that chains of dependent operations in
    # one (the fold of a sum's lanes) overlap the chains of the others. If ``to_line`` is given, tiles start at cache
    # lines (see :func:`_line_aligned_start`).
    if to_line is not None:
        plans = [replace(p, tiles=p.tiles + 1) if p.lanes > 1 else p for p in plans]
    tasks = [p.tasks for p in plans]

    def task(t: Expr) -> Stmt:
        first = {p.name: c * p.per_task for p, c in zip(plans, unravel_counter(t, tasks), strict=True)}
        counts = [
            p.per_task if p.tasks_are_equal else smaller_extent(p.per_task, p.tiles - first[p.name]) for p in plans
        ]

        def tile(at: tuple[Expr, ...]) -> Stmt:
            tiles = {p.name: first[p.name] + c for p, c in zip(plans, at, strict=True)}
            start = {p.name: tile_start_coordinate(p, tiles[p.name]) for p in plans}
            if to_line is not None:
                start |= {p.name: _line_aligned_start(p, tiles[p.name], to_line(start)) for p in plans if p.lanes > 1}
            return body(start)

        last = counts[-1] if counts else 1
        if group > 1 and isinstance(last, int) and last % group == 0:
            return nest.grid(
                [*counts[:-1], last // group],
                lambda at: nest.loop(group, lambda u: tile((*at[:-1], at[-1] * group + u)), "unroll"),
            )
        return nest.grid(counts, tile)

    return nest.loop(math.prod(tasks), task, kind, "task")


def _line_aligned_start(plan: SpatialPlan, tile: Expr, head: Expr) -> Expr:
    """Return the first coordinate of a tile if tiles start ``head`` elements after the start of the axis."""
    # One additional tile covers the elements before that; it and the last tile overlap their neighbours.
    before = tirx.floormod(head, int32_index(plan.tile))
    return clamp_expression(before + (tile - 1) * plan.tile, 0, plan.extent - plan.tile)


def emit_tile_loop(
    nest: LoopBuilder, plans: Sequence[SpatialPlan], start: Mapping[str, Any], body: Callable[[dict[str, Any]], Stmt]
) -> Stmt:
    """Run ``body`` on every element of a register tile: loops are unrolled, and lanes are vectorized innermost."""
    vector = next((p for p in plans if p.lanes > 1), None)
    rows = [p for p in plans if p is not vector]

    def lanes(at: tuple[Expr, ...]) -> Stmt:
        env = {**start, **{p.name: start[p.name] + x for p, x in zip(rows, at, strict=True)}}
        if vector is None:
            return body(env)
        v = vector
        return nest.loop(
            v.tile // v.lanes,
            lambda u: nest.loop(
                v.lanes, lambda x: body({**env, v.name: start[v.name] + (u * v.lanes + x)}), "vector", "lane"
            ),
            "unroll",
        )

    return nest.grid([p.tile for p in rows], lanes, "unroll")


def emit_elementwise_nest(
    nest: LoopBuilder,
    plans: Sequence[SpatialPlan],
    store: Callable[[dict[str, Any]], Stmt],
    parallel: bool,
    to_line: Callable[[Mapping[str, Any]], Expr] | None = None,
) -> Stmt:
    """Return the nest that runs ``store`` at every point; ``to_line`` counts elements from a start to the next line."""
    kind = "parallel" if parallel else "serial"
    return emit_task_loop(nest, plans, lambda start: emit_tile_loop(nest, plans, start, store), kind, to_line)
