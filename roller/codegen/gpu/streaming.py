"""Template of streaming kernels: every element of an output once, no reduction.

A thread loads all vectors of its tile before it stores the first: as many bytes are in flight as the tile holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from roller.codegen.gpu.access import vectorizable
from roller.codegen.gpu.context import Context, as_output, named_loads
from roller.codegen.gpu.fragments import Fragment, element_reader, fragments, vector_store
from roller.codegen.gpu.mapping import AxisMap, Registers, register_points, whole_vectors
from roller.codegen.gpu.nest import (
    Expr,
    Stmt,
    barrier,
    kernel,
    num,
    seq,
    store,
    thread_axis,
    unravel,
    when,
    with_buffers,
)
from roller.codegen.gpu.staging import Domain, copy_tile, stage_tile
from roller.expr import Stage
from roller.te.emit import emit_index, emit_scalar


def streaming_kernel(
    ctx: Context, s: Stage, maps: Sequence[AxisMap], staged: Mapping[str, int] = MappingProxyType({})
) -> Stmt:
    """Return the kernel of an element-wise stage.

    Parameters
    ----------
    ctx
        Tensors of the expression; element-wise producers are computed in place.
    s
        The stage; its output has a buffer.
    maps
        Maps of its axes, the one contiguous in the output last.
    staged
        Inputs that come through the scratchpad, because neighbouring threads would find their elements far apart
        (transposes), with the storage padding of their tiles' rows (elements).
    """
    maps = [whole_vectors(m) for m in maps]
    block = thread_axis("blockIdx.x", math.prod(m.steps for m in maps))
    thread = thread_axis("threadIdx.x", math.prod(m.threads for m in maps))
    blocks = unravel(block.var, [m.steps for m in maps])
    threads = unravel(thread.var, [m.threads for m in maps])
    target = ctx.buffers[s.name]
    vector = next((m for m in maps if vectorizable(s.store, s.output, m.name, m.extent, m.vector)), None)
    block_threads = math.prod(m.threads for m in maps)
    base = {m.name: b * m.tile for m, b in zip(maps, blocks, strict=True)}
    domain = Domain({m.name: m.extent for m in maps}, {m.name: m.tile for m in maps})
    tiles = [
        stage_tile(ctx, s, ld, domain, staged[ld.tensor], f"tile{n}")
        for n, ld in enumerate(x for x in s.loads if x.tensor in staged)
    ]
    copies = [copy_tile(ctx, t, domain, base, thread.var, block_threads) for t in tiles]
    apart = {t.load: f"tile{n}" for n, t in enumerate(tiles)}
    wanted = [
        ld
        for ld in s.loads
        if ld not in apart and ctx.in_memory(ld.tensor) and not ld.guard and any(i.axes for i in ld.index)
    ]
    found = fragments(ctx, wanted, maps, "vec")
    body = named_loads(s.body, {**apart, **{f.load: f.name for f in found}})

    def place(at: Registers, *, only: Sequence[AxisMap] = maps) -> tuple[dict[str, Expr], list[Expr]]:
        """Coordinates of a register point along ``only``, and the conditions under which they exist."""
        env = {
            m.name: b * m.tile + m.local(t, at.chunk[m.name]) + at.offset[m.name]
            for m, b, t in zip(maps, blocks, threads, strict=True)
            if m in only
        }
        return env, [env[m.name] < m.extent for m in only if m.padded]

    def fetch(f: Fragment) -> Stmt:
        def one(at: Registers) -> Stmt:
            env, inside = place(at, only=f.maps)
            return when(inside, f.fill(ctx, env, at))

        return register_points(f.maps, one, vector=f.vector_axis)

    def point(at: Registers) -> Stmt:
        env, inside = place(at)
        where = [emit_index(i, env) for i in s.store]

        def value(v: Expr) -> Expr:
            here, there = at, env
            if vector is not None:
                here = Registers(at.chunk, {**at.offset, vector.name: v})
                there = {**env, vector.name: env[vector.name] + v}
            local = {f.name: element_reader(f.buffer, f.index(here)) for f in found}
            inside_tile = {a: x - base[a] for a, x in there.items()}
            local |= {apart[t.load]: element_reader(t.target, t.offset(inside_tile)) for t in tiles}
            return as_output(emit_scalar(body, there, ctx.readers(local)), s)

        if vector is None:
            return when(inside, store(target, value(num(0)), *where))
        return when(inside, vector_store(target, where, value, vector.vector))

    write = register_points(maps, point, vector=vector.name if vector else None)
    buffers = [*(t.target for t in tiles), *(f.buffer for f in found)]
    ready = [*copies, barrier()] if tiles else []
    return kernel([block, thread], with_buffers(buffers, seq([*ready, *(fetch(f) for f in found), write])))
