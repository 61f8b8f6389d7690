"""Template for streaming kernels, which compute each output element once, without a reduction.

A thread loads all vectors of its tile before it stores the first vector, so that as many bytes are in flight as the
tile holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType

from roller.expr import Load, Scalar, Stage
from roller.te.emit_tvm_expressions import emit_index, emit_scalar
from roller.templates.gpu.common.stored_results import StoredResults, axes_in_store_order
from roller.templates.gpu.emit.axis_map import AxisMap, RegisterPoint, axis_map, register_tile_loops, with_whole_vectors
from roller.templates.gpu.emit.kernel_tensor_context import (
    KernelContext,
    convert_to_output_dtype,
    replace_loads_by_names,
)
from roller.templates.gpu.emit.load_into_register_tiles import (
    RegisterTile,
    index_of_neighbour,
    reader_of_one_register,
    register_tiles_of_loads,
    store_in_vectors,
)
from roller.templates.gpu.emit.staged_tiles import TileDomain, emit_tile_copy, lay_out_staged_tile
from roller.templates.gpu.emit.tir_statements import (
    Expr,
    Stmt,
    allocate_buffers_around,
    block_barrier,
    if_all,
    kernel_under_thread_axes,
    sequence_of,
    store,
    thread_axis,
    unravel_index,
)
from roller.tile import RProgram
from roller.tile.staged_tile_layout import is_read_from_scratchpad

#: Number of threads per block if the program has no tile for a stage (the smaller stages of a fallback).
_THREADS = 256


def streaming_kernel(
    ctx: KernelContext, s: Stage, maps: Sequence[AxisMap], staged: Mapping[str, int] = MappingProxyType({})
) -> Stmt:
    """Return the kernel of an element-wise stage; ``staged`` maps transposed inputs to their rows' padding."""
    return _StreamKernel(ctx, s, [with_whole_vectors(m) for m in maps], staged).kernel()


