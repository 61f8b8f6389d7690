"""Template for row expressions: reductions without reuse, alone or in sequence (softmax, norms, arg-reductions).

A block owns a tile of rows (the anchor's spatial axes); lanes (threads along reduction axes) share a row. Results per
row stay in registers, and so do inputs that several stages read, if a thread's tile holds all its columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from roller.expr import COMBINERS, Load, Scalar, Stage, walk_scalar_tree
from roller.expr.scalar import loads
from roller.te.compat import tirx
from roller.te.emit_tvm_expressions import constant, emit_combine_step, emit_index, emit_scalar
from roller.templates.gpu.common.stored_results import StoredResults
from roller.templates.gpu.emit.axis_map import (
    AxisMap,
    RegisterPoint,
    count_register_elements,
    register_index_of_point,
    register_tile_loops,
    with_whole_vectors,
)
from roller.templates.gpu.emit.kernel_tensor_context import (
    KernelContext,
    Reader,
    compute_dtype,
    convert_to_output_dtype,
    replace_loads_by_names,
)
from roller.templates.gpu.emit.load_into_register_tiles import (
    RegisterTile,
    index_of_neighbour,
    provably_aligned_positions,
    reader_of_one_register,
    register_tiles_of_loads,
    store_in_vectors,
    widest_vector_of_access,
)
from roller.templates.gpu.emit.tir_statements import (
    Buffer,
    Expr,
    Stmt,
    allocate_buffers_around,
    declare_buffer,
    if_all,
    int32_literal,
    kernel_under_thread_axes,
    load,
    loop,
    sequence_of,
    store,
    thread_axis,
    unravel_index,
)
from roller.templates.gpu.rows.emit_lane_combination import RowLanes
from roller.templates.gpu.rows.emit_loops_and_remainders import (
    BlockShare,
    RowTile,
    loops_over_tiles,
    register_point_loops,
)
from roller.templates.gpu.rows.emit_shifted_columns import ShiftedColumns
from roller.templates.gpu.rows.emit_staged_rows import StagedRows
from roller.templates.gpu.rows.emit_value_registers import ValueRegisters
from roller.tile.row_kernel_shared_values import row_form, shared_values
from roller.tile.row_stages_and_shared_loads import RowStage, loads_kept_in_registers, most_contiguous_axis, row_stages


class RowKernel:
    """One kernel over a tile of rows: the spatial axes of ``anchor``.

    ``rows`` and ``lanes`` map its spatial axes (the contiguous one last) and its reduction axes. The reduction is split
    over ``split`` blocks. Rows of the inputs ``staged`` stay in the scratchpad after the first stage that reads them.
    """

    def __init__(
        self, ctx: KernelContext, anchor: Stage, rows: Sequence[AxisMap], lanes: Sequence[AxisMap], split: int = 1,
        staged: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.ctx = ctx
        self.rows = tuple(with_whole_vectors(m) for m in rows)
        self.shifted = ShiftedColumns.of(anchor, ctx.tensors, lanes)
        self.shift = self.shifted.shift if self.shifted else None
        self.columns = (self.shifted.map,) if self.shifted else tuple(with_whole_vectors(m) for m in lanes)
        self.anchor = anchor
        self.block = thread_axis("blockIdx.x", split * math.prod(m.steps for m in rows))
        part, *blocks = unravel_index(self.block.var, [split, *(m.steps for m in rows)])
        self.part = BlockShare(part, split) if split > 1 else None
        self.base = {m.name: b * m.tile for m, b in zip(rows, blocks, strict=True)}
        self.lanes = self._bind_threads(math.prod(m.threads for m in rows), math.prod(m.threads for m in lanes))
        parts = unravel_index(self.lanes.row, [m.threads for m in rows])
        self.row_lane = {m.name: t for m, t in zip(rows, parts, strict=True)}
        self.held = StagedRows(ctx, tuple(staged), self.lanes)
        self.partial: Buffer | None = None
        self.results: dict[str, Buffer] = {}
        self.kept: dict[Load, RegisterTile] = {}
        self.once = ValueRegisters(ctx.prefix("once"), self.rows)
        self.again = ValueRegisters(ctx.prefix("again"), (*self.rows, *self.columns))
        self.shared: tuple[Scalar, ...] = ()

    def _bind_threads(self, rows: int, lanes: int) -> RowLanes:
        """Bind neighbouring threads to lanes if the reduction is contiguous in memory, otherwise to rows."""
        if lanes == 1:
            self.threads = [thread_axis("threadIdx.x", rows)]
            return RowLanes(None, 1, self.threads[0].var, rows, True)
        along = most_contiguous_axis(self.anchor, self.ctx.tensors) in {a.name for a in self.anchor.reduction_axes}
        if rows == 1:
            self.threads = [thread_axis("threadIdx.x", lanes)]
            return RowLanes(self.threads[0], lanes, int32_literal(0), 1, True)
        lane_axis = thread_axis("threadIdx.x" if along else "threadIdx.y", lanes)
        row_axis = thread_axis("threadIdx.y" if along else "threadIdx.x", rows)
        self.threads = [lane_axis, row_axis]
        return RowLanes(lane_axis, lanes, row_axis.var, rows, along)

    def _start(self, m: AxisMap, at: RegisterPoint) -> Expr:
        return self.base[m.name] + m.local(self.row_lane[m.name], at.chunk[m.name])

    def _row_coordinates(self, at: RegisterPoint) -> dict[str, Expr]:
        """Return clamped row coordinates: rows beyond the end repeat the last row and are not written."""
        env = {}
        for m in self.rows:
            start = self._start(m, at)
            start = tirx.min(start, int32_literal(m.extent - m.vector)) if m.padded else start
            env[m.name] = start + at.offset[m.name]
        return env

    def _inside(self, at: RegisterPoint) -> list[Expr]:
        return [self._start(m, at) + at.offset[m.name] < m.extent for m in self.rows if m.padded]

    def _column_maps(self, s: RowStage) -> tuple[AxisMap, ...]:
        """Return the maps of a stage's columns: the anchor's maps if aligned, else all lanes on the last axis."""
        if s.aligned and len(s.columns) == len(self.columns):
            by_name = {m.name: m for m in self.columns}
            return tuple(by_name[c] for c in s.columns)
        extents = s.stage.extents
        return tuple(
            AxisMap(c, extents[c], self.lanes.count if c == s.columns[-1] else 1, 1, interleaved=True)
            for c in s.columns
        )

    def _column_start_function(self, maps: Sequence[AxisMap], tile: RowTile) -> Callable[[str, Expr], Expr]:
        parts = unravel_index(self.lanes.lane, [m.threads for m in maps])
        lanes = {m.name: (m, p) for m, p in zip(maps, parts, strict=True)}

        def start(axis: str, chunk: Expr) -> Expr:
            m, lane = lanes[axis]
            return tile.base[axis] + m.local(lane, chunk)

        return start

    def _element_loops(
        self,
        maps: Sequence[AxisMap],
        tile: RowTile,
        body: Callable[[RegisterPoint, dict[str, Expr]], Stmt],
        vector: str | None,
    ) -> Stmt:
        """Return loops over the elements of a tile of rows and columns; the body gets all coordinates."""
        start, extents = self._column_start_function(maps, tile), {m.name: m.extent for m in maps}

        def point(at: RegisterPoint) -> Stmt:
            env = self._row_coordinates(at)
            env = {**env, **self._columns(maps, start, at, env)}
            return body(at, env) if vector else if_all(self._conditions_in_row(at, env), body(at, env))

        everything = (*maps, *self.rows)
        return register_point_loops(everything, tile, lambda a, c: start(a, c) < extents[a], point, vector=vector)

    def _columns(
        self, maps: Sequence[AxisMap], start: Callable[[str, Expr], Expr], at: RegisterPoint, rows: dict[str, Expr]
    ) -> dict[str, Expr]:
        found = {m.name: start(m.name, at.chunk[m.name]) + at.offset[m.name] for m in maps}
        return self.shifted.columns(found, maps, rows) if self.shifted else found

    def _conditions_in_row(self, at: RegisterPoint, env: dict[str, Expr]) -> list[Expr]:
        return self.shifted.inside(at, env) if self.shifted else []

    def write(self, stages: Sequence[Stage] | None = None) -> Stmt:
        """Return the kernel that runs the whole expression, or only ``stages``, in order."""
        todo = [s for s in self._row_stages(stages) if s.stage.combiner is not None or not s.columns
                or s.stage.name in self.ctx.expr.outputs]  # fmt: skip
        body: list[Stmt] = []
        if stages is None and all(m.steps == 1 for m in self.columns):
            body += self._load_kept_inputs()
            self.shared = shared_values(self.ctx.expr)
        for n, s in enumerate(todo):
            shared = any(s.stage.name in {ld.tensor for ld in x.stage.loads} for x in todo[n + 1 :])
            body.append(
                self._compute_stage_over_columns(s)
                if s.stage.combiner is None and s.columns
                else self._compute_stage_of_one_per_row(s, shared)
            )
        known = (self.held.buffers, self.results, self.once.buffers, self.again.buffers)
        buffers = [*(f.buffer for f in self.kept.values()), *(b for each in known for b in each.values())]
        return kernel_under_thread_axes(
            [self.block, *self.threads], allocate_buffers_around(buffers, sequence_of(body))
        )

    def write_kernel_of_parts(self, s: Stage, target: Buffer) -> Stmt:
        """Return the kernel that writes the result of each part of a reduction to ``target[part, ...]``."""
        self.partial = target
        return self.write([s])

    def _row_stages(self, stages: Sequence[Stage] | None) -> list[RowStage]:
        if stages is None:
            return list(row_stages(self.ctx.expr))
        rows = {m.name for m in self.rows}
        own = {a.name for a in self.anchor.axes}
        found = []
        for s in stages:
            columns = tuple(a.name for a in s.axes if a.name not in rows)
            found.append(RowStage(s, columns, set(columns) <= own and len(columns) == len(self.columns)))
        return found

    def _tile_of_whole_columns(self) -> RowTile:
        padded, slack = (m.name for m in self.columns if m.padded), (m.name for m in self.columns if m.slack)
        return RowTile({m.name: int32_literal(0) for m in self.columns}, frozenset(padded), frozenset(slack))

    def _load_kept_inputs(self) -> list[Stmt]:
        """Load everything that several stages read before anything is computed."""
        found = register_tiles_of_loads(
            self.ctx, loads_kept_in_registers(self.ctx.expr), (*self.rows, *self.columns), "kept", self.shift
        )
        self.kept = {f.load: f for f in found}
        return [self._load_fragments(found, self.columns, self._tile_of_whole_columns())] if found else []

    def _load_fragments(
        self, found: Sequence[RegisterTile], maps: Sequence[AxisMap], tile: RowTile, new: frozenset[Load] = frozenset()
    ) -> Stmt:
        """Load the fragments of one tile; load held fragments that are not ``new`` from the scratchpad."""
        start, extents = self._column_start_function(maps, tile), {m.name: m.extent for m in maps}
        nowhere = {m.name: int32_literal(0) for m in self.rows}

        def one(f: RegisterTile) -> Stmt:
            mine = [m for m in maps if m in f.maps]
            both = (*mine, *(m for m in self.rows if m in f.maps))

            def point(at: RegisterPoint) -> Stmt:
                env = self._row_coordinates(RegisterPoint({**nowhere, **at.chunk}, {**nowhere, **at.offset}))
                if f.load in self.held.buffers and f.load not in new:
                    return self.held.move(f, maps, tile, at, leave=False)
                env = {**env, **self._columns(mine, start, at, env)}
                fill = f.fill(self.ctx, env, at)
                if f.vector_axis is None:
                    fill = if_all(self._conditions_in_row(at, env), fill)
                elif self.shifted is not None:
                    fill = self.shifted.chunk(at, env, fill, lambda e: f.load_one_element(self.ctx, env, at, e))
                leave = [self.held.move(f, maps, tile, at, leave=True)] if f.load in self.held.buffers else []
                return sequence_of([fill, *leave])

            return register_point_loops(both, tile, lambda a, c: start(a, c) < extents[a], point, vector=f.vector_axis)

        return sequence_of([one(f) for f in found])

    def _unkept_fragments(self, s: Stage, maps: Sequence[AxisMap]) -> list[RegisterTile]:
        """Return registers for those of a stage's unkept loads that depend on its columns."""
        names = {m.name for m in maps}
        wanted = [
            ld for ld in s.loads
            if ld not in self.kept and not ld.guard and ld.tensor not in self.results
            and self.ctx.is_in_global_memory(ld.tensor)
            and any(a in names for i in ld.index for a in i.axes)
        ]  # fmt: skip
        return register_tiles_of_loads(self.ctx, wanted, (*self.rows, *maps), "vec", self.shift)

    def _body_and_readers(
        self, body: Scalar, found: Sequence[RegisterTile], at: RegisterPoint
    ) -> tuple[Scalar, dict[str, Reader]]:
        """Return ``body`` with fragments and known values as scalars, and the readers of these scalars at one point."""
        index = register_index_of_point(self.rows, at)
        readers = {name: reader_of_one_register(b, index) for name, b in self.results.items()}
        for known in (self.again, self.once):
            body, more = known.read(body, at)
            readers |= more
        every = [*(f for ld, f in self.kept.items() if ld in loads(body)), *found]
        readers |= {f.name: reader_of_one_register(f.buffer, f.index(at)) for f in every}
        return replace_loads_by_names(body, {f.load: f.name for f in every}), self.ctx.readers(readers)

    def _compute_row_values(self, values: Sequence[Scalar]) -> list[Stmt]:
        """Compute values that do not depend on any column once per row, before the loops over columns."""
        todo = self.once.new(values)

        def point(at: RegisterPoint) -> Stmt:
            return sequence_of([self.once.set(v, self._value(v, (), at, self._row_coordinates(at)), at) for v in todo])

        body = [register_tile_loops(self.rows, point)] if todo else []
        self.once.ready.update(todo)
        return body

    def _value(self, body: Scalar, found: Sequence[RegisterTile], at: RegisterPoint, env: dict[str, Expr]) -> Expr:
        scalar, readers = self._body_and_readers(body, found, at)
        return emit_scalar(scalar, env, readers)

    def _compute_stage_of_one_per_row(self, s: RowStage, shared: bool) -> Stmt:
        stage = s.stage
        dtype = stage.acc_dtype if stage.combiner is not None else compute_dtype(stage.output.dtype)
        result = declare_buffer(f"row_{len(self.results)}", (count_register_elements(self.rows),), dtype, "local")
        if stage.combiner is not None:
            body = [self._reduce_stage(s, result, shared)]
        else:

            def point(at: RegisterPoint) -> Stmt:
                value = self._value(stage.body, (), at, self._row_coordinates(at)).astype(dtype)
                return store(result, value, register_index_of_point(self.rows, at))

            body = [register_tile_loops(self.rows, point)]
        self.results[stage.name] = result
        if self.partial is not None or stage.name in self.ctx.expr.outputs or stage.name in self.ctx.buffers:
            body.append(self._store_rows(stage, result))
        return sequence_of(body)

    def _store_rows(self, s: Stage, result: Buffer) -> Stmt:
        target = self.partial if self.partial is not None else self.ctx.buffers[s.name]
        prefix = [self.part.index] if self.part is not None else []
        lane = [self.lanes.lane.equal(0)] if self.lanes.count > 1 else []
        vector = next((m for m in self.rows if StoredResults.of(s).vector(m.name, m.extent, m.vector) > 1), None)

        def point(at: RegisterPoint) -> Stmt:
            env = {m.name: self._start(m, at) + at.offset[m.name] for m in self.rows}
            index = register_index_of_point(self.rows, at)
            if vector is None:
                where = [*prefix, *(emit_index(i, env) for i in s.store)]
                write = store(target, convert_to_output_dtype(load(result, index), s), *where)
            else:
                stride = count_register_elements(self.rows[self.rows.index(vector) + 1 :])
                value = lambda v: convert_to_output_dtype(load(result, index + v * stride), s)  # noqa: E731
                places = index_of_neighbour(s.store, env, vector.name, prefix)
                write = store_in_vectors(target, places, value, vector.vector)
            return if_all([*lane, *self._inside(at)], write)

        return register_tile_loops(self.rows, point, vector=vector.name if vector else None)

    def _reduce_stage(self, s: RowStage, result: Buffer, shared: bool) -> Stmt:
        stage, combiner, maps = s.stage, s.stage.combiner or "sum", self._column_maps(s)
        neutral, size = constant(COMBINERS[combiner].neutral, stage.acc_dtype), count_register_elements(self.rows)
        init = loop("i", size, lambda i: store(result, neutral, i), unroll=True)
        found = self._unkept_fragments(stage, maps)
        new = self.held.hold(found, maps)
        form = row_form(self.ctx.expr, stage, s.columns)
        once, inside = self._compute_row_values(form.row), set(walk_scalar_tree(form.body))
        leave = self.again.new([v for v in self.shared if v in inside])

        def step(tile: RowTile) -> Stmt:
            def update(at: RegisterPoint, env: dict[str, Expr]) -> Stmt:
                self.again.ready -= set(leave)
                left = [self.again.set(v, self._value(v, found, at, env), at) for v in leave]
                self.again.ready |= set(leave)
                value = self._value(form.body, found, at, env).astype(stage.acc_dtype)
                index = register_index_of_point(self.rows, at)
                return sequence_of(
                    [*left, store(result, emit_combine_step(combiner, load(result, index), value), index)]
                )

            body = [self._load_fragments(found, maps, tile, new)] if found else []
            body.append(self._element_loops(maps, tile, update, None))
            return sequence_of(body)

        body = [*once, init, loops_over_tiles(maps, step, self.part)]
        if self.lanes.count > 1:
            function = lambda x, y: emit_combine_step(combiner, x, y)  # noqa: E731
            body.append(self.lanes.combine(result, size, function, everyone=shared))
        return allocate_buffers_around([f.buffer for f in found], sequence_of(body))

    def _compute_stage_over_columns(self, s: RowStage) -> Stmt:
        stage, maps = s.stage, self._column_maps(s)
        target = self.ctx.buffers[stage.name]
        found = self._unkept_fragments(stage, maps)
        new = self.held.hold(found, maps)
        vector = next((m for m in (*maps, *self.rows) if m.vector > 1), None)
        width = widest_vector_of_access(stage.store, stage.output, vector, self.shift)
        form = row_form(self.ctx.expr, stage, s.columns)
        once = self._compute_row_values(form.row)

        def step(tile: RowTile) -> Stmt:
            def point(at: RegisterPoint, env: dict[str, Expr]) -> Stmt:
                where = {**env, **{m.name: self._start(m, at) + at.offset[m.name] for m in self.rows}}

                def value(v: Expr) -> Expr:
                    assert vector is not None
                    here = RegisterPoint(at.chunk, {**at.offset, vector.name: v})
                    there = {**env, vector.name: env[vector.name] + v}
                    return convert_to_output_dtype(self._value(form.body, found, here, there), stage)

                if width > 1 and vector is not None:
                    places = index_of_neighbour(stage.store, where, vector.name)
                    there = provably_aligned_positions(places, target, width) if vector.slack else places
                    write = store_in_vectors(target, there, value, vector.vector, width)
                    if vector.slack and self.shifted is not None:
                        write = self.shifted.chunk(at, env, write, lambda e: store(target, value(e), *places(e)))
                    return if_all(self._inside(at), write)
                one = convert_to_output_dtype(self._value(form.body, found, at, env), stage)
                return if_all(self._inside(at), store(target, one, *(emit_index(i, where) for i in stage.store)))

            body = [self._load_fragments(found, maps, tile, new)] if found else []
            body.append(self._element_loops(maps, tile, point, vector.name if width > 1 and vector else None))
            return sequence_of(body)

        return allocate_buffers_around([f.buffer for f in found], sequence_of([*once, loops_over_tiles(maps, step)]))
