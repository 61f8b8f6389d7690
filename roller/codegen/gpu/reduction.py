"""Kernels of a tiled reduction: one, or two where the reduction is split over blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from roller.codegen.gpu.access import store_order
from roller.codegen.gpu.context import Context, as_output, promote
from roller.codegen.gpu.matrix import Matrix
from roller.codegen.gpu.nest import (
    Expr,
    Stmt,
    buffer,
    kernel,
    load,
    loop,
    num,
    seq,
    store,
    thread_axis,
    unravel,
    when,
    with_buffers,
)
from roller.codegen.gpu.tiled import Tiled
from roller.codegen.gpu.warp_groups import WarpGroups
from roller.expr import COMBINERS, Axis, Stage, Tensor, axis_index
from roller.te.emit import combine, constant, emit_index, emit_scalar
from roller.tile import RProgram


def tiled_kernels(ctx: Context, stage: Stage, epilogue: Stage | None, program: RProgram) -> list[Stmt]:
    """Return the kernels of a tiled reduction stage and its optional element-wise epilogue.

    One kernel, or two where the reduction is split over blocks: partial results go to a workspace
    ``(split_k, *spatial extents)`` that the second kernel sums in a fixed order.
    """
    result = epilogue or stage
    if program.split_k == 1:
        return [_template(ctx, stage, program).kernel(result, ctx.buffers[result.name])]
    order = store_order(stage)
    shape = (program.split_k, *(a.extent for a in order))
    partial = Tensor(_fresh(ctx, "partial"), shape, stage.acc_dtype)
    target = ctx.workspace(partial)
    flat = Stage(
        Tensor(stage.name, shape[1:], stage.acc_dtype), stage.axes, tuple(axis_index(a.name) for a in order),
        stage.body, stage.combiner, stage.acc_dtype,
    )  # fmt: skip
    t = _template(ctx, flat, program)
    return [t.kernel(flat, target, (t.part,)), _combine_parts(ctx, stage, result, partial, order)]


def _template(ctx: Context, stage: Stage, program: RProgram) -> Tiled | Matrix:
    if program.fragment is None:
        return Tiled(ctx, stage, program)
    return (WarpGroups if program.fragment.family == "wgmma" else Matrix)(ctx, stage, program)


def _combine_parts(ctx: Context, stage: Stage, result: Stage, partial: Tensor, order: Sequence[Axis]) -> Stmt:
    """Second kernel of a split reduction: one thread adds the parts of one element in order, then the epilogue."""
    threads = 256
    total = math.prod(a.extent for a in order)
    block, thread = thread_axis("blockIdx.x", -(-total // threads)), thread_axis("threadIdx.x", threads)
    flat = block.var * threads + thread.var
    env = dict(zip((a.name for a in order), unravel(flat, [a.extent for a in order]), strict=True))
    acc = buffer("acc", (1,), stage.acc_dtype, "local")
    source = ctx.buffers[partial.name]
    combiner = stage.combiner or "sum"

    def add(part: Expr) -> Stmt:
        value = load(source, part, *(env[a.name] for a in order))
        return store(acc, combine(combiner, load(acc, num(0)), value), num(0))

    init = store(acc, constant(COMBINERS[combiner], stage.acc_dtype), num(0))
    total_value = as_output(load(acc, num(0)), stage)
    if result is stage:
        value = total_value
    else:
        readers = ctx.readers({stage.name: lambda *_: promote(total_value)})
        value = as_output(emit_scalar(result.body, env, readers), result)
    write = store(ctx.buffers[result.name], value, *(emit_index(i, env) for i in result.store))
    body = seq([init, loop("part", partial.shape[0], add, unroll=True), write])
    inside = [flat < total] if total % threads else []
    return kernel((block, thread), with_buffers([acc], when(inside, body)))


def _fresh(ctx: Context, name: str) -> str:
    known = {*ctx.expr.tensors, *ctx.buffers}
    n = 0
    while f"{name}{n or ''}" in known:
        n += 1
    return f"{name}{n or ''}"
