"""Kernels of row programs: one for all stages, two for a split reduction, or one for each single reduction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from roller.errors import BuildError
from roller.expr import Stage, Tensor, axis_index
from roller.templates.gpu.common.stored_results import axes_in_store_order
from roller.templates.gpu.emit.axis_map import AxisMap, axis_map
from roller.templates.gpu.emit.kernel_tensor_context import KernelContext
from roller.templates.gpu.emit.reduction_kernels import shared_combining_kernel, unused_name
from roller.templates.gpu.emit.tir_statements import Stmt
from roller.templates.gpu.rows.emit import RowKernel
from roller.tile import RProgram
from roller.tile.row_stages_and_shared_loads import most_contiguous_axis, row_stages, rows_are_independent

#: Number of lanes per row if the program has no tile for a stage.
_LANES = 128


def kernels(ctx: KernelContext, program: RProgram, stages: Sequence[Stage]) -> list[Stmt] | None:
    """Return the kernels for one reduction or for a whole expression, or ``None`` if its stages do not fuse."""
    if len(stages) < len(ctx.expr.stages):
        return [row_kernel_of_stage(ctx, s, program).write([s]) for s in stages]
    if program.split_k > 1:
        return split_row_kernels(ctx, program)
    return [row_kernel_of_stage(ctx, ctx.expr.anchor, program).write()] if rows_are_independent(ctx.expr) else None


def row_kernel_of_stage(ctx: KernelContext, s: Stage, program: RProgram | None) -> RowKernel:
    """Return the template for a stage, following the program or, without one, default mappings."""
    order = axes_in_store_order(s)
    if program is not None:
        rows = [axis_map(program, a) for a in order]
        return RowKernel(
            ctx, s, rows, [axis_map(program, a, interleaved=True) for a in s.reduction_axes], staged=program.staged
        )
    fast = most_contiguous_axis(s, ctx.expr.tensors)
    across = any(a.name == fast for a in s.reduction_axes)
    rows = [AxisMap(a.name, a.extent, _LANES if a.name == fast else 1, 1) for a in order]
    lanes = [AxisMap(a.name, a.extent, _LANES if across and a.name == fast else 1, 1) for a in s.reduction_axes]
    return RowKernel(ctx, s, rows, lanes)


def split_row_kernels(ctx: KernelContext, program: RProgram) -> list[Stmt]:
    """Return the two kernels of a row reduction split over blocks: for the parts, and for their sum in fixed order."""
    first, *rest = row_stages(ctx.expr)
    # A stage that reads the row again would have to wait for all blocks.
    if first.stage.combiner is None or any(s.columns for s in rest):
        raise BuildError(f"{ctx.expr.name}: a split reduction expected to be the only one, got {len(rest) + 1} stages.")
    s, order = first.stage, axes_in_store_order(first.stage)
    shape = (program.split_k, *(a.extent for a in order))
    partial = Tensor(unused_name(ctx, "partial"), shape, s.acc_dtype)
    target = ctx.workspace(partial)
    where = tuple(axis_index(a.name) for a in order)
    parts = replace(s, output=Tensor(s.name, shape[1:], s.acc_dtype), store=where)
    columns = [axis_map(program, a, interleaved=True) for a in s.reduction_axes]
    maps = [axis_map(program, a) for a in order]
    second = shared_combining_kernel(ctx, s, partial, order)
    stages = [second.anchor, *(x.stage for x in rest)]
    return [
        RowKernel(ctx, parts, maps, columns, program.split_k).write_kernel_of_parts(parts, target),
        second.write(stages),
    ]
