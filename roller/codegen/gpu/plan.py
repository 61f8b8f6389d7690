"""Choose the template of every stage, in the order the kernels run."""

from __future__ import annotations

from roller.codegen.gpu.context import Context
from roller.codegen.gpu.nest import Stmt
from roller.codegen.gpu.tiled import tiled_kernels
from roller.tile import RProgram


def kernels(ctx: Context, program: RProgram) -> list[Stmt]:
    """Return the kernels of a program."""
    return tiled_kernels(ctx, ctx.expr.anchor, ctx.expr.epilogue, program)
