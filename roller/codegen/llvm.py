"""Lower a CPU rProgram to a KernelArtifact that carries its shared library."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from roller.artifact import Argument, Constant, KernelArtifact, Launch
from roller.codegen.cpu.bfloat16 import rounded_casts
from roller.codegen.cpu.bindings import without_nested_bindings
from roller.codegen.cpu.dots import Dots, is_dots
from roller.codegen.cpu.lanewise import without_vain_vectors
from roller.codegen.cpu.library import ENTRY, PACK, build_library, features_of, prim_funcs
from roller.codegen.cpu.mathlib import vectorise_math
from roller.codegen.cpu.nest import Buffer, Nests, computed, declare, is_parallel, serial, task_counts, with_hints
from roller.codegen.cpu.nontemporal import stream_stores
from roller.codegen.cpu.reach import check_reach
from roller.codegen.cpu.rows import rows_body
from roller.codegen.cpu.split import split_nests
from roller.codegen.cpu.streaming import streaming_body
from roller.codegen.cpu.tiled import tiled_nests
from roller.codegen.cpu.winograd import winograd_nests
from roller.errors import BuildError
from roller.expr import TensorExpr
from roller.tile import RProgram


def _tiled(program: RProgram, buffers: dict[str, Buffer], cores: int) -> Nests:
    """Reduce to a single point by parts (a register tile of one element would leave all cores but one idle)."""
    anchor = program.expr.anchor
    single = anchor.combiner is not None and all(a.extent == 1 for a in anchor.spatial_axes)
    if single:
        return Nests(rows_body(program, buffers, cores))
    if program.split_k > 1:
        return split_nests(program, buffers)
    return Dots(program, buffers).nests() if is_dots(program) else tiled_nests(program, buffers)


_TEMPLATES: dict[str, Callable[[RProgram, dict[str, Buffer], int], Nests]] = {
    "tiled": _tiled,
    "rows": lambda program, buffers, cores: Nests(rows_body(program, buffers, cores)),
    "streaming": lambda program, buffers, cores: Nests(streaming_body(program, buffers)),
    "winograd2": lambda program, buffers, cores: winograd_nests(program, buffers),
    "winograd4": lambda program, buffers, cores: winograd_nests(program, buffers),
}


def lower_module(program: RProgram, cores: int = 1) -> tuple[Any, tuple[Argument, ...], dict[str, tuple[str, ...]]]:
    """Return the TIR module of a CPU program, the arguments, and by function of the module the names it takes.

    A call takes what changes from call to call, inputs before outputs, then constants and their panels.

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
    check_reach(program.expr)
    program = replace(program, expr=computed(program.expr))
    expr = program.expr
    tensors = (*((t, "input") for t in expr.inputs), *((t, "output") for t in expr.output_tensors))
    buffers: dict[str, Buffer] = {t.name: declare(t.name, t.shape, t.dtype, private=False) for t, _ in tensors}
    nests = template(program, buffers, cores)
    panels = {str(b.name): b for b in nests.panels}
    arguments = (
        *(Argument(t.name, role, t.shape, t.dtype) for t, role in tensors),
        *(Argument(n, "panel", tuple(int(x) for x in b.ty.shape), str(b.ty.dtype)) for n, b in panels.items()),
    )
    fixed = [t.name for t in expr.inputs if t.name in program.constants]
    free = [t.name for t, _ in tensors if t.name not in fixed]
    names = {ENTRY: (*free, *(n for n in fixed if n not in nests.unread), *panels)}
    bodies = {ENTRY: without_vain_vectors(without_nested_bindings(vectorise_math(rounded_casts(nests.main))))}
    if nests.pack is not None:
        names[PACK], bodies[PACK] = (*fixed, *panels), nests.pack
    if cores == 1:
        bodies = {f: serial(body) for f, body in bodies.items()}
    buffers.update(panels)
    module = prim_funcs({f: ([buffers[n] for n in names[f]], with_hints(body)) for f, body in bodies.items()})
    if program.nontemporal:
        module = stream_stores(module, [t.name for t in expr.output_tensors])
    return module, arguments, names


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
    module, arguments, names = lower_module(program, cores)
    binary = build_library(module, mcpu, cores)
    launches = {f: Launch(module[f].script(), f, taken) for f, taken in names.items()}
    target = {
        "mcpu": mcpu, "cores": cores, "vector_bytes": vector_bytes, "parallel": is_parallel(module[ENTRY].body),
        "tasks": list(task_counts(module[ENTRY].body)), "features": list(features_of(mcpu)),
    }  # fmt: skip
    inputs = [a.name for a in arguments if a.role == "input"]
    artifact = KernelArtifact(
        "llvm", target, device, expression, program, (launches[ENTRY],), arguments,
        constants=tuple(Constant(inputs.index(n)) for n in inputs if n in program.constants),
        prepare=launches.get(PACK),
    )  # fmt: skip
    return artifact.with_binary(binary, build_s=time.perf_counter() - start, library_bytes=len(binary))
