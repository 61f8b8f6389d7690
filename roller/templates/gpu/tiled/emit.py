"""Template for the tiled reduction: scratchpad tiles, register tiles, a fused epilogue, and split reductions.

In every step of the reduction, all threads of a block copy the staged tiles, and then each thread multiplies register
fragments into its accumulators; the epilogue runs on the accumulators.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from roller.expr import COMBINERS, Load, Stage
from roller.te.compat import tirx
from roller.te.emit_tvm_expressions import constant, emit_bounds, emit_combine_step, emit_index, emit_scalar
from roller.templates.gpu.common.stored_results import StoredResults, axes_in_store_order
from roller.templates.gpu.emit.axis_map import (
    AxisMap,
    RegisterPoint,
    axis_map,
    block_coordinates,
    count_register_elements,
    register_index_of_point,
    register_tile_loops,
    vector_loop,
)
from roller.templates.gpu.emit.device_functions import bind_start_address
from roller.templates.gpu.emit.kernel_tensor_context import (
    KernelContext,
    Reader,
    compute_dtype,
    convert_to_output_dtype,
    promote_narrow_float,
    replace_loads_by_names,
)
from roller.templates.gpu.emit.padding_mask_analysis import padding_is_neutral
from roller.templates.gpu.emit.reduction_kernels import kernels_in_reduction_steps
from roller.templates.gpu.emit.staged_tiles import (
    StagedTile,
    TileDomain,
    emit_tile_copy,
    lay_out_staged_tile,
    place_in_scratchpad,
)
from roller.templates.gpu.emit.tir_statements import (
    UNROLL_BUDGET,
    Buffer,
    Expr,
    Stmt,
    VaryingCount,
    allocate_buffers_around,
    declare_buffer,
    dtype_name,
    guarded_value,
    if_all,
    int32_literal,
    kernel_under_thread_axes,
    load,
    loop,
    nested_loops,
    sequence_of,
    store,
    thread_axis,
    unravel_index,
)
from roller.templates.gpu.tiled.emit_operands import OperandFragment, points_per_read, read_vector, vector_axis_of_tile
from roller.templates.gpu.tiled.emit_pipeline import ReductionPipeline
from roller.tile import RProgram
from roller.tile.staged_tile_layout import is_read_from_scratchpad

#: Number of words in the widest scratchpad read.
_VECTOR_WORDS = 4


@dataclass(frozen=True)
class TileView:
    """Location of a staged tile: ``source``, starting at ``offset``, relative to the thread's position ``lane``."""

    source: Buffer
    offset: Expr
    lane: Mapping[str, Expr]


@dataclass(frozen=True)
class ReductionPoint:
    """A reduction point: the current tile's start, the position in the tile along each axis, and views of the slots."""

    base: Mapping[str, Expr]
    inner: Mapping[str, Expr]
    views: Mapping[Load, TileView]


