"""Template for row reductions and multi-stage expressions (softmax, norms, arg-reductions).

Fused form: a task computes whole rows, stage after stage, with intermediates in small buffers of the task. Staged form,
for stages without common rows or for fewer rows than cores: each stage is a separate parallel nest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from roller.expr import SPATIAL, Axis, Index, Load, Scalar, Stage, TensorExpr, axis_index, stride_between_neighbours
from roller.te.emit_tvm_expressions import Expr, emit_index, emit_scalar
from roller.templates.cpu.emit.axis_tiling_plans import (
    SpatialPlan,
    power_of_two_below,
    spatial_plans,
    tile_start_coordinate,
)
from roller.templates.cpu.emit.elementwise_loop_nests import (
    default_spatial_plans,
    emit_elementwise_nest,
    emit_task_loop,
    non_overlapping_plan,
)
from roller.templates.cpu.emit.tir_loop_constructors import (
    Buffer,
    EmittedNests,
    LoopBuilder,
    Stmt,
    allocate_buffer,
    declare_buffer,
    element_reader,
    int32_index,
    read_element,
    sequence_of_statements,
    smaller_extent,
    write_element,
)  # fmt: skip
from roller.templates.cpu.rows.emit_maxima_without_nan import may_lose_nan
from roller.templates.cpu.rows.emit_reduce import ReductionEmitter
from roller.templates.cpu.rows.emit_shared_values import add_stages_for_shared_values
from roller.templates.cpu.rows.emit_values_kept_by_reductions import (
    emitter_of_stage_body,
    stage_overwriting_values,
    stages_stored_by_reductions,
)
from roller.templates.cpu.tiled.emit import emit_tiled_body
from roller.tile import RProgram

_LANE = "@lane"
Env = Mapping[str, Any]

#: Minimum number of points for which splitting a stage over cores pays off.
_SPLIT_POINTS = 1 << 16
#: Number of rows of a reduction that are unrolled together.
_ROW_GROUP = 4
#: Number of parts of a split reduction per core.
_PARTS_PER_CORE = 4


def axes_of_independent_rows(expr: TensorExpr) -> tuple[str, ...]:
    """Return the spatial axes along which all stages are independent of each other."""
    shared = [a.name for a in expr.anchor.spatial_axes if a.extent > 1]
    for s in expr.stages:
        shared = [n for n in shared if any(i.is_axis(n) for i in s.store) and n in {a.name for a in s.spatial_axes}]
    stores = {s.name: s.store for s in expr.stages}
    for s in expr.stages:
        for ld in s.loads:
            for i, at in zip(stores.get(ld.tensor, ()), ld.index, strict=False):
                shared = [n for n in shared if not i.is_axis(n) or (at == i and not ld.guard)]
    return tuple(shared)


@dataclass
class _RowsLowering:
    """One lowering of a rows program."""

    program: RProgram
    buffers: dict[str, Buffer]
    cores: int
    nest: LoopBuilder = field(default_factory=LoopBuilder)

    def __post_init__(self) -> None:
        self.expr = self.program.expr
        self.lanes = power_of_two_below(max(1, self.program.vector_elements))
        self.rows = axes_of_independent_rows(self.expr)
        self.temporary = [s for s in self.expr.stages if s.name not in self.expr.outputs]
        #: Stages whose elements are computed exactly once, so that they may overwrite their operands.
        self.whole = set[str]()

    def body(self) -> Stmt:
        """Return the nest in its fused or its staged form."""
        extents = self.expr.anchor.extents
        rows = math.prod(extents[n] for n in self.rows)
        large = max(s.points for s in self.expr.stages) >= _SPLIT_POINTS
        if not self.rows or (rows < self.cores and large):
            return self._emit_staged_nests()
        return self._fused()

    # --- fused form -----------------------------------------------------------------------------

    def _fused(self) -> Stmt:
        self.expr = add_stages_for_shared_values(self.expr)
        self.temporary = [s for s in self.expr.stages if s.name not in self.expr.outputs]
        plans = [p for p in spatial_plans(self.program) if p.name in self.rows]
        vector = next((p for p in plans if p.lanes > 1), None)
        lanes = 1
        if vector is not None:  # several adjacent rows at once, one per lane
            lanes = vector.lanes
        plans = [self._row_plan(p, lanes if p is vector else 1) for p in plans]
        # If rows may have any length, reductions end with single elements, and element-wise stages end with a vector.
        ends = {a.name for a in self.expr.anchor.reduction_axes} & set(self.program.open_axes)
        kept = stages_stored_by_reductions(self.expr.stages) if vector is None and not ends else {}
        stages = [s for s in self.expr.stages if s not in kept.values()]
        held = {
            k.name: s.name
            for k in kept.values()
            if (s := stage_overwriting_values(self.expr.stages, k)) and self._has_whole_vectors(s)
        }
        self.whole = set(held.values())
        self.temporary = [s for s in self.temporary if s.name not in held]
        local = {s.name: self._local_buffer(s, lanes) for s in self.temporary}
        buffers = {**self.buffers, **local}
        buffers |= {name: buffers[place] for name, place in held.items()}

        def task(start: Env) -> Stmt:
            code = [self._emit_stage_for_row(s, start, buffers, vector, lanes, kept.get(s.name)) for s in stages]
            return sequence_of_statements(*(allocate_buffer(b) for b in local.values()), *code)

        alone = len(self.expr.stages) == 1 and vector is None
        return emit_task_loop(self.nest, plans, task, "parallel", group=_ROW_GROUP if alone else 1)

    def _row_plan(self, plan: SpatialPlan, lanes: int) -> SpatialPlan:
        """Return the plan with one row (or vector of rows) per step and the program's number of rows per task."""
        tiles, per_task = (plan.extent + (lanes - 1)) // lanes, plan.per_task * plan.tile // lanes
        per_task = min(tiles, per_task) if isinstance(tiles, int) else per_task
        return SpatialPlan(plan.name, plan.extent, lanes, tiles, per_task, lanes)

    def _local_buffer(self, s: Stage, lanes: int) -> Buffer:
        shape = [e for e, i in zip(s.output.shape, s.store, strict=True) if not self._is_index_of_row(i)]
        return declare_buffer(s.name, (*shape, lanes) if lanes > 1 else tuple(shape), s.output.dtype)

    def _is_index_of_row(self, index: Index) -> bool:
        return any(index.is_axis(n) for n in self.rows)

    def _place(self, s: Stage, index: tuple[Index, ...], lanes: int) -> tuple[Index, ...]:
        """Return an intermediate's index without its row dimensions and with the lane."""
        kept = tuple(at for at, i in zip(index, s.store, strict=True) if not self._is_index_of_row(i))
        return (*kept, axis_index(_LANE)) if lanes > 1 else kept

    def _emit_stage_for_row(
        self, s: Stage, start: Env, buffers: dict[str, Buffer], vector: SpatialPlan | None, lanes: int,
        kept: Stage | None,
    ) -> Stmt:  # fmt: skip
        """Emit a stage for one row (or one vector of rows), including the stage whose values the reduction keeps."""
        value, put = self._stored(s, buffers, lanes)
        inner = [a for a in s.spatial_axes if a.name not in self.rows]
        if vector is not None:
            return self._emit_adjacent_rows(s, start, value, put, inner, vector, lanes)
        if s.combiner is None:
            plans = default_spatial_plans(s, self.expr, self.lanes, [a.name for a in inner], self.program.open_axes)
            plans = tuple(map(non_overlapping_plan, plans)) if s.name in self.whole else plans
            return emit_elementwise_nest(self.nest, plans, lambda e: put({**start, **e}, value({**start, **e})), False)
        if kept is None:
            return self._emit_row_reduction(s, start, value, put, inner, loses_nan=may_lose_nan(s, self.expr))
        element, keep = self._stored(kept, buffers, lanes)
        return self._emit_row_reduction(s, start, value, put, inner, lambda env: keep(env, element(env)))

    def _has_whole_vectors(self, s: Stage) -> bool:
        """Return whether the columns of a stage are whole vectors, so that no element is computed twice."""
        names = [a.name for a in s.spatial_axes if a.name not in self.rows]
        plans = default_spatial_plans(s, self.expr, self.lanes, names, self.program.open_axes)
        return not set(names) & set(self.program.open_axes) and all(p.extent % p.lanes == 0 for p in plans)

    def _stored(
        self, s: Stage, buffers: dict[str, Buffer], lanes: int
    ) -> tuple[Callable[[Env], Expr], Callable[[Env, Expr], Stmt]]:
        """Return a function that computes a stage's body at one point, and a function that stores a result there."""
        made = {t.name: t for t in self.temporary}

        def local(n: Scalar) -> Scalar:
            return Load(n.tensor, self._place(made[n.tensor], n.index, lanes), n.guard, n.outside) \
                if isinstance(n, Load) and n.tensor in made else n  # fmt: skip

        store = self._place(s, s.store, lanes) if s.name in made else s.store
        value = emitter_of_stage_body(s, self.expr, {n: element_reader(b) for n, b in buffers.items()}, local)

        def put(env: Env, result: Expr) -> Stmt:
            return write_element(buffers[s.name], result, *(emit_index(i, env) for i in store))

        return value, put

    def _emit_adjacent_rows(
        self, s: Stage, start: Env, value: Callable[[Env], Expr], put: Callable[[Env, Expr], Stmt],
        inner: list[Axis], vector: SpatialPlan, lanes: int,
    ) -> Stmt:  # fmt: skip
        """Emit a stage for ``lanes`` adjacent rows at once."""

        def at_lane(env: Env, x: Expr) -> dict[str, Any]:
            return {**env, _LANE: x, vector.name: start[vector.name] + x}

        def point(at: tuple[Expr, ...]) -> Stmt:
            env = {**start, **{a.name: x for a, x in zip(inner, at, strict=True)}}
            if s.combiner is None:
                return self.nest.loop(lanes, lambda x: put(at_lane(env, x), value(at_lane(env, x))), "vector", "lane")
            first = start[vector.name]
            reducer = ReductionEmitter(self.nest, s, lambda e: value({**e, _LANE: e[vector.name] - first}), lanes)
            axis = Axis(vector.name, self.expr.anchor.extents[vector.name])
            finish = lambda e, r: put({**e, _LANE: e[vector.name] - first}, r)  # noqa: E731
            return reducer.across(axis, finish, env, first, lanes)

        return self.nest.grid([a.extent for a in inner], point)

    def _emit_row_reduction(
        self, s: Stage, start: Env, value: Callable[[Env], Expr], put: Callable[[Env, Expr], Stmt], inner: list[Axis],
        before: Callable[[Env], Stmt] | None = None, *, loses_nan: bool = False,
    ) -> Stmt:  # fmt: skip
        """Emit a reduction for one row, with lanes along its most contiguous axis."""
        reducer = ReductionEmitter(self.nest, s, value, self.lanes, before, loses_nan)
        across = self._vector_spatial_axis(s, inner)
        if across is not None:
            others = [a for a in inner if a is not across]
            width = self._vector_tile_elements(across.extent)
            plan = SpatialPlan(across.name, across.extent, width, -(-across.extent // width), 1)
            plan = plan.opened() if across.name in self.program.open_axes else plan

            def tile(at: tuple[Expr, ...]) -> Stmt:
                env = {**start, **{a.name: x for a, x in zip(others, at, strict=False)}}
                return reducer.across(across, put, env, tile_start_coordinate(plan, at[-1]), width)

            return self.nest.grid([*(a.extent for a in others), plan.tiles], tile)
        along = self._contiguous_reduction_axis(s)
        span = self._span(along)

        def point(at: tuple[Expr, ...]) -> Stmt:
            env = {**start, **{a.name: x for a, x in zip(inner, at, strict=True)}}
            return reducer.point(env, along, lambda r: put(env, r), span)

        return self.nest.grid([a.extent for a in inner], point)

    def _vector_tile_elements(self, extent: int) -> int:
        lanes = power_of_two_below(min(self.lanes, extent))
        return lanes * max(1, min(4, extent // lanes))

    def _vector_spatial_axis(self, s: Stage, inner: list[Axis]) -> Axis | None:
        """Return the contiguous spatial axis to vectorize; ``None`` without one, or if a reduction axis is suitable."""
        if self._contiguous_reduction_axis(s) is not None or self.lanes == 1:
            return None
        good = [a for a in inner if a.extent > 1 and _can_vectorise_along(s, self.expr, a.name)]
        return good[-1] if good else None

    def _contiguous_reduction_axis(self, s: Stage) -> Axis | None:
        """Return the contiguous reduction axis to vectorize, or ``None`` if there is none."""
        good = [a for a in s.reduction_axes if a.extent > 1 and _can_vectorise_along(s, self.expr, a.name)]
        return good[-1] if good and self.lanes > 1 else None

    def _span(self, axis: Axis | None) -> tuple[Any, Any] | None:
        """Return the first element and the opaque length of an open axis, or ``None`` for any other axis."""
        return (0, int32_index(axis.extent)) if axis is not None and axis.name in self.program.open_axes else None

    # --- staged form ----------------------------------------------------------------------------

    def _emit_staged_nests(self) -> Stmt:
        """Return a separate parallel nest for each stage."""
        whole = {s.name: declare_buffer(s.name, s.output.shape, s.output.dtype) for s in self.temporary}
        buffers = {**self.buffers, **whole}
        tensors = {n: element_reader(b) for n, b in buffers.items()}
        nests = [self._emit_stage_nest(s, buffers[s.name], tensors) for s in self.expr.stages]
        return sequence_of_statements(*(allocate_buffer(b) for b in whole.values()), *nests)

    def _emit_stage_nest(self, s: Stage, out: Buffer, tensors: Mapping[str, Callable[..., Expr]]) -> Stmt:
        value: Callable[[Env], Expr] = lambda env: emit_scalar(s.body, env, tensors)  # noqa: E731

        def put(env: Env, result: Expr) -> Stmt:
            return write_element(out, result, *(emit_index(i, env) for i in s.store))

        names = [a.name for a in s.spatial_axes]
        large = s.points >= _SPLIT_POINTS
        if s.combiner is None:
            plans = default_spatial_plans(s, self.expr, self.lanes, names, self.program.open_axes)
            return emit_elementwise_nest(self.nest, plans, lambda e: put(e, value(e)), large)
        points = math.prod(a.extent for a in s.spatial_axes)
        if points < self.cores and large:
            return self._emit_split_reduction(s, value, put)
        across = self._vector_spatial_axis(s, list(s.spatial_axes))
        width = {across.name: self._vector_tile_elements(across.extent)} if across is not None else {}
        plans = tuple(
            SpatialPlan(a.name, a.extent, width.get(a.name, 1), -(-a.extent // width.get(a.name, 1)), 1)
            for a in s.spatial_axes
        )
        plans = tuple(p.opened() if p.name in self.program.open_axes else p for p in plans)
        reducer = ReductionEmitter(self.nest, s, value, self.lanes)

        def tile(env: Env) -> Stmt:
            if across is not None:
                return reducer.across(across, put, env, env[across.name], width[across.name])
            return reducer.point(
                env,
                self._contiguous_reduction_axis(s),
                lambda r: put(env, r),
                self._span(self._contiguous_reduction_axis(s)),
            )

        return emit_task_loop(self.nest, plans, tile, "parallel" if large else "serial")

    def _emit_split_reduction(self, s: Stage, value: Callable[[Env], Expr], put: Callable[[Env, Expr], Stmt]) -> Stmt:
        """Reduce to fewer points than cores: compute parts in parallel, then combine their results in order."""
        axis = self._contiguous_reduction_axis(s) or max(s.reduction_axes, key=lambda a: a.extent)
        parts = min(self.program.split_k if self.program.split_k > 1 else self.cores * _PARTS_PER_CORE, axis.extent)
        length = -(-axis.extent // parts)
        length = -(-length // self.lanes) * self.lanes
        parts = -(-axis.extent // length)
        spatial = list(s.spatial_axes)
        shape = (parts, *(a.extent for a in spatial))
        partial = declare_buffer(f"{s.name}_partial", shape, s.acc_dtype)
        reducer = ReductionEmitter(
            self.nest, s, value, self.lanes if self._contiguous_reduction_axis(s) is not None else 1
        )

        def part(p: Expr) -> Stmt:
            size = length if axis.extent % length == 0 else smaller_extent(length, axis.extent - p * length)

            def point(at: tuple[Expr, ...]) -> Stmt:
                env = {a.name: x for a, x in zip(spatial, at, strict=True)}
                return reducer.point(env, axis, lambda r: write_element(partial, r, p, *at), (p * length, size))

            return self.nest.grid([a.extent for a in spatial], point)

        last = Stage(s.output, (*spatial, Axis("@part", parts, "reduction")), s.store,
                     Load("@partial", (axis_index("@part"), *(axis_index(a.name) for a in spatial))),
                     s.combiner, s.acc_dtype)  # fmt: skip
        again = ReductionEmitter(
            self.nest, last, lambda e: read_element(partial, e["@part"], *(e[a.name] for a in spatial)), 1
        )

        def combine(at: tuple[Expr, ...]) -> Stmt:
            env = {a.name: x for a, x in zip(spatial, at, strict=True)}
            return again.point(env, None, lambda r: put(env, r))

        return sequence_of_statements(
            allocate_buffer(partial),
            self.nest.loop(parts, part, "parallel", "part"),
            self.nest.grid([a.extent for a in spatial], combine),
        )


def _can_vectorise_along(s: Stage, expr: TensorExpr, axis: str) -> bool:
    """Return whether a load is contiguous along ``axis``, no load is strided, and no guard involves the axis."""
    good, bad = 0, 0
    for ld in s.loads:
        step = stride_between_neighbours(ld.index, expr.tensors[ld.tensor].shape, axis)
        good, bad = good + (step == 1), bad + (step not in (0, 1))
        bad += any(axis in b.index.axes for b in ld.guard)
    return good > 0 and bad == 0


def emit_rows_body(program: RProgram, buffers: dict[str, Buffer], cores: int) -> Stmt:
    """Return the loop nest of a ``rows`` program."""
    expr = program.expr
    single = len(expr.stages) == 1 or expr.epilogue is not None
    spatial = {a.name for a in expr.axes if a.kind == SPATIAL and a.extent > 1}
    if single and expr.anchor.combiner is not None and program.vector_axis in spatial:
        return emit_tiled_body(program, buffers)  # lanes are outputs: a register tile without packing
    return _RowsLowering(program, buffers, cores).body()


def emit_rows_nests(program: RProgram, buffers: dict[str, Buffer], cores: int) -> EmittedNests:
    """Return the loop nest of a row program; for the arguments, see :func:`emit_rows_body`."""
    return EmittedNests(emit_rows_body(program, buffers, cores))
