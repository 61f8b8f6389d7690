"""Kernels of a tiled reduction: one, or two where the reduction is split over blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from roller.codegen.gpu.access import store_order
from roller.codegen.gpu.context import Context, as_output, promote
from roller.codegen.gpu.mapping import AxisMap, axis_map
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
from roller.codegen.gpu.rows import Rows
from roller.codegen.gpu.tiled import Tiled
from roller.codegen.gpu.warp_groups import WarpGroups
from roller.errors import BuildError
from roller.expr import COMBINERS, REDUCTION, Axis, Load, Stage, Tensor, axis_index
from roller.expr.splitting import fresh_axis
from roller.te.emit import combine, constant, emit_index, emit_scalar
from roller.tile import RProgram
from roller.tile.parts import COMBINING_THREADS, UNROLLED_PARTS, combining_lanes, parts_loaded
from roller.tile.rows import row_stages

#: Threads of a block of the second kernel with a thread per result.
_THREADS = 256


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
    return (WarpGroups if program.fragment.reads_scratchpad else Matrix)(ctx, stage, program)


def _combine_parts(ctx: Context, stage: Stage, result: Stage, partial: Tensor, order: Sequence[Axis]) -> Stmt:
    """Second kernel of a split reduction: adds the parts of every element in a fixed order, then the epilogue.

    One thread per element, or several that each add some of many parts and then meet in a tree.
    """
    if partial.shape[0] > UNROLLED_PARTS:
        shared = _shared_sum(ctx, stage, partial, order)
        return shared.write([shared.anchor, *([] if result is stage else [result])])
    threads = _THREADS
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


def split_row_kernels(ctx: Context, program: RProgram) -> list[Stmt]:
    """Return the two kernels of a row reduction that is split over blocks: its parts, and their sum in a fixed order.

    Raises
    ------
    BuildError
        Where a stage reads the row once more: it would have to wait for all blocks.
    """
    first, *rest = row_stages(ctx.expr)
    if first.stage.combiner is None or any(s.columns for s in rest):
        raise BuildError(f"{ctx.expr.name}: a split reduction expected to be the only one, got {len(rest) + 1} stages.")
    s, order = first.stage, store_order(first.stage)
    shape = (program.split_k, *(a.extent for a in order))
    partial = Tensor(_fresh(ctx, "partial"), shape, s.acc_dtype)
    target = ctx.workspace(partial)
    where = tuple(axis_index(a.name) for a in order)
    parts = replace(s, output=Tensor(s.name, shape[1:], s.acc_dtype), store=where)
    columns = [axis_map(program, a, interleaved=True) for a in s.reduction_axes]
    maps = [axis_map(program, a) for a in order]
    second = _shared_sum(ctx, s, partial, order)
    stages = [second.anchor, *(x.stage for x in rest)]
    return [Rows(ctx, parts, maps, columns, program.split_k).write_partial(parts, target), second.write(stages)]


def _shared_sum(ctx: Context, s: Stage, partial: Tensor, order: Sequence[Axis]) -> Rows:
    """Return the template of a kernel in which several threads share the parts of every result."""
    part = Axis(fresh_axis("part", {a.name for a in s.axes}), partial.shape[0], REDUCTION)
    load_part = Load(partial.name, (axis_index(part.name), *(axis_index(a.name) for a in order)))
    total = replace(s, axes=(*s.spatial_axes, part), body=load_part)
    threads = [1] * len(order)
    if order:
        threads[-1] = min(COMBINING_THREADS, 1 << (order[-1].extent - 1).bit_length())
    lanes = combining_lanes(part.extent, threads[-1] if order else 1)
    return Rows(
        ctx, total, [AxisMap(a.name, a.extent, t, 1) for a, t in zip(order, threads, strict=True)],
        [AxisMap(part.name, part.extent, lanes, parts_loaded(part.extent, lanes), interleaved=True)],
    )  # fmt: skip


def _fresh(ctx: Context, name: str) -> str:
    known = {*ctx.expr.tensors, *ctx.buffers}
    n = 0
    while f"{name}{n or ''}" in known:
        n += 1
    return f"{name}{n or ''}"
