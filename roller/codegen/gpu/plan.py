"""Choose the template of every stage, in the order the kernels run.

One kernel is the rule: a tiled reduction with its epilogue, all stages of a row expression, one
element-wise output. What fits none of these runs stage by stage, reduction results in workspaces.
"""

from __future__ import annotations

from dataclasses import replace

from roller.codegen.gpu.access import store_order
from roller.codegen.gpu.context import Context
from roller.codegen.gpu.mapping import AxisMap, axis_map
from roller.codegen.gpu.nest import Stmt
from roller.codegen.gpu.reduction import split_row_kernels, tiled_kernels
from roller.codegen.gpu.rows import Rows
from roller.codegen.gpu.streaming import streaming_kernel
from roller.codegen.gpu.window import window_kernel
from roller.codegen.gpu.winograd import winograd_kernels
from roller.errors import BuildError
from roller.expr import Index, Stage, TensorExpr
from roller.tile import RProgram
from roller.tile.rows import contiguous_axis
from roller.tile.winograd import STRUCTURES as WINOGRAD

#: Threads of a block where the program has no tile for a stage (the smaller stages of a fallback).
_THREADS = 256
_LANES = 128


def kernels(ctx: Context, program: RProgram) -> list[Stmt]:
    """Return the kernels of a program, in launch order.

    Raises
    ------
    BuildError
        Where the structure does not fit the expression.
    """
    expr = ctx.expr
    anchor, structure = expr.anchor, program.structure
    if (structure == "streaming") != (anchor.combiner is None):
        kind = "no reduction" if anchor.combiner is None else f"the reduction '{anchor.name}'"
        raise BuildError(f"{expr.name}: structure '{structure}' does not fit an expression with {kind}.")
    if structure == "streaming":
        return [_streaming(ctx, s, program) for s in expr.stages if s.name in expr.outputs]
    alone = len(expr.stages) == 1 or (expr.epilogue is not None and expr.outputs == (expr.epilogue.name,))
    if structure in ("tiled", "matrix") and alone:
        return tiled_kernels(ctx, anchor, expr.epilogue, program)
    if structure == "window" and alone:
        return [window_kernel(ctx, anchor, expr.epilogue, program)]
    if structure in WINOGRAD:
        return winograd_kernels(ctx, program)
    if structure == "rows" and program.split_k > 1:
        return split_row_kernels(ctx, program)
    if structure == "rows" and rows_fuse(expr):
        return [_rows(ctx, anchor, program).write()]
    return _stage_by_stage(ctx, program)


def rows_fuse(expr: TensorExpr) -> bool:
    """Whether all stages run over the rows of the anchor, each row on its own."""
    rows = {a.name: a.extent for a in expr.anchor.spatial_axes}
    done: dict[str, Stage] = {}
    for s in expr.stages:
        mine = {a.name: a.extent for a in s.spatial_axes}
        if any(mine.get(a) != n for a, n in rows.items()) or (s.combiner is not None and mine != rows):
            return False
        for ld in s.loads:
            producer = done.get(ld.tensor)
            if producer is not None and not _same_row(producer, ld.index, rows, bool(ld.guard)):
                return False
        done[s.name] = s
    return True


def _same_row(producer: Stage, index: tuple[Index, ...], rows: dict[str, int], is_guarded: bool) -> bool:
    """Whether a load of ``producer`` stays within the reader's own row."""
    if is_guarded:
        return False
    for where, i in zip(producer.store, index, strict=True):
        if any(a in rows for a in where.axes) and where != i:
            return False
    return True


def _rows(ctx: Context, s: Stage, program: RProgram | None) -> Rows:
    order = store_order(s)
    if program is not None:
        rows = [axis_map(program, a) for a in order]
        return Rows(
            ctx, s, rows, [axis_map(program, a, interleaved=True) for a in s.reduction_axes], staged=program.staged
        )
    fast = contiguous_axis(s, ctx.expr.tensors)
    across = any(a.name == fast for a in s.reduction_axes)
    rows = [AxisMap(a.name, a.extent, _LANES if a.name == fast else 1, 1) for a in order]
    lanes = [AxisMap(a.name, a.extent, _LANES if across and a.name == fast else 1, 1) for a in s.reduction_axes]
    return Rows(ctx, s, rows, lanes)


def _streaming(ctx: Context, s: Stage, program: RProgram) -> Stmt:
    order = store_order(s)
    anchor = ctx.expr.anchor
    if {a.name: a.extent for a in order} == {a.name: a.extent for a in anchor.spatial_axes} and anchor.combiner is None:
        padding = dict(program.storage_padding)
        staged = {t: padding.get(t, 0) for t in program.staged}
        return streaming_kernel(ctx, s, [axis_map(program, a) for a in order], staged)
    last = len(order) - 1
    return streaming_kernel(
        ctx, s, [AxisMap(a.name, a.extent, _THREADS if n == last else 1, 1) for n, a in enumerate(order)]
    )


def _stage_by_stage(ctx: Context, program: RProgram) -> list[Stmt]:
    """One or two kernels per stage; the anchor runs by the program, the rest by default mappings.

    Raises
    ------
    BuildError
        Where the anchor's template places all barriers itself, and another reduction counts on TVM's.
    """
    expr, out = ctx.expr, []
    for s in expr.stages:
        if s.combiner is None:
            if s.name in expr.outputs:
                out.append(_streaming(ctx, s, program))
            continue
        if s.name not in ctx.buffers:
            ctx.workspace(s.output)
        own = program if s is expr.anchor else None
        if own is not None and program.structure in ("tiled", "matrix"):
            # The other kernels count on TVM's barriers.
            out += tiled_kernels(ctx, s, None, replace(program, stages=1))
        else:
            out.append(_rows(ctx, s, own).write([s]))
    if ctx.own_barriers and any(s.combiner is not None for s in expr.stages if s is not expr.anchor):
        raise BuildError(
            f"{expr.name}: expected one reduction beside a kernel that places its own barriers, got several. "
            "Use a fragment that does not read the scratchpad by itself, or another structure."
        )
    return out
