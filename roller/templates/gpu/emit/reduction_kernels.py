"""Kernels for a reduction: one, or two if the reduction is split over blocks."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Protocol

from roller.expr import COMBINERS, REDUCTION, Axis, Load, Stage, Tensor, axis_index
from roller.expr.split_commonly_divided_axes import unique_axis_name
from roller.te.emit_tvm_expressions import constant, emit_combine_step, emit_index, emit_scalar
from roller.templates.gpu.common.stored_results import StoredResults, axes_in_store_order, fits_one_kernel
from roller.templates.gpu.emit.axis_map import AxisMap
from roller.templates.gpu.emit.kernel_tensor_context import KernelContext, convert_to_output_dtype, promote_narrow_float
from roller.templates.gpu.emit.tir_statements import (
    Buffer,
    Expr,
    Stmt,
    VaryingCount,
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
from roller.templates.gpu.rows.emit import RowKernel
from roller.tile import RProgram
from roller.tile.combining_kernel_sizes import (
    COMBINING_THREADS,
    UNROLLED_PARTS,
    parts_loaded_at_once,
    threads_per_combined_result,
)

#: Number of threads per block of the second kernel if it has one thread per result.
_THREADS = 256


class SteppedKernel(Protocol):
    """A kernel that processes its reduction in steps and may compute only one part of it."""

    part: Expr

    def __init__(self, ctx: KernelContext, stage: Stage, program: RProgram) -> None: ...

    def kernel(self, result: Stage, target: Buffer, prefix: tuple[Expr, ...] = ()) -> Stmt: ...  # noqa: D102


def kernels_in_reduction_steps(
    ctx: KernelContext, program: RProgram, stages: Sequence[Stage], template: type[SteppedKernel]
) -> list[Stmt] | None:
    """Return the kernels for a single reduction or a whole expression, or ``None`` if it needs further kernels."""
    if len(stages) == 1:
        return tiled_kernels(ctx, stages[0], None, program, template)
    if not fits_one_kernel(ctx.expr):
        return None
    return tiled_kernels(ctx, ctx.expr.anchor, ctx.expr.epilogue, program, template)


def tiled_kernels(
    ctx: KernelContext, stage: Stage, epilogue: Stage | None, program: RProgram, template: type[SteppedKernel]
) -> list[Stmt]:
    """Return the kernels of a tiled reduction stage and its optional element-wise epilogue."""
    # A split reduction writes partial results to a workspace ``(split_k, *spatial extents)``, and a second kernel sums
    # them.
    result = epilogue or stage
    if program.split_k == 1:
        return [template(ctx, stage, program).kernel(result, ctx.buffers[result.name])]
    order = axes_in_store_order(stage)
    shape = (program.split_k, *(a.extent for a in order))
    partial = Tensor(unused_name(ctx, "partial"), shape, stage.acc_dtype)
    target = ctx.workspace(partial)
    part = StoredResults.of_split_part(stage)
    flat = Stage(part.tensor, stage.axes, part.index, stage.body, stage.combiner, stage.acc_dtype)
    t = template(ctx, flat, program)
    return [t.kernel(flat, target, (t.part,)), _combining_kernel(ctx, stage, result, partial, order, program.open_axes)]


def _combining_kernel(
    ctx: KernelContext, stage: Stage, result: Stage, partial: Tensor, order: Sequence[Axis], open_axes: Collection[str]
) -> Stmt:
    """Return the second kernel of a split reduction: it adds the parts in a fixed order and applies the epilogue."""
    if partial.shape[0] > UNROLLED_PARTS:  # several threads per element, combined in a tree
        shared = shared_combining_kernel(ctx, stage, partial, order)
        return shared.write([shared.anchor, *([] if result is stage else [result])])
    threads = _THREADS
    total = math.prod(a.extent for a in order)
    block, thread = thread_axis("blockIdx.x", -(-total // threads)), thread_axis("threadIdx.x", threads)
    flat = block.var * threads + thread.var
    env = dict(
        zip(
            (a.name for a in order),
            unravel_index(flat, [VaryingCount.of(a.extent, a.name in open_axes) for a in order]),
            strict=True,
        )
    )
    acc = declare_buffer("acc", (1,), stage.acc_dtype, "local")
    source = ctx.buffers[partial.name]
    combiner = stage.combiner or "sum"

    def add(part: Expr) -> Stmt:
        value = load(source, part, *(env[a.name] for a in order))
        return store(acc, emit_combine_step(combiner, load(acc, int32_literal(0)), value), int32_literal(0))

    init = store(acc, constant(COMBINERS[combiner].neutral, stage.acc_dtype), int32_literal(0))
    total_value = convert_to_output_dtype(load(acc, int32_literal(0)), stage)
    if result is stage:
        value = total_value
    else:
        readers = ctx.readers({stage.name: lambda *_: promote_narrow_float(total_value)})
        value = convert_to_output_dtype(emit_scalar(result.body, env, readers), result)
    write = store(ctx.buffers[result.name], value, *(emit_index(i, env) for i in result.store))
    body = sequence_of([init, loop("part", partial.shape[0], add, unroll=True), write])
    inside = [flat < total] if total % threads or any(a.name in open_axes for a in order) else []
    return kernel_under_thread_axes((block, thread), allocate_buffers_around([acc], if_all(inside, body)))


def shared_combining_kernel(ctx: KernelContext, s: Stage, partial: Tensor, order: Sequence[Axis]) -> RowKernel:
    """Return the template for a kernel in which several threads share the parts of each result."""
    part = Axis(unique_axis_name("part", {a.name for a in s.axes}), partial.shape[0], REDUCTION)
    load_part = Load(partial.name, (axis_index(part.name), *(axis_index(a.name) for a in order)))
    total = replace(s, axes=(*s.spatial_axes, part), body=load_part)
    threads = [1] * len(order)
    if order:
        threads[-1] = min(COMBINING_THREADS, 1 << (order[-1].extent - 1).bit_length())
    lanes = threads_per_combined_result(part.extent, threads[-1] if order else 1)
    return RowKernel(
        ctx, total, [AxisMap(a.name, a.extent, t, 1) for a, t in zip(order, threads, strict=True)],
        [AxisMap(part.name, part.extent, lanes, parts_loaded_at_once(part.extent, lanes), interleaved=True)],
    )  # fmt: skip


def unused_name(ctx: KernelContext, name: str) -> str:
    """Return ``name``, numbered if a tensor or buffer of the kernel has this name already."""
    known = {*ctx.expr.tensors, *ctx.buffers}
    n = 0
    while f"{name}{n or ''}" in known:
        n += 1
    return f"{name}{n or ''}"
