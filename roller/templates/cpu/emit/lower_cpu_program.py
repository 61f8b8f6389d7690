"""Lowers a CPU rProgram to a KernelArtifact with its shared library."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from roller.artifact import Constant, KernelArtifact, Launch
from roller.expr import Tensor, TensorExpr
from roller.expr.sizes_growable_by_padding import GrowableSize
from roller.targets import CPU
from roller.te.compat import tirx
from roller.templates.cpu.emit import byte_float_bits
from roller.templates.cpu.emit.bfloat16 import round_bfloat16_casts
from roller.templates.cpu.emit.build_library import (
    ENTRY,
    PACK,
    build_library,
    is_foreign_triple,
    module_of_functions,
    required_features,
)
from roller.templates.cpu.emit.check_index_overflow import check_index_overflow
from roller.templates.cpu.emit.interleave_vector_functions import interleave_vector_loops
from roller.templates.cpu.emit.mathlib import replace_math_library_calls
from roller.templates.cpu.emit.nontemporal import make_stores_nontemporal
from roller.templates.cpu.emit.remove_nested_bindings import remove_nested_bindings
from roller.templates.cpu.emit.serialize_vector_loops import serialize_vector_loops
from roller.templates.cpu.emit.tir_loop_constructors import (
    Buffer,
    EmittedNests,
    add_prefetch_function,
    computed,
    declare_buffer,
    is_parallel,
    parallel_task_counts,
    serialize_loops,
)
from roller.templates.emit.byte_floats import replace_byte_floats_by_bytes
from roller.templates.registry import template_writing
from roller.tile import RProgram
from roller_runtime.core.kernel_argument import Argument

if TYPE_CHECKING:
    from roller.hardware import DeviceSpec


def lower_module(
    program: RProgram, cores: int = 1, varying: GrowableSize | None = None
) -> tuple[Any, tuple[Argument, ...], dict[str, tuple[str, ...]]]:
    """Return a CPU program's TIR module, the kernel's arguments, and the argument names of each function."""
    # A call takes the arguments that change from call to call, inputs before outputs, then constants and their panels.
    # The extent of a ``varying`` size comes from the arrays of the call and is at least its tile.
    CPU.check_kind(program.kind, "CPU code generation")
    template = template_writing(CPU.name, program)
    check_index_overflow(program.expr)
    program = replace(program, expr=computed(program.expr))
    expr = program.expr
    tensors = (*((t, "input") for t in expr.inputs), *((t, "output") for t in expr.output_tensors))
    said = tirx.Var("extent", "int32")
    dims = set(varying.dims) if varying is not None else set()

    def argument(t: Tensor) -> Buffer:
        shape = [said if (t.name, n) in dims else extent for n, extent in enumerate(t.shape)]
        return declare_buffer(t.name, shape, t.dtype, private=False)

    buffers: dict[str, Buffer] = {t.name: argument(t) for t, _ in tensors}
    nests: EmittedNests = template.emitted(program, buffers, cores)
    panels = {str(b.name): b for b in nests.panels}
    arguments = (
        *(Argument(t.name, role, t.shape, t.dtype) for t, role in tensors),
        *(Argument(n, "panel", tuple(int(x) for x in b.ty.shape), str(b.ty.dtype)) for n, b in panels.items()),
    )
    fixed = [t.name for t in expr.inputs if t.name in program.constants]
    free = [t.name for t, _ in tensors if t.name not in fixed]
    names = {ENTRY: (*free, *(n for n in fixed if n not in nests.unread), *panels)}
    computed_main = interleave_vector_loops(replace_math_library_calls(round_bfloat16_casts(nests.main)))
    bodies = {ENTRY: computed_main}
    if nests.pack is not None:
        names[PACK], bodies[PACK] = (*fixed, *panels), nests.pack
    if cores == 1:
        bodies = {f: serialize_loops(body) for f, body in bodies.items()}
    buffers.update(panels)
    functions = {
        f: replace_byte_floats_by_bytes(
            [buffers[n] for n in names[f]], body, byte_float_bits.emit_byte_to_float, byte_float_bits.emit_float_to_byte
        )
        for f, body in bodies.items()
    }
    params, body = functions[ENTRY]
    # Conversions of 8-bit floats bind their operands too.
    functions[ENTRY] = params, serialize_vector_loops(remove_nested_bindings(body))
    module = module_of_functions({f: (params, add_prefetch_function(body)) for f, (params, body) in functions.items()})
    if program.nontemporal:
        module = make_stores_nontemporal(module, [t.name for t in expr.output_tensors])
    return module, arguments, names


def lower_for(
    program: RProgram, expression: TensorExpr, spec: DeviceSpec, varying: GrowableSize | None = None
) -> KernelArtifact:
    """Generate the kernels of a program for the device for which it was constructed, as :func:`lower` does."""
    vector_bytes = spec.teu.lanes * 4
    triple = spec.target.get("mtriple", "")
    return lower(program, expression, spec.target["mcpu"], spec.units, spec.name, vector_bytes, triple, varying)


def lower(
    program: RProgram, expression: TensorExpr, mcpu: str, cores: int, device: str, vector_bytes: int, mtriple: str = "",
    varying: GrowableSize | None = None,
) -> KernelArtifact:  # fmt: skip
    """Generate the CPU kernel of ``program`` and build it, unless it is for a different architecture."""
    start = time.perf_counter()
    module, arguments, names = lower_module(program, cores, varying)
    features = program.fragment.arch if program.fragment is not None else ""
    launches = {f: Launch(module[f].script(), f, taken) for f, taken in names.items()}
    target = {
        "mcpu": mcpu, "cores": cores, "vector_bytes": vector_bytes, "parallel": is_parallel(module[ENTRY].body),
        "tasks": list(parallel_task_counts(module[ENTRY].body)), "features": list(required_features(mcpu, mtriple,
                                                                                                    features)),
    }  # fmt: skip
    inputs = [a.name for a in arguments if a.role == "input"]
    artifact = KernelArtifact(
        "llvm", target, device, expression, program, (launches[ENTRY],), arguments,
        constants=tuple(Constant(inputs.index(n)) for n in inputs if n in program.constants),
        prepare=launches.get(PACK),
    )  # fmt: skip
    if is_foreign_triple(mtriple):
        return artifact
    # A kernel that takes its extent from the arrays of a call also checks that the arrays agree.
    nan = program.expr.propagate_nan
    binary = build_library(module, mcpu, cores, features, checked=varying is not None, propagate_nan=nan)
    return artifact.with_binary(binary, build_s=time.perf_counter() - start, library_bytes=len(binary))
