"""Proves a generalized kernel for the sizes of a call, once for each combination of sizes, before it runs.

The program's own code is generated, but not compiled, for these sizes. If it equals the kernel with numbers in place of
formulas, the two are the same code. Otherwise, the kernel runs between guard pages and is compared with the reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from roller.artifact import Argument, KernelArtifact
from roller.compiler.dynamic.box import Sizes
from roller.compiler.dynamic.symbolic_programs import SymbolicKernel
from roller.errors import RollerError
from roller.expr import TensorExpr

if TYPE_CHECKING:
    from roller.runtime.cpu_profile import Bench

#: Exclusive upper bound of index values.
_INDEX_LIMIT = 1 << 31


def fault(kernel: SymbolicKernel, expression: TensorExpr, sizes: Sizes, cores: int, seed: int = 0) -> str:
    """Return why a kernel cannot be used at the sizes; empty if it is correct."""
    if tuple(sizes.values()) in kernel.proven:
        return ""
    if _is_too_long(kernel, sizes):
        return f"at {dict(sizes)}: a number of the code is 2**31 or more"
    own = _own_numbers(kernel, sizes, cores)
    if own is None:
        return _fault_of_a_run(kernel.at(sizes, expression), expression, sizes, seed)
    for formula, number in zip(kernel.formulas, own, strict=True):
        if formula.at(sizes) != number:
            return f"at {dict(sizes)}: expected {number} of {formula}, got {formula.at(sizes)}"
    return ""


def proven(kernel: SymbolicKernel, several: Sequence[Sizes], cores: int) -> frozenset[tuple[int, ...]]:
    """Return the sizes at which a kernel equals the program's own code; run nothing."""
    found = set(kernel.proven)
    for sizes in several:
        key = tuple(sizes.values())
        if key in found or not kernel.takes(sizes) or _is_too_long(kernel, sizes):
            continue
        own = _own_numbers(kernel, sizes, cores)
        if own is not None and own == tuple(f.at(sizes) for f in kernel.formulas):
            found.add(key)
    return frozenset(found)


def _is_too_long(kernel: SymbolicKernel, sizes: Sizes) -> bool:
    """Whether an intermediate value of an index overflows, even if the index itself does not."""
    return any(f.most(sizes) >= _INDEX_LIMIT for f in kernel.formulas if f.terms)


def _own_numbers(kernel: SymbolicKernel, sizes: Sizes, cores: int) -> tuple[int, ...] | None:
    """Return the numbers in the program's own code, or ``None`` if it differs otherwise or does not exist."""
    from roller.templates.cpu.emit.general import written
    from roller.templates.cpu.emit.library import PACK
    from roller.templates.cpu.emit.llvm import lower_module

    try:
        module, arguments, _ = lower_module(kernel.program.at(sizes), cores)
    except RollerError:
        return None
    text = written(module, sizes)
    packs = [module[v].script() for v in module.functions if v.name_hint == PACK]
    meant = [kernel.artifact.prepare.source] if kernel.artifact.prepare is not None else []
    same = text.digest == kernel.code and packs == meant and _panels(arguments) == _panels(kernel.artifact.arguments)
    return tuple(number for _, number in text.numbers) if same else None


def _fault_of_a_run(artifact: KernelArtifact, expression: TensorExpr, sizes: Sizes, seed: int) -> str:
    from roller.runtime.cpu_profile import Bench

    try:
        why = faults({0: artifact}, Bench(expression, seed, fenced=True)).get(0, "")
    except RollerError as err:
        why = str(err)
    return f"at {dict(sizes)}: {why}" if why else ""


def trespassers(kernels: Mapping[int, KernelArtifact], bench: Bench) -> dict[int, str]:
    """Run kernels of one shape between guard pages; return descriptions of out-of-bounds accesses by number."""
    from roller.backends.cpu.launcher import CpuKernel
    from roller.runtime.guard_pages import trespass, trespassing

    values = {c.position: bench.inputs[c.position].tobytes() for k in kernels.values() for c in k.constants}
    runs = {
        n: CpuKernel(replace(k, constants=tuple(replace(c, values=values[c.position]) for c in k.constants)))
        for n, k in kernels.items()
    }
    return {n: trespass(runs[n]) or "it accesses memory outside its arguments" for n in trespassing(runs)}


def faults(kernels: Mapping[int, KernelArtifact], bench: Bench) -> dict[int, str]:
    """Run kernels of one shape; return the reasons why some are wrong, by number."""
    found = trespassers(kernels, bench)  # before an out-of-bounds write can do harm
    inside = {str(n): k for n, k in kernels.items() if n not in found}
    for name, record in bench.profile(inside, timed=False).items() if inside else ():
        if record.status in ("wrong", "failed"):
            found[int(name)] = str(record.reason)
    return found


def _panels(arguments: tuple[Argument, ...]) -> list[Argument]:
    return [a for a in arguments if a.role == "panel"]