class _StreamKernel:
    """State of one streaming kernel while it is written."""

    def __init__(self, ctx: KernelContext, s: Stage, maps: Sequence[AxisMap], staged: Mapping[str, int]) -> None:
        self.ctx, self.stage, self.maps = ctx, s, maps
        self.block = thread_axis("blockIdx.x", math.prod(m.steps for m in maps))
        self.thread = thread_axis("threadIdx.x", math.prod(m.threads for m in maps))
        self.blocks = unravel_index(self.block.var, [m.steps for m in maps])
        self.threads = unravel_index(self.thread.var, [m.threads for m in maps])
        self.vector = next((m for m in maps if StoredResults.of(s).vector(m.name, m.extent, m.vector) > 1), None)
        self.base = {m.name: b * m.tile for m, b in zip(maps, self.blocks, strict=True)}
        self.domain = TileDomain(
            {m.name: m.extent for m in maps}, {m.name: m.tile for m in maps}, {m.name for m in maps if m.differs}
        )
        self.tiles = [
            lay_out_staged_tile(ctx, s, ld, self.domain, staged[ld.tensor], f"tile{n}")
            for n, ld in enumerate(x for x in s.loads if is_read_from_scratchpad(x.tensor, x.index, staged))
        ]
        prefix = ctx.prefix("tile")
        self.apart = {t.load: f"{prefix}{n}" for n, t in enumerate(self.tiles)}
        wanted = [ld for ld in s.loads if ld not in self.apart and self._varies_in_memory(ld)]
        self.found = register_tiles_of_loads(ctx, wanted, maps, "vec")

    def kernel(self) -> Stmt:
        """Return the kernel, which copies tiles, fetches all vectors, and then stores results."""
        threads = math.prod(m.threads for m in self.maps)
        copies = [emit_tile_copy(self.ctx, t, self.domain, self.base, self.thread.var, threads) for t in self.tiles]
        ready = [*copies, block_barrier()] if copies else []
        write = register_tile_loops(
            self.maps, self._compute_and_store_point, vector=self.vector.name if self.vector else None
        )
        buffers = [*(t.target for t in self.tiles), *(f.buffer for f in self.found)]
        body = sequence_of([*ready, *(self._fetch(f) for f in self.found), write])
        return kernel_under_thread_axes([self.block, self.thread], allocate_buffers_around(buffers, body))

    def _varies_in_memory(self, ld: Load) -> bool:
        return self.ctx.is_in_global_memory(ld.tensor) and not ld.guard and any(i.axes for i in ld.index)

    @cached_property
    def _stage_body_with_named_loads(self) -> Scalar:
        """Body of the stage, with names in place of the loads that are fetched or staged."""
        return replace_loads_by_names(self.stage.body, {**self.apart, **{f.load: f.name for f in self.found}})

    def _place(self, at: RegisterPoint, only: Sequence[AxisMap]) -> tuple[dict[str, Expr], list[Expr]]:
        """Return a register point's coordinates along ``only``, and the conditions under which they exist."""
        env = {
            m.name: b * m.tile + m.local(t, at.chunk[m.name]) + at.offset[m.name]
            for m, b, t in zip(self.maps, self.blocks, self.threads, strict=True)
            if m in only
        }
        return env, [env[m.name] < m.extent for m in only if m.padded]

    def _fetch(self, f: RegisterTile) -> Stmt:
        """Fill the registers of a load."""

        def one(at: RegisterPoint) -> Stmt:
            env, inside = self._place(at, f.maps)
            return if_all(inside, f.fill(self.ctx, env, at))

        return register_tile_loops(f.maps, one, vector=f.vector_axis)

    def _compute_and_store_point(self, at: RegisterPoint) -> Stmt:
        """Compute and store one element, or one vector of neighbours."""
        env, inside = self._place(at, self.maps)
        store_at, target = self.stage.store, self.ctx.buffers[self.stage.name]
        vector = self.vector
        if vector is None:
            return if_all(inside, store(target, self._value(at, env), *(emit_index(i, env) for i in store_at)))

        def lane(v: Expr) -> Expr:
            here = RegisterPoint(at.chunk, {**at.offset, vector.name: v})
            return self._value(here, {**env, vector.name: env[vector.name] + v})

        return if_all(
            inside, store_in_vectors(target, index_of_neighbour(store_at, env, vector.name), lane, vector.vector)
        )

    def _value(self, at: RegisterPoint, env: Mapping[str, Expr]) -> Expr:
        """Return the element at ``env``, whose operands are in registers at ``at``."""
        local = {f.name: reader_of_one_register(f.buffer, f.index(at)) for f in self.found}
        inside_tile = {a: x - self.base[a] for a, x in env.items()}
        local |= {self.apart[t.load]: reader_of_one_register(t.target, t.offset(inside_tile)) for t in self.tiles}
        return convert_to_output_dtype(
            emit_scalar(self._stage_body_with_named_loads, env, self.ctx.readers(local)), self.stage
        )


def kernels(ctx: KernelContext, program: RProgram, stages: Sequence[Stage]) -> list[Stmt]:
    """Return one kernel per output."""
    return [stream_kernel_of_stage(ctx, s, program) for s in stages if s.name in ctx.expr.outputs]


def stream_kernel_of_stage(ctx: KernelContext, s: Stage, program: RProgram) -> Stmt:
    """Return an element-wise stage's kernel; it follows the program if an element-wise anchor has the same axes."""
    order = axes_in_store_order(s)
    anchor = ctx.expr.anchor
    if {a.name: a.extent for a in order} == {a.name: a.extent for a in anchor.spatial_axes} and anchor.combiner is None:
        padding = dict(program.storage_padding)
        staged = {t: padding.get(t, 0) for t in program.staged}
        return streaming_kernel(ctx, s, [axis_map(program, a) for a in order], staged)
    last, varying = len(order) - 1, program.open_axes
    return streaming_kernel(
        ctx,
        s,
        [
            AxisMap(a.name, a.extent, _THREADS if n == last else 1, 1, differs=a.name in varying)
            for n, a in enumerate(order)
        ],
    )
