"""Lower a CPU rProgram to a KernelArtifact that carries its shared library."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from roller.artifact import Argument, KernelArtifact, Launch
from roller.codegen.cpu.library import ENTRY, build_library, prim_func
from roller.codegen.cpu.mathlib import vectorise_math
from roller.codegen.cpu.nest import Buffer, Stmt, computed, declare
from roller.codegen.cpu.rows import rows_body
from roller.codegen.cpu.streaming import streaming_body
from roller.codegen.cpu.tiled import tiled_body
from roller.errors import BuildError
from roller.expr import TensorExpr
from roller.tile import RProgram


def _tiled(program: RProgram, buffers: dict[str, Buffer], cores: int) -> Stmt:
    """Reduce to a single point by parts (a register tile of one element would leave all cores but one idle)."""
    anchor = program.expr.anchor
    single = anchor.combiner is not None and all(a.extent == 1 for a in anchor.spatial_axes)
    return rows_body(program, buffers, cores) if single else tiled_body(program, buffers)


_TEMPLATES: dict[str, Callable[[RProgram, dict[str, Buffer], int], Stmt]] = {
    "tiled": _tiled,
    "rows": rows_body,
    "streaming": lambda program, buffers, cores: streaming_body(program, buffers),
}


def lower_module(program: RProgram, cores: int = 1) -> tuple[Any, tuple[Argument, ...]]:
    """Return the TIR module of a CPU program and the kernel's arguments in order.

    Raises
    ------
    BuildError
        Where the program is not a CPU program or its structure does not fit its expression.
    """
    if program.kind != "cpu":
        raise BuildError(f"CPU code generation: expected a program of kind 'cpu', got '{program.kind}'.")
    template = _TEMPLATES.get(program.structure)
    if template is None:
        raise BuildError(
            f"CPU code generation: unknown structure '{program.structure}'. Use one of {list(_TEMPLATES)}."
        )
    program = replace(program, expr=computed(program.expr))
    expr = program.expr
    tensors = (*((t, "input") for t in expr.inputs), *((t, "output") for t in expr.output_tensors))
    buffers: dict[str, Buffer] = {t.name: declare(t.name, t.shape, t.dtype, private=False) for t, _ in tensors}
    body: Stmt = vectorise_math(template(program, buffers, cores))
    arguments = tuple(Argument(t.name, role, t.shape, t.dtype) for t, role in tensors)
    return prim_func([buffers[a.name] for a in arguments], body), arguments


def lower(
    program: RProgram, expression: TensorExpr, mcpu: str, cores: int, device: str, vector_bytes: int
) -> KernelArtifact:
    """Generate and build the CPU kernel of ``program``.

    Parameters
    ----------
    program
        rProgram of kind ``"cpu"`` over the canonical expression.
    expression
        The user's expression (argument shapes, reference).
    mcpu
        LLVM CPU name.
    cores
        Cores the tasks are spread over.
    device
        Name of the DeviceSpec the program was constructed for.
    vector_bytes
        Width of a vector register (bytes); recorded for the reader of the artifact.

    Returns
    -------
    KernelArtifact
        With ``language="llvm"``, the TIR as source and the shared library as binary.

    Raises
    ------
    BuildError
        Where the program cannot be lowered, compiled or linked.
    """
    start = time.perf_counter()
    module, arguments = lower_module(program, cores)
    binary = build_library(module, mcpu, cores)
    source = module[ENTRY].script()
    launch = Launch(source, ENTRY, tuple(a.name for a in arguments))
    target = {"mcpu": mcpu, "cores": cores, "vector_bytes": vector_bytes}
    artifact = KernelArtifact("llvm", target, device, expression, program, (launch,), arguments)
    return artifact.with_binary(binary, build_s=time.perf_counter() - start, library_bytes=len(binary))