@dataclass
class TiledKernel:
    """State of one tiled kernel while it is written."""

    ctx: KernelContext
    stage: Stage
    program: RProgram

    def __post_init__(self) -> None:
        p, s = self.program, self.stage
        self.maps: tuple[AxisMap, ...] = tuple(axis_map(p, a) for a in axes_in_store_order(s))
        self.by_name = {m.name: m for m in self.maps}
        self.domain = TileDomain.of(s, p)
        self.threads = math.prod(m.threads for m in self.maps)
        self.block = thread_axis("blockIdx.x", p.split_k * math.prod(m.steps for m in self.maps))
        self.thread = thread_axis("threadIdx.x", self.threads)
        tiles = math.prod(m.steps for m in self.maps)
        self.part = tirx.floordiv(self.block.var, tiles) if p.split_k > 1 else int32_literal(0)
        within = tirx.floormod(self.block.var, tiles) if p.split_k > 1 else self.block.var
        blocks = block_coordinates(within, [m.steps for m in self.maps], p.raster)
        self.base = {m.name: b * m.tile for m, b in zip(self.maps, blocks, strict=True)}
        lanes = unravel_index(self.thread.var, [m.threads for m in self.maps])
        self.lane = {m.name: t for m, t in zip(self.maps, lanes, strict=True)}
        self.acc = declare_buffer("acc", (count_register_elements(self.maps),), s.acc_dtype, "local")
        self.tiles = self._lay_out_tiles()
        self.fragments = [self._operand_fragment(n, ld) for n, ld in enumerate(s.loads)]
        self.mask = self._axes_to_mask()

    def _lay_out_tiles(self) -> dict[Load, StagedTile]:
        padding = dict(self.program.storage_padding)
        out = {}
        for n, ld in enumerate(self.stage.loads):
            if is_read_from_scratchpad(ld.tensor, ld.index, self.program.staged):
                pad = padding.get(ld.tensor, 0)
                out[ld] = lay_out_staged_tile(
                    self.ctx, self.stage, ld, self.domain, pad, f"tile{n}", self.program.stages
                )
        return place_in_scratchpad(out)

    def _operand_fragment(self, n: int, ld: Load) -> OperandFragment:
        """Return the registers of one load: one element per register point of the axes on which it depends."""
        moving = {a for i in (*ld.index, *(b.index for b in ld.guard)) for a in i.axes}
        maps = tuple(m for m in self.maps if m.name in moving)
        dtype = compute_dtype(self.ctx.expr.tensors[ld.tensor].dtype)
        last = self.stage.reduction_axes[-1].name
        depth = points_per_read(self.tiles.get(ld), last, self._points_per_read(last), self.domain)
        return OperandFragment.of(ld, f"frag{n}", maps, depth, dtype)

    def _points_per_read(self, axis: str) -> int:
        """Return the number of points of the innermost reduction axis that one scratchpad read may deliver."""
        return math.gcd(self.domain.tile[axis], _VECTOR_WORDS)

    def _axes_to_mask(self) -> list[str]:
        """Return the reduction axes whose padding must be masked in the body."""
        neutral = COMBINERS[self.stage.combiner or "sum"].neutral
        out = []
        for a in self.stage.reduction_axes:
            if not self.domain.overhangs(a.name):
                continue
            fixed = {ld: t.fill for ld, t in self.tiles.items() if t.masked(a.name, self.domain)}
            # An unstaged load is guarded against every padded axis on which it depends.
            fixed.update({ld: 0.0 for ld in self.stage.loads if ld not in self.tiles and ld.outside == 0.0})
            if not padding_is_neutral(self.stage, a.name, fixed, neutral):
                out.append(a.name)
        return out

    def local(self, m: AxisMap, at: RegisterPoint) -> Expr:
        """Return the position of a register point within the block tile."""
        return m.local(self.lane[m.name], at.chunk[m.name]) + at.offset[m.name]

    # ---- the reduction

    def accumulate(self) -> Stmt:
        """Return the statements that initialize the accumulators and run all of this block's reduction steps."""
        neutral = constant(COMBINERS[self.stage.combiner or "sum"].neutral, self.stage.acc_dtype)
        init = register_tile_loops(
            self.maps, lambda at: store(self.acc, neutral, register_index_of_point(self.maps, at))
        )
        body = self._reduction_loops()
        shared = {t.target.name: t.target for t in self.tiles.values()}
        return allocate_buffers_around([*shared.values(), self.acc], sequence_of([init, body]))

    def _reduction_loops(self) -> Stmt:
        axes = self.stage.reduction_axes
        steps = [self.domain.steps(a.name) for a in axes]
        names = [f"{a.name}_step" for a in axes]
        pipelined = self.program.stages > 1 and self.tiles
        if self.program.split_k == 1 and not pipelined:
            return nested_loops(
                list(zip(names, steps, strict=True)),
                lambda env: self._copy_and_multiply_step({a.name: env[n] for a, n in zip(axes, names, strict=True)}),
            )
        total = self.domain.count_tiles_along_axes(axes)
        differs = isinstance(total, VaryingCount)
        share = VaryingCount.of(-(-total // self.program.split_k), differs)
        count: int | Expr = share
        if total % self.program.split_k or (differs and self.program.split_k > 1):
            count = tirx.max(tirx.min(int32_literal(share), int32_literal(total) - self.part * share), int32_literal(0))

        def outer(s: Expr) -> dict[str, Expr]:
            flat = s if self.program.split_k == 1 else self.part * share + s
            return {a.name: o for a, o in zip(axes, unravel_index(flat, steps), strict=True)}

        if not pipelined:
            return loop("step", count, lambda s: self._copy_and_multiply_step(outer(s)))
        tiles, stages = tuple(self.tiles.values()), self.program.stages
        return ReductionPipeline(
            self.ctx, tiles, self.domain, self.thread.var, self.threads, stages, count,
            lambda s: self._start(outer(s)), lambda s, slot: self._multiply_slot(self._start(outer(s)), slot),
        ).statement()  # fmt: skip

    def _start(self, outer: Mapping[str, Expr]) -> dict[str, Expr]:
        """Return the start of the current tile along each axis."""
        return {**self.base, **{a: o * self.domain.tile[a] for a, o in outer.items()}}

    def _copy_and_multiply_step(self, outer: Mapping[str, Expr]) -> Stmt:
        base = self._start(outer)
        copies = [
            emit_tile_copy(self.ctx, t, self.domain, base, self.thread.var, self.threads) for t in self.tiles.values()
        ]
        views = {ld: TileView(t.target, int32_literal(t.first), self.lane) for ld, t in self.tiles.items()}
        return sequence_of([*copies, self._step_loops(base, views)])

    def _multiply_slot(self, base: Mapping[str, Expr], slot: Expr) -> Stmt:
        """Return the arithmetic of a step on a slot of the tiles, after computing the thread's own position."""
        nowhere = {m.name: int32_literal(0) for m in self.maps}
        lanes = {m.name: m.local(self.lane[m.name], int32_literal(0)) for m in self.maps}
        here = {**{a: int32_literal(0) for a in self.stage.extents}, **lanes}
        names: list[Stmt] = []
        views = {}
        mixed = len({t.target.name for t in self.tiles.values() if t.target.scope() == "shared.dyn"}) > 1
        for n, (ld, t) in enumerate(self.tiles.items()):
            # On targets without bfloat16, TVM makes its tiles float32, and a pointer's type would be wrong.
            if mixed or (dtype_name(t.target) == "bfloat16" and not self.ctx.async_copies):
                views[ld] = TileView(t.target, t.slot_start(slot), self.lane)
                continue
            statement, start_here = bind_start_address(f"at{n}", t.target, t.slot_start(slot) + t.offset(here))
            names.append(statement)
            # The buffer starts at the thread's position, which includes the constants of the tile's indices.
            views[ld] = TileView(start_here, int32_literal(-t.constant), nowhere)
        return sequence_of([*names, self._step_loops(base, views)])

    def _step_loops(self, base: Mapping[str, Expr], views: Mapping[Load, TileView]) -> Stmt:
        """Return loops over one step of the reduction, with the innermost loops unrolled within the budget."""
        budget = max(1, UNROLL_BUDGET // count_register_elements(self.maps))
        plan: list[tuple[str, int, bool]] = []
        depth = max(f.depth for f in self.fragments)
        for a in reversed(self.stage.reduction_axes):
            extent = self.domain.tile[a.name]
            # The innermost points are unrolled at least as far as one vector read of the scratchpad reaches.
            width = 1 if plan else self._points_per_read(a.name)
            inner = max(d for d in range(width, extent + 1, width) if extent % d == 0 and d <= max(budget, width))
            budget = budget // inner if inner == extent else 0
            plan.insert(0, (a.name, inner if plan else inner // depth, True))
            if inner < extent:
                plan.insert(0, (a.name, extent // inner, False))
            budget = max(budget, 1)

        def at(level: int, inner: dict[str, Expr]) -> Stmt:
            if level == len(plan):
                return self._accumulate_points(ReductionPoint(base, inner, views), plan[-1][0], depth)
            name, extent, unrolled = plan[level]
            prefix = f"{name}_{'u' if unrolled else 'i'}"
            return loop(
                prefix,
                extent,
                lambda v: at(level + 1, {**inner, name: inner[name] * extent + v if name in inner else v}),
                unroll=unrolled,
            )

        return at(0, {})

    def _accumulate_points(self, p: ReductionPoint, axis: str, depth: int) -> Stmt:
        """Combine ``depth`` successive points of the innermost reduction axis; ``p`` counts groups of them."""
        if depth == 1:
            return self._multiply(p, int32_literal(0))
        first = p.inner[axis] * depth
        deep = [f for f in self.fragments if f.depth > 1]
        fills = [self._load_fragment(f, replace(p, inner={**p.inner, axis: first})) for f in deep]
        body = loop(
            f"{axis}_v",
            depth,
            lambda v: self._multiply(replace(p, inner={**p.inner, axis: first + v}), v),
            unroll=True,
        )
        return allocate_buffers_around([f.target for f in deep], sequence_of([*fills, body]))

    def _multiply(self, p: ReductionPoint, ahead: Expr) -> Stmt:
        """Combine one reduction point into the accumulators; ``ahead`` is its index in fragments of several points."""
        single = [f for f in self.fragments if f.depth == 1]
        fills = [self._load_fragment(f, p) for f in single]
        body = replace_loads_by_names(self.stage.body, {f.load: f.name for f in self.fragments})
        env_reduction = {a: p.base[a] + v for a, v in p.inner.items()}

        def point(at: RegisterPoint) -> Stmt:
            readers: dict[str, Reader] = {
                f.name: _element_reader(
                    f.target, register_index_of_point(f.maps, at) * f.depth + (ahead if f.depth > 1 else 0)
                )
                for f in self.fragments
            }
            env = {**{m.name: self.base[m.name] + self.local(m, at) for m in self.maps}, **env_reduction}
            value = emit_scalar(body, env, readers).astype(self.stage.acc_dtype)
            neutral = constant(COMBINERS[self.stage.combiner or "sum"].neutral, self.stage.acc_dtype)
            value = guarded_value([env[a] < self.domain.real[a] for a in self.mask], value, neutral)
            index = register_index_of_point(self.maps, at)
            return store(self.acc, emit_combine_step(self.stage.combiner or "sum", load(self.acc, index), value), index)

        return allocate_buffers_around(
            [f.target for f in single], sequence_of([*fills, register_tile_loops(self.maps, point)])
        )

    def _load_fragment(self, f: OperandFragment, p: ReductionPoint) -> Stmt:
        tile, maps, frag = self.tiles.get(f.load), f.maps, f.target
        if tile is None:
            return register_tile_loops(maps, lambda at: self._in_place(f, at, p))
        staged = tile
        vector = None if f.depth > 1 else vector_axis_of_tile(tile, maps, self.domain)
        view = p.views[f.load]
        # The vector need not be the last of maps: neighbours in the tile may not be adjacent in the fragment.
        stride = count_register_elements(maps[maps.index(vector) + 1 :]) if vector else 1
        width = vector.vector if vector else f.depth

        def fill(at: RegisterPoint) -> Stmt:
            place = {m.name: m.local(view.lane[m.name], at.chunk[m.name]) + at.offset[m.name] for m in maps}
            offset = (
                staged.offset({**{a: int32_literal(0) for a in self.stage.extents}, **p.inner, **place}) + view.offset
            )
            index = register_index_of_point(maps, at) * f.depth
            if width == 1:
                return store(frag, promote_narrow_float(load(view.source, offset)), index)
            return read_vector(
                width, lambda v: load(view.source, offset + v), dtype_name(staged.target),
                lambda v, value: store(frag, value, index + v * stride),
            )  # fmt: skip

        return register_tile_loops(maps, fill, vector=vector.name if vector else None)

    def _in_place(self, f: OperandFragment, at: RegisterPoint, p: ReductionPoint) -> Stmt:
        """Read one element of an unstaged input, guarded if padding could reach outside the tensor."""
        ld, maps, frag = f.load, f.maps, f.target
        env = {**p.base, **{a: p.base[a] + v for a, v in p.inner.items()}}
        env.update({m.name: self.base[m.name] + self.local(m, at) for m in maps})
        moving = {a for i in (*ld.index, *(b.index for b in ld.guard)) for a in i.axes}
        conditions = [
            env[a] < self.domain.real[a] for a in self.stage.extents if a in moving and self.domain.overhangs(a)
        ]
        conditions += emit_bounds(ld.guard, env)
        value = self.ctx.readers()[ld.tensor](*(emit_index(i, env) for i in ld.index))
        outside = constant(ld.outside, compute_dtype(self.ctx.expr.tensors[ld.tensor].dtype))
        return store(frag, guarded_value(conditions, value, outside), register_index_of_point(maps, at))

    # ---- the result

    def kernel(self, result: Stage, target: Buffer, prefix: tuple[Expr, ...] = ()) -> Stmt:
        """Return the whole kernel; see :meth:`write`."""
        return kernel_under_thread_axes(
            (self.block, self.thread), sequence_of([self.accumulate(), self.write(result, target, prefix)])
        )

    def write(self, result: Stage, target: Buffer, prefix: tuple[Expr, ...] = ()) -> Stmt:
        """Write the accumulators to ``target`` at leading indices ``prefix``, through the epilogue if there is one."""
        results = StoredResults.of(result)
        vector = next((m for m in self.maps if results.vector(m.name, m.extent, m.vector) > 1), None)
        width = vector.vector if vector else 1
        out = declare_buffer("out", (width,), dtype_name(target), "local")

        def value(at: RegisterPoint) -> Expr:
            acc = convert_to_output_dtype(load(self.acc, register_index_of_point(self.maps, at)), self.stage)
            if result is self.stage:
                return acc
            readers = self.ctx.readers({self.stage.name: lambda *_: promote_narrow_float(acc)})
            return convert_to_output_dtype(emit_scalar(result.body, self._output_coordinates(at), readers), result)

        def one(at: RegisterPoint) -> Stmt:
            env = self._output_coordinates(at)
            where = [*prefix, *(emit_index(i, env) for i in result.store)]
            inside = [env[m.name] < m.extent for m in self.maps if m.padded]
            if vector is None:
                return if_all(inside, store(target, value(at), *where))

            def element(v: Expr) -> Stmt:
                return store(out, value(RegisterPoint(at.chunk, {**at.offset, vector.name: v})), v)

            compute = loop("e", width, element, unroll=True)
            write = vector_loop(width, lambda v: store(target, load(out, v), *where[:-1], where[-1] + v))
            return allocate_buffers_around([out], if_all(inside, sequence_of([compute, write])))

        return register_tile_loops(self.maps, one, vector=vector.name if vector else None)

    def _output_coordinates(self, at: RegisterPoint) -> dict[str, Expr]:
        return {m.name: self.base[m.name] + self.local(m, at) for m in self.maps}


def _element_reader(frag: Buffer, index: Expr) -> Reader:
    return lambda: load(frag, index)


def kernels(ctx: KernelContext, program: RProgram, stages: Sequence[Stage]) -> list[Stmt] | None:
    """Return the kernels of a tiled program, or ``None``; see :func:`kernels_in_reduction_steps`."""
    return kernels_in_reduction_steps(ctx, program, stages, TiledKernel)
