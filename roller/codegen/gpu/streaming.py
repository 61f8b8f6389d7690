"""Template of streaming kernels: every element of an output once, no reduction."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from roller.codegen.gpu.access import vectorizable
from roller.codegen.gpu.context import Context, Reader, as_output, named_loads
from roller.codegen.gpu.mapping import AxisMap, Registers, register_points, vector_loop
from roller.codegen.gpu.nest import (
    Expr,
    Stmt,
    buffer,
    kernel,
    load,
    loop,
    seq,
    store,
    thread_axis,
    unravel,
    when,
    with_buffers,
)
from roller.codegen.gpu.rows import vector_reads
from roller.expr import Stage
from roller.te.emit import emit_index, emit_scalar


def streaming_kernel(ctx: Context, s: Stage, maps: Sequence[AxisMap]) -> Stmt:
    """Return the kernel of an element-wise stage.

    Parameters
    ----------
    ctx
        Tensors of the expression; element-wise producers are computed in place.
    s
        The stage; its output has a buffer.
    maps
        Maps of its axes, the one contiguous in the output last.
    """
    block = thread_axis("blockIdx.x", math.prod(m.steps for m in maps))
    thread = thread_axis("threadIdx.x", math.prod(m.threads for m in maps))
    blocks = unravel(block.var, [m.steps for m in maps])
    threads = unravel(thread.var, [m.threads for m in maps])
    target = ctx.buffers[s.name]
    vector = next((m for m in maps if vectorizable(s.store, s.output, m.name, m.extent, m.vector)), None)
    inputs = {t.name: t for t in ctx.expr.inputs}
    wide = tuple(
        ld
        for ld in s.loads
        if vector is not None
        and ld.tensor in inputs
        and not ld.guard
        and vectorizable(ld.index, inputs[ld.tensor], vector.name, vector.extent, vector.vector)
    )
    body = named_loads(s.body, {ld: f"vec{n}" for n, ld in enumerate(wide)})

    def value(env: Mapping[str, Expr], frags: Mapping[str, Reader]) -> Expr:
        return as_output(emit_scalar(body, env, ctx.readers(frags)), s)

    def point(at: Registers) -> Stmt:
        env = {
            m.name: b * m.tile + m.local(t, at.chunk[m.name]) + at.offset[m.name]
            for m, b, t in zip(maps, blocks, threads, strict=True)
        }
        inside = [env[m.name] < m.extent for m in maps if m.padded]
        where = [emit_index(i, env) for i in s.store]
        if vector is None:
            return when(inside, store(target, value(env, {}), *where))
        width = vector.vector
        out = buffer("out", (width,), s.output.dtype, "local")

        def compute(frags: Callable[[Expr], dict[str, Reader]]) -> Stmt:

            def element(v: Expr) -> Stmt:
                return store(out, value({**env, vector.name: env[vector.name] + v}, frags(v)), v)

            write = vector_loop(width, lambda v: store(target, load(out, v), *where[:-1], where[-1] + v))
            return with_buffers([out], seq([loop("e", width, element, unroll=True), write]))

        return when(inside, vector_reads(ctx, wide, env, width, compute))

    return kernel([block, thread], register_points(maps, point, vector=vector.name if vector else None))
