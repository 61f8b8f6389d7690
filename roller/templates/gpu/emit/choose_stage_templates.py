"""Chooses the template of each stage, in the order in which the kernels run.

Usually there is one kernel: a tiled reduction with its epilogue, all stages of a row expression, or one element-wise
output. Other expressions run stage by stage, with reduction results in workspaces.
"""

from __future__ import annotations

from dataclasses import replace

from roller.errors import BuildError
from roller.templates.common.template import Template
from roller.templates.gpu.emit.kernel_tensor_context import KernelContext
from roller.templates.gpu.emit.tir_statements import Stmt
from roller.templates.gpu.rows.emit_kernels import row_kernel_of_stage
from roller.templates.gpu.streaming.emit import stream_kernel_of_stage
from roller.templates.registry import template_writing
from roller.tile import RProgram


def write_kernels(ctx: KernelContext, program: RProgram) -> list[Stmt]:
    """Return the kernels of a program, in launch order."""
    expr = ctx.expr
    anchor, traits = expr.anchor, program.traits
    if traits.reduces == (anchor.combiner is None):
        kind = "no reduction" if anchor.combiner is None else f"the reduction '{anchor.name}'"
        raise BuildError(f"{expr.name}: structure '{program.structure}' does not fit an expression with {kind}.")
    template = template_writing(program.kind, program)
    found: list[Stmt] | None = template.emitted(ctx, program, expr.stages)
    return _write_stage_by_stage(ctx, program, template) if found is None else found


def _write_stage_by_stage(ctx: KernelContext, program: RProgram, template: Template) -> list[Stmt]:
    """Return one or two kernels per stage; only the anchor follows the program, and others use default mappings."""
    expr, out = ctx.expr, list[Stmt]()
    # A pipeline places its own barriers; another reduction relies on TVM's.
    single = sum(s.combiner is not None for s in expr.stages) == 1
    mine = program if single else replace(program, stages=1)
    for s in expr.stages:
        if s.combiner is None:
            if s.name in expr.outputs:
                out.append(stream_kernel_of_stage(ctx, s, program))
            continue
        if s.name not in ctx.buffers:
            ctx.workspace(s.output)
        own = template.emitted(ctx, mine, (s,)) if s is expr.anchor else None
        out += [row_kernel_of_stage(ctx, s, program if s is expr.anchor else None).write([s])] if own is None else own
    if ctx.own_barriers and any(s.combiner is not None for s in expr.stages if s is not expr.anchor):
        raise BuildError(
            f"{expr.name}: expected one reduction beside a kernel that places its own barriers, got several. "
            "Use a fragment that does not read the scratchpad by itself, or another structure."
        )
    return out
