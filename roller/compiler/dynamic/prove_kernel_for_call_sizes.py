"""Proves a generalized kernel correct for a call's sizes before it runs, once for each combination of sizes.

The program's own code is generated, but not compiled, for these sizes. If it equals the kernel with numbers in place of
formulas, the two are the same code. Otherwise, the kernel runs between guard pages and is compared with the reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from roller.artifact import KernelArtifact
from roller.compiler.dynamic.dynamic_size_box import Sizes
from roller.compiler.dynamic.symbolic_programs import SymbolicKernel
from roller.errors import RollerError
from roller.expr import TensorExpr
from roller_runtime.core.kernel_argument import Argument

if TYPE_CHECKING:
    from roller.runtime.check_and_time_cpu_kernels import CpuBench

#: Exclusive upper bound of index values.
_INDEX_LIMIT = 1 << 31


def fault(kernel: SymbolicKernel, expression: TensorExpr, sizes: Sizes, cores: int, seed: int = 0) -> str:
    """Return why a kernel cannot be used at the sizes; empty if it is correct."""
    found = static_fault(kernel, sizes, cores)
    return run_and_describe_fault(kernel.at(sizes, expression), expression, sizes, seed) if found is None else found


def static_fault(kernel: SymbolicKernel, sizes: Sizes, cores: int) -> str | None:
    """Return :func:`fault` without running the kernel; ``None`` if only a run can decide."""
    if tuple(sizes.values()) in kernel.proven:
        return ""
    if intermediate_index_overflows(kernel, sizes):
        return f"at {dict(sizes)}: a number of the code is 2**31 or more"
    own = _numbers_of_own_code(kernel, sizes, cores)
    if own is None:
        return None
    for formula, number in zip(kernel.formulas, own, strict=True):
        if formula.at(sizes) != number:
            return f"at {dict(sizes)}: expected {number} of {formula}, got {formula.at(sizes)}"
    return ""


def proven_sizes(kernel: SymbolicKernel, several: Sequence[Sizes], cores: int) -> frozenset[tuple[int, ...]]:
    """Return the sizes at which a kernel equals the program's own code; run nothing."""
    found = set(kernel.proven)
    for sizes in several:
        key = tuple(sizes.values())
        if key in found or not kernel.takes(sizes) or intermediate_index_overflows(kernel, sizes):
            continue
        own = _numbers_of_own_code(kernel, sizes, cores)
        if own is not None and own == tuple(f.at(sizes) for f in kernel.formulas):
            found.add(key)
    return frozenset(found)


def intermediate_index_overflows(kernel: SymbolicKernel, sizes: Sizes) -> bool:
    """Return whether an intermediate value of an index overflows, even if the index itself does not."""
    return any(f.most(sizes) >= _INDEX_LIMIT for f in kernel.formulas if f.terms)


def _numbers_of_own_code(kernel: SymbolicKernel, sizes: Sizes, cores: int) -> tuple[int, ...] | None:
    """Return the numbers in the program's own code, or ``None`` if it differs otherwise or does not exist."""
    from roller.templates.cpu.emit.build_library import PACK
    from roller.templates.cpu.emit.generalize_sizes import module_as_tir_text
    from roller.templates.cpu.emit.lower_cpu_program import lower_module

    try:
        module, arguments, _ = lower_module(kernel.program.at(sizes), cores)
    except RollerError:
        return None
    text = module_as_tir_text(module, sizes)
    packs = [module[v].script() for v in module.functions if v.name_hint == PACK]
    meant = [kernel.artifact.prepare.source] if kernel.artifact.prepare is not None else []
    same = (
        text.digest == kernel.code
        and packs == meant
        and _arguments_of_panels(arguments) == _arguments_of_panels(kernel.artifact.arguments)
    )
    return tuple(number for _, number in text.numbers) if same else None


def run_and_describe_fault(artifact: KernelArtifact, expression: TensorExpr, sizes: Sizes, seed: int) -> str:
    """Run a kernel between guard pages and compare it with the reference; return why it is wrong, or an empty text."""
    from roller.runtime.check_and_time_cpu_kernels import CpuBench

    try:
        why = find_wrong_kernels({0: artifact}, CpuBench(expression, seed, fenced=True)).get(0, "")
    except RollerError as err:
        why = str(err)
    return f"at {dict(sizes)}: {why}" if why else ""


def find_out_of_bounds_kernels(kernels: Mapping[int, KernelArtifact], bench: CpuBench) -> dict[int, str]:
    """Run kernels of one shape between guard pages; return descriptions of out-of-bounds accesses by kernel number."""
    from roller.backends.cpu.launcher import CpuKernel
    from roller.runtime.guard_pages import find_out_of_bounds_access, kernels_with_bad_accesses

    values = {c.position: bench.inputs[c.position].tobytes() for k in kernels.values() for c in k.constants}
    runs = {
        n: CpuKernel(replace(k, constants=tuple(replace(c, values=values[c.position]) for c in k.constants)))
        for n, k in kernels.items()
    }
    return {
        n: find_out_of_bounds_access(runs[n]) or "it accesses memory outside its arguments and workspaces"
        for n in kernels_with_bad_accesses(runs)
    }


def find_wrong_kernels(kernels: Mapping[int, KernelArtifact], bench: CpuBench) -> dict[int, str]:
    """Run kernels of one shape; return the reasons why some are wrong, by kernel number."""
    found = find_out_of_bounds_kernels(kernels, bench)  # before an out-of-bounds write can do harm
    inside = {str(n): k for n, k in kernels.items() if n not in found}
    for name, record in bench.profile(inside, timed=False).items() if inside else ():
        if record.status in ("wrong", "failed"):
            found[int(name)] = str(record.reason)
    return found


def _arguments_of_panels(arguments: tuple[Argument, ...]) -> list[Argument]:
    return [a for a in arguments if a.role == "panel"]
