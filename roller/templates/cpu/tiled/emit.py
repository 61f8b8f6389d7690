"""Template for tiled reductions: packed operands, a register-blocked vector micro-kernel, and a fused epilogue.

Each iteration of the parallel loop is one task (the ``l2`` tile) of register tiles, with accumulators in vector
registers and the reduction innermost.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from roller.errors import BuildError
from roller.expr import COMBINERS, Load, Scalar, Stage, stride_between_neighbours, transform_scalar, walk_scalar_tree
from roller.te.compat import tirx
from roller.te.emit_tvm_expressions import Expr, constant, emit_combine_step, emit_index, emit_scalar
from roller.templates.cpu.decisions import BOX, IN_PLACE
from roller.templates.cpu.emit.axis_tiling_plans import (
    ReductionPlan,
    SpatialPlan,
    block_coordinate_name,
    block_counter_name,
    coordinate_within_task_name,
    plans_with_run_time_extents,
    power_of_two_below,
    program_decisions,
    reduction_plans,
    spatial_plans,
    task_tile_counter_name,
    tile_coordinate_name,
    tile_counter_name,
    tile_start_coordinate,
)
from roller.templates.cpu.emit.clipped_tap_loops import clipped_windows, first_tap_and_tap_count
from roller.templates.cpu.emit.prefetch_constant_panels import Hint
from roller.templates.cpu.emit.tir_loop_constructors import (
    Buffer,
    EmittedNests,
    LoopBuilder,
    Stmt,
    addressed_extents,
    allocate_buffer,
    computed_dtype,
    declare_buffer,
    element_reader,
    if_then,
    int32_index,
    read_element,
    sequence_of_statements,
    serialize_loops,
    smaller_extent,
    unravel_counter,
    write_element,
)  # fmt: skip
from roller.templates.cpu.tiled.emit_box_copy import emit_box_copy
from roller.templates.cpu.tiled.emit_load_staging_plans import BoxPlan, PanelPlan, plan_box, plan_panel
from roller.templates.cpu.tiled.emit_packing import emit_panel_packing
from roller.templates.cpu.tiled.emit_prefetch import emit_next_panel_prefetch
from roller.templates.cpu.tiled.emit_run_stores import emit_stores_by_runs
from roller.templates.cpu.tiled.register_tile_order import loop_order_with_fewest_registers
from roller.tile import RProgram
from roller.tile.geometry import access_of_load

_ACCUMULATOR = "@acc"
Env = dict[str, Any]


@dataclass
class TiledNest:
    """One lowering of a tiled program: the plans, the buffers and the pieces of the loop nest."""

    program: RProgram
    buffers: dict[str, Buffer]
    constants: frozenset[str] = frozenset()
    nest: LoopBuilder = field(default_factory=LoopBuilder)

    def __post_init__(self) -> None:
        expr, program = self.program.expr, self.program
        if len(expr.stages) > 1 and expr.epilogue is None:
            raise BuildError(
                f"{expr.name}: structure 'tiled' expected one reduction and an in-place epilogue, got "
                f"{len(expr.stages)} stages. Use structure 'rows'."
            )
        self.stage: Stage = expr.anchor
        if self.stage.combiner is None:
            raise BuildError(f"{expr.name}: structure 'tiled' expected a reduction. Use structure 'streaming'.")
        last = expr.epilogue or self.stage
        shape = addressed_extents(self.buffers[last.name], last.store)
        self.spatial = plans_with_run_time_extents(spatial_plans(program), last, shape)
        self.vector = next((s for s in self.spatial if s.lanes > 1), None)
        self.order = [s for s in self.spatial if s is not self.vector] + ([self.vector] if self.vector else [])
        self.reduction = reduction_plans(program)
        self.skipped = clipped_windows(program, self.spatial)
        self.panels: dict[str, tuple[PanelPlan, Buffer]] = {}
        self.halos: dict[str, tuple[BoxPlan, Buffer]] = {}
        self.body = self._stage_loads()
        shape = tuple(s.tile for s in self.order) or (1,)
        self.acc = declare_buffer("acc", shape, self.stage.acc_dtype, scope="local")
        self.spill = declare_buffer("spill", shape, self.stage.acc_dtype, scope="local")
        self.chunked = any(r.chunks > 1 for r in self.reduction)
        tiles = tuple(s.per_task for s in self.spatial)
        self.partial = declare_buffer("partial", (*tiles, *shape), self.stage.acc_dtype)

    @functools.cached_property
    def tensors(self) -> dict[str, Callable[..., Expr]]:
        """Readers of the micro-kernel's loads, keyed by name: arguments, panels and boxes."""
        staged = {n: b for n, (_, b) in (*self.panels.items(), *self.halos.items())}
        return {n: element_reader(b) for n, b in {**self.buffers, **staged}.items()}

    def _stage_loads(self) -> Scalar:
        """Plan the packing of each staged load and return the body with these loads redirected."""
        redirected: dict[Load, Load] = {}
        decisions = program_decisions(self.program)
        vector = self.vector.name if self.vector else None
        for n, ld in enumerate(self.stage.loads):
            access = access_of_load(self.program.expr, ld)
            how = decisions.staging(access)
            if how == IN_PLACE:
                redirected[ld] = replace(ld, guard=()) if decisions.segments else ld  # no tile crosses a guard
                continue
            name = f"{ld.tensor}_packed{n}"
            while name in self.buffers:
                name += "_"
            dtype = self.program.expr.tensors[ld.tensor].dtype
            if how == BOX:
                phases, pad = decisions.phases(access), dict(self.program.storage_padding).get(ld.tensor, 0)
                halo = plan_box(ld, self.stage, self.spatial, vector, phases, pad, self.program.open_axes)
                lead = (*halo.extents[:-1], halo.phases) if halo.phases > 1 else halo.extents[:-1]
                self.halos[name] = halo, declare_buffer(name, (*lead, halo.extents[-1]), dtype)
                redirected[ld] = Load(name, halo.local)
            else:
                panel = plan_panel(ld, self.spatial, self.reduction, bool(decisions.upfront(access)[0]))
                shape, stored = panel.shape or (1,), decisions.panel_keeps_stored_dtype(access)
                self.panels[name] = panel, declare_buffer(name, shape, dtype, computed=not stored)
                redirected[ld] = Load(name, panel.index)
        return transform_scalar(self.stage.body, lambda n: redirected.get(n, n) if isinstance(n, Load) else n)

    def function_body(self) -> Stmt:
        """Return the whole nest for a call: packing before the tasks, then the parallel tasks."""
        upfront = [(p, b) for p, b in self.panels.values() if p.upfront and p.load.tensor not in self.constants]
        tasks = [s.tasks for s in self.spatial]
        count = math.prod(tasks)
        main = self.nest.loop(count, lambda t: self._task(unravel_counter(t, tasks)), "parallel", "task")
        pack = self._emit_panel_fills(upfront)
        if isinstance(count, int) and count == 1:  # one task wakes no worker, and packs alone
            pack = [serialize_loops(p) for p in pack]
        return sequence_of_statements(*(allocate_buffer(b) for _, b in upfront), *pack, main)

    def _emit_panel_fills(self, panels: Sequence[tuple[PanelPlan, Buffer]]) -> list[Stmt]:
        """Return the statements that fill panels with all tiles."""
        zero = {s.name: int32_index(0) for s in self.spatial}
        every = {s.name: s.tiles for s in self.spatial}
        return [self._packed(p, b, zero, every) for p, b in panels]

    def _packed(self, panel: PanelPlan, buffer: Buffer, first: Env, count: Env) -> Stmt:
        """Return the statement that fills a panel with ``count`` tiles, starting at tile ``first``."""
        return emit_panel_packing(self.nest, panel, self.buffers[panel.load.tensor], buffer, first, count)

    def nests(self) -> EmittedNests:
        """Return the nest for a call, and the nest that packs the constants before the first call."""
        ahead = [(p, b) for p, b in self.panels.values() if p.load.tensor in self.constants]
        if not ahead:
            return EmittedNests(self.function_body())
        others = [ld for s in self.program.expr.stages if s is not self.stage for ld in s.loads]
        here = [n for n in walk_scalar_tree(self.body) if isinstance(n, Load)]
        raw = {ld.tensor for ld in (*here, *others, *(h.load for h, _ in self.halos.values()))}
        unread = frozenset(p.load.tensor for p, _ in ahead) - raw
        return EmittedNests(
            self.function_body(),
            tuple(b for _, b in ahead),
            sequence_of_statements(*self._emit_panel_fills(ahead)),
            unread,
        )

    def _task(self, task: tuple[Expr, ...]) -> Stmt:
        first = {s.name: t * s.per_task for s, t in zip(self.spatial, task, strict=True)}
        count = {
            s.name: s.per_task if s.tasks_are_equal else smaller_extent(s.per_task, s.tiles - first[s.name])
            for s in self.spatial
        }
        start = {s.name: tile_start_coordinate(s, first[s.name]) for s in self.spatial}
        mine = [(p, b) for p, b in self.panels.values() if not p.upfront]
        pack = [self._packed(p, b, first, count) for p, b in mine]
        halo = [emit_box_copy(self.nest, p, self.buffers[p.load.tensor], b, start) for p, b in self.halos.values()]
        held = [b for _, b in (*mine, *self.halos.values())] + ([self.partial] if self.chunked else [])
        tiles = self._chunks(lambda chunk: self._tiles(first, count, start, chunk))
        return sequence_of_statements(*(allocate_buffer(b) for b in held), *pack, *halo, tiles)

    def _chunks(self, body: Callable[[Env], Stmt]) -> Stmt:
        """Loop over the chunks of each reduction axis that has several."""
        chunked = [r for r in self.reduction if r.chunks > 1]
        return self.nest.grid(
            [r.chunks for r in chunked], lambda at: body({r.name: c for r, c in zip(chunked, at, strict=True)})
        )

    def _tiles(self, first: Env, count: Env, start: Env, chunk: Env) -> Stmt:
        """Loop over the register tiles of one task."""
        loops = self._axes_in_loop_order()

        def tile(at: tuple[Expr, ...]) -> Stmt:
            env: Env = {}
            for s, t in zip(loops, at, strict=True):
                begin = tile_start_coordinate(s, first[s.name] + t)
                env[task_tile_counter_name(s.name)], env[tile_counter_name(s.name)] = t, first[s.name] + t
                env[s.name], env[coordinate_within_task_name(s.name)] = begin, begin - start[s.name]
            return self._micro_kernel(env, chunk)

        return self.nest.grid([count[s.name] for s in loops], tile)

    def _axes_in_loop_order(self) -> list[SpatialPlan]:
        """Return the axes in the order of the loops over their register tiles."""
        names, plans = self.program.axis_names, {s.name: s for s in self.spatial}
        return [plans[names[a]] for a in program_decisions(self.program).loop_order[0].tolist()]

    def each(self, body: Callable[[tuple[Expr, ...]], Stmt], order: Sequence[int] | None = None) -> Stmt:
        """Run ``body`` on every element of the register tile; ``order`` permutes the loops over rows and vectors."""
        v, sizes = self.vector, self._register_tile_loop_sizes
        loops = range(len(sizes)) if order is None else order

        def element(at: tuple[Expr, ...]) -> Stmt:
            place = dict(zip(loops, at, strict=True))
            *rows, vectors = (place[n] for n in range(len(sizes)))
            if v is None:
                return body(tuple(rows))
            return self.nest.loop(v.lanes, lambda x: body((*rows, vectors * v.lanes + x)), "vector", "lane")

        return self.nest.grid([sizes[n] for n in loops], element, "unroll")

    @property
    def _register_tile_loop_sizes(self) -> list[int]:
        """Number of iterations of each loop over a register tile: rows, and vectors of a row (1 without vectors)."""
        v = self.vector
        return [*(s.tile for s in self.order if s is not v), 1 if v is None else v.tile // v.lanes]

    @functools.cached_property
    def _step_order(self) -> tuple[int, ...]:
        """Order of the loops over a register tile in a reduction step; the lanes of a vector are not a loop."""
        places = {
            named(s.name): n
            for n, s in enumerate(self.order)
            for named in (str, tile_coordinate_name, coordinate_within_task_name)
        }
        loads = [n for n in walk_scalar_tree(self.body) if isinstance(n, Load)]
        changes = [{places[a] for i in ld.index for a in i.axes if a in places} for ld in loads]
        return loop_order_with_fewest_registers(self._register_tile_loop_sizes, changes)

    def at(self, env: Env, inner: tuple[Expr, ...]) -> Env:
        """Extend ``env`` from the tile's origin to one of its elements."""
        out = dict(env)
        for s, x in zip(self.order, inner, strict=True):
            out[tile_coordinate_name(s.name)] = x
            out[s.name], out[coordinate_within_task_name(s.name)] = (
                env[s.name] + x,
                env[coordinate_within_task_name(s.name)] + x,
            )
        return out

    def _micro_kernel(self, env: Env, chunk: Env) -> Stmt:
        neutral = constant(COMBINERS[self.stage.combiner or "sum"].neutral, self.stage.acc_dtype)
        begin = self.each(lambda i: write_element(self.acc, neutral, *i))
        end = self._write_back(env)
        if self.chunked:
            place = tuple(env[task_tile_counter_name(s.name)] for s in self.spatial)
            resume = self.each(lambda i: write_element(self.acc, read_element(self.partial, *place, *i), *i))
            keep = self.each(
                lambda i: write_element(self.partial, read_element(self.acc, *(i or (int32_index(0),))), *place, *i)
            )
            first, last = self._ends(chunk)
            begin, end = if_then(first, begin, resume), if_then(last, end, keep)
        hints = self._hints(env)
        run = self._reduce(env, chunk, lambda at: sequence_of_statements(*(h(at) for h in hints), self._step(env, at)))
        return sequence_of_statements(allocate_buffer(self.acc), begin, run, end)

    def _step(self, env: Env, at: Env) -> Stmt:
        """Add one point of the reduction to every element of the register tile."""

        def element(inner: tuple[Expr, ...]) -> Stmt:
            index, value = inner or (int32_index(0),), self._value({**env, **at}, inner)
            return write_element(
                self.acc, emit_combine_step(self.stage.combiner or "sum", read_element(self.acc, *index), value), *index
            )

        return self.each(element, self._step_order)

    def _hints(self, env: Env) -> list[Hint]:
        """Return the functions that prefetch the next panels of constants while a register tile is computed."""
        constant = [(p, b) for p, b in self.panels.values() if p.load.tensor in self.constants]
        hints = (emit_next_panel_prefetch(p, b, self._axes_in_loop_order(), env) for p, b in constant)
        return [hint for hint in hints if hint is not None]

    def _ends(self, chunk: Env) -> tuple[Expr, Expr]:
        """Return whether a chunk is the first of its task, and whether it is the last."""
        first, last = zip(*(self._span(n) for n in chunk), strict=True)
        at = tuple(chunk.values())
        return tuple(tirx.all(*(c == x for c, x in zip(at, edge, strict=True))) for edge in (first, last))

    def _span(self, name: str) -> tuple[int | Expr, int | Expr]:
        """Return the first and the last chunk of a reduction axis in a task."""
        return 0, next(r for r in self.reduction if r.name == name).chunks - 1

    def _value(self, env: Env, inner: tuple[Expr, ...]) -> Expr:
        """Return the term of one reduction point for one element of the tile."""
        return emit_scalar(self.body, self.at(env, inner), self.tensors).astype(self.stage.acc_dtype)

    def _reduce(self, env: Env, chunk: Env, step: Callable[[Env], Stmt]) -> Stmt:
        """Loop over one chunk of the reduction axes, with blocks of the innermost axis outermost if there are any."""

        def span(r: ReductionPlan) -> tuple[Any, Any]:
            if r.name in self.skipped:
                return first_tap_and_tap_count(self.skipped[r.name], env)
            offset = chunk[r.name] * r.chunk if r.name in chunk else 0
            return offset, smaller_extent(r.chunk, r.extent - offset) if r.extent % r.chunk else r.chunk

        def axes(rest: tuple[ReductionPlan, ...], at: Env, inner: Callable[[Env], Stmt]) -> Stmt:
            if not rest:
                return inner(at)
            r, kind = rest[0], "unroll" if rest[0].unroll else "serial"
            first, size = span(r)
            return self.nest.loop(size, lambda k: axes(rest[1:], {**at, r.name: first + k}, inner), kind, "k")

        last = self.reduction[-1] if self.reduction else None
        if last is None or not last.block:
            return axes(self.reduction, {}, step)
        size = last.block

        def block(b: Expr) -> Stmt:
            length = size if last.extent % size == 0 else smaller_extent(size, last.extent - b * size)
            named = {block_counter_name(last.name): b}
            return axes(
                self.reduction[:-1], named,
                lambda at: self.nest.loop(
                    length, lambda k: step({**at, last.name: b * size + k, block_coordinate_name(last.name): k}),
                    "serial", "k"
                ),
            )  # fmt: skip

        return self.nest.loop(-(-last.extent // size), block, name="block")

    def _write_back(self, env: Env) -> Stmt:
        """Store the finished tile through the epilogue, vectorized if the output is contiguous."""
        last = self.program.expr.epilogue or self.stage
        out, v = self.buffers[last.name], self.vector
        contiguous = v is None or stride_between_neighbours(last.store, last.output.shape, v.name) == 1
        if v is None or (contiguous and not (isinstance(v.extent, int) and v.tile > v.extent)):
            return self.each(lambda i: self._store(last, out, self.at(env, i), self.acc, i))
        runs = emit_stores_by_runs(self, last, out, v, env)
        if runs is not None:
            return runs
        spill = self.each(lambda i: write_element(self.spill, read_element(self.acc, *i), *i))
        rows, length = [s.tile for s in self.order[:-1]], min(v.tile, v.extent) if isinstance(v.extent, int) else v.tile
        if contiguous:
            return sequence_of_statements(
                allocate_buffer(self.spill), spill, self._store_short_rows(env, rows, length, last, out)
            )
        sizes = [length, *rows]

        def element(i: tuple[Expr, ...]) -> Stmt:
            inner = (*i[1:], i[0])
            return self._store(last, out, self.at(env, inner), self.spill, inner)

        return sequence_of_statements(allocate_buffer(self.spill), spill, self.nest.grid(sizes, element))

    def _store_short_rows(self, env: Env, rows: list[int], length: int, last: Stage, out: Buffer) -> Stmt:
        """Store rows shorter than a vector from the spilled tile, in narrower vectors that overlap at the end."""
        width = power_of_two_below(length)

        def row(at: tuple[Expr, ...]) -> Stmt:
            def lanes(first: int) -> Stmt:
                def lane(x: Expr) -> Stmt:
                    inner = (*at, x + first)
                    return self._store(last, out, self.at(env, inner), self.spill, inner)

                return self.nest.loop(width, lane, "vector", "lane")

            return sequence_of_statements(*(lanes(min(first, length - width)) for first in range(0, length, width)))

        return self.nest.grid(rows, row)

    def _store(self, last: Stage, out: Buffer, env: Env, acc: Buffer, inner: tuple[Expr, ...]) -> Stmt:
        result = read_element(acc, *(inner or (int32_index(0),))).astype(computed_dtype(self.stage.output.dtype))
        value = result
        if last is not self.stage:
            tensors: dict[str, Callable[..., Expr]] = {n: element_reader(b) for n, b in self.buffers.items()}
            tensors[self.stage.name] = lambda *_: result
            value = emit_scalar(last.body, env, tensors)
        return write_element(out, value, *(emit_index(i, env) for i in last.store))


def emit_tiled_nests(program: RProgram, buffers: dict[str, Buffer]) -> EmittedNests:
    """Return the loop nests of a ``tiled`` program; a separate nest packs its constants."""
    return TiledNest(program, buffers, frozenset(program.constants)).nests()


def emit_tiled_body(program: RProgram, buffers: dict[str, Buffer]) -> Stmt:
    """Return the loop nest of a ``tiled`` program that packs all panels in every call."""
    return TiledNest(program, buffers).function_body()
