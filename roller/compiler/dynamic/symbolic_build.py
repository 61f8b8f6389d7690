"""Builds the single kernel of a symbolic program: generates code at some sizes, generalizes it and compiles it."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from roller.artifact import Constant, KernelArtifact, Launch
from roller.compiler.dynamic.dynamic_size_box import SizeBox, Sizes
from roller.compiler.dynamic.prove_kernel_for_call_sizes import proven_sizes
from roller.compiler.dynamic.symbolic_programs import SymbolicExpr, SymbolicKernel, SymbolicProgram
from roller.core.formula_fitting import FormulaFitter
from roller.errors import BuildError, RollerError
from roller.hardware import DeviceSpec
from roller.tile import RProgram
from roller_runtime.core.kernel_argument import Argument
from roller_runtime.core.size_formulas import Formula

if TYPE_CHECKING:
    from roller.templates.emit.separated_tir_numbers import TirText

#: Number of versions of one kind of code to generate before generalizing, and maximum number of sizes to try.
_WRITTEN, _TRIED = 6, 40
#: Minimum number of versions of one kind of code, and of values of each size among them.
_FEWEST, _VALUES = 5, 4
#: Number of random sizes for distinguishing rival formulas, and number of rounds, each of which adds one of them.
_POOL, _ROUNDS = 60, 8


def build_symbolic_kernel(
    program: SymbolicProgram, expression: SymbolicExpr, box: SizeBox, spec: DeviceSpec, asked: Sequence[Sizes] = ()
) -> SymbolicKernel:
    """Generate code for several sizes, generalize and compile it, and prove it correct at the ``asked`` sizes."""
    most = _most_frequent_code(program, box, spec)
    dividends = [e for e in program.extents if isinstance(e, Formula)]
    fitter = _distinguish_formulas(program, box, spec, most, dividends)
    artifact = _compile_generalised(program, expression, spec, most, fitter)
    # No formula is missing here: generalizing the code would have failed.
    formulas = tuple(f for f in map(fitter.fit, fitter.asked) if f is not None)
    shortest = _shortest_lengths([formulas[n] for n in most[0][1].last_starts], [sizes for sizes, _, _ in most])
    kernel = SymbolicKernel(program, artifact, dict(box.low), formulas, most[0][1].digest, shortest=shortest)
    return replace(kernel, proven=proven_sizes(kernel, asked, spec.units))


def _shortest_lengths(last_starts: Sequence[Formula], points: Sequence[Sizes]) -> tuple[tuple[Formula, int], ...]:
    """Return lengths and their smallest values at which no tile starts before its axis, as at the given sizes."""
    found = dict[tuple[Formula, int], None]()
    for start in last_starts:
        may_be_negative = start.const < 0 or any(factor < 0 for factor, _ in start.terms)
        if start.terms and may_be_negative and all(start.at(sizes) >= 0 for sizes in points):
            found[replace(start, const=0), -start.const] = None
    return tuple(found)


def _most_frequent_code(program: SymbolicProgram, box: SizeBox, spec: DeviceSpec) -> list[Any]:
    """Return sizes with the most frequent kind of code, each with its text and lowered module."""
    from roller.templates.cpu.emit.generalize_sizes import module_as_tir_text
    from roller.templates.cpu.emit.lower_cpu_program import lower_module

    groups: dict[str, list[Any]] = defaultdict(list)
    refused = ""
    for sizes in _generation_sizes(program, box):
        try:
            lowered = lower_module(program.at(sizes), spec.units)
        except RollerError as err:
            refused = str(err)
            continue
        text = module_as_tir_text(lowered[0], sizes)
        groups[text.shape].append((sizes, text, lowered))
        if len(groups[text.shape]) >= _WRITTEN and _has_enough_values(groups[text.shape], program, box):
            break
    spread = [g for g in groups.values() if _has_enough_values(g, program, box)]
    if refused and not groups:
        raise BuildError(
            f"{program.program.expr.name}: a kernel of a range: expected code for some size, got none: {refused}"
        )
    most = max(spread or groups.values(), key=lambda g: (g[0][0] is program.sizes, len(g)), default=[])
    if len(most) < min(_FEWEST, _count_supported_sizes(program, box)) or not _has_enough_values(most, program, box):
        raise BuildError(
            f"{program.program.expr.name}: a kernel of a range: expected one code for most sizes, got many: "
            f"{sorted(map(len, groups.values()))}."
        )
    return most


def _compile_generalised(
    program: SymbolicProgram, expression: SymbolicExpr, spec: DeviceSpec, group: Sequence[Any], fitter: FormulaFitter
) -> KernelArtifact:
    from roller.templates.cpu.emit.build_library import ENTRY, PACK, build_library, required_features
    from roller.templates.cpu.emit.generalize_sizes import (
        generalize_modules,
        packing_functions_are_equal,
        size_argument_name,
    )
    from roller.templates.cpu.emit.tir_loop_constructors import is_parallel

    points, modules = [sizes for sizes, _, _ in group], [lowered[0] for _, _, lowered in group]
    _, arguments, names = group[0][2]
    if not packing_functions_are_equal(modules, PACK) or any(
        _arguments_of_panels(x[1]) != _arguments_of_panels(arguments) for _, _, x in group
    ):
        raise BuildError(f"{program.program.expr.name}: a kernel of a range: its constants are packed by its sizes.")
    module = generalize_modules([text for _, text, _ in group], fitter)
    if PACK in {v.name_hint for v in modules[0].functions}:
        module[PACK] = modules[0][PACK]
    extra = tuple(Argument(size_argument_name(n), "size", (x,), "uint8") for n, x in points[0].items())
    taken = {f: (*names[f], *(a.name for a in extra)) if f == ENTRY else names[f] for f in names}
    launches = {f: Launch(module[f].script(), f, taken[f]) for f in taken}
    mcpu = spec.target["mcpu"]
    target = {
        "mcpu": mcpu, "cores": spec.units, "vector_bytes": spec.teu.lanes * 4, "tasks": [],
        "parallel": is_parallel(module[ENTRY].body), "features": list(required_features(mcpu)),
    }  # fmt: skip
    # Unchecked: the launchers check the arrays.
    binary = build_library(module, mcpu, spec.units, checked=False, propagate_nan=program.program.expr.propagate_nan)
    inputs = [a.name for a in arguments if a.role == "input"]
    constants = tuple(Constant(inputs.index(n)) for n in inputs if n in program.program.constants)
    return KernelArtifact(
        "llvm", target, spec.name, expression.at(points[0]), program.at(points[0]), (launches[ENTRY],),
        (*arguments, *extra), constants=constants, prepare=launches.get(PACK),
    ).with_binary(binary, library_bytes=len(binary))  # fmt: skip


def _generation_sizes(program: SymbolicProgram, box: SizeBox) -> Iterator[Sizes]:
    """Yield sizes for code generation: the program's own sizes, then others near and far."""
    found = 0
    seen = set()
    half = {n: max(2, program.sizes[n] // 2) for n in box.ends}
    near, far = box.random_sizes(1, low=half), box.random_sizes(2)
    for n, (a, b) in enumerate(zip(near, far, strict=True)):
        sizes = program.sizes if n == 0 else b if n % 4 == 3 else a
        key = tuple(sizes.values())
        if key not in seen and program.takes(sizes):
            seen.add(key)
            found += 1
            yield sizes
        if found >= _TRIED or n > 40 * _TRIED:
            return


def _distinguish_formulas(
    program: SymbolicProgram, box: SizeBox, spec: DeviceSpec, group: list[Any], dividends: Sequence[Formula]
) -> FormulaFitter:
    """Add code at further sizes until no rival formulas remain; return the fitter."""
    from roller.templates.cpu.emit.generalize_sizes import module_as_tir_text, number_values_by_position
    from roller.templates.cpu.emit.lower_cpu_program import lower_module

    divisors = _possible_divisors(program.program)
    pool = [p for p, _ in zip(box.random_sizes(3), range(_POOL), strict=False)]
    pool += [
        box.with_derived_sizes({n: max(2, low, p[n] // d * d) for n, (low, _) in box.ends.items()})
        for p in pool for d in (2, 4, 16, 64) if d <= max(p.values())
    ]  # fmt: skip
    pool = [p for p in (box.high, *pool) if program.takes(p)]
    # Two numbers may agree at all sizes below a tile, such as n + 1 and ceil(33 * n / 32): large sizes tell them apart.
    unchecked = [p for p in pool[:1] if p == box.high and all(p != sizes for sizes, *_ in group)]
    for _ in range(_ROUNDS):
        fitter = FormulaFitter([sizes for sizes, *_ in group], divisors, dividends)
        fitter.asked = number_values_by_position([text for _, text, *_ in group])
        for values in fitter.asked:
            fitter.fit(values)
        least = _smallest_generated_sizes(group, box)
        pool = [p for p in pool if all(p[n] >= x for n, x in least.items())]
        doubtful = [p for p, doubt in zip(pool, fitter.doubtful(pool), strict=True) if doubt]
        for sizes in [*doubtful, *(p for p in unchecked if p not in doubtful)]:
            pool, unchecked = ([p for p in several if p != sizes] for several in (pool, unchecked))
            lowered = lower_module(program.at(sizes), spec.units)
            text = module_as_tir_text(lowered[0], sizes)
            if text.shape != group[0][1].shape or (sizes not in doubtful and _agrees(fitter, text, sizes)):
                continue
            group.append((sizes, text, lowered))
            break
        else:
            break
    return fitter


def _agrees(fitter: FormulaFitter, text: TirText, sizes: Sizes) -> bool:
    """Return whether the formulas give the numbers of the code at further sizes."""
    formulas = map(fitter.fit, fitter.asked)
    return all(f is not None and f.at(sizes) == number for f, (_, number) in zip(formulas, text.numbers, strict=True))


def _smallest_generated_sizes(group: Sequence[Any], box: SizeBox) -> dict[str, int]:
    return {n: min(sizes[n] for sizes, *_ in group) for n in box.ends}


def _has_enough_values(group: Sequence[Any], program: SymbolicProgram, box: SizeBox) -> bool:
    """Return whether code was generated for enough values of each size."""
    for n, (low, high) in box.ends.items():
        few = range(max(2, low), min(high, max(2, low) + 64) + 1)
        taken = sum(program.takes(box.with_derived_sizes({**box.high, n: x})) for x in few)
        if len({sizes[n] for sizes, *_ in group}) < min(_VALUES, max(1, taken)):
            return False
    return True


def _count_supported_sizes(program: SymbolicProgram, box: SizeBox) -> int:
    if math.prod(high - max(2, low) + 1 for low, high in box.ends.values()) > 4 * _FEWEST:
        return 4 * _FEWEST
    several = itertools.product(*(range(max(2, low), high + 1) for low, high in box.ends.values()))
    return sum(program.takes(box.with_derived_sizes(dict(zip(box.ends, c, strict=True)))) for c in several)


def _arguments_of_panels(arguments: Sequence[Argument]) -> list[Argument]:
    return [a for a in arguments if a.role == "panel"]


def _possible_divisors(program: RProgram) -> set[int]:
    """Return the possible divisors of a program's extents: tile extents, their ratios, and lane counts."""
    tiles = [t for _, tile in program.tiles for t in tile]
    steps = [
        b // a
        for (_, x), (_, y) in zip(program.tiles, program.tiles[1:], strict=False)
        for a, b in zip(x, y, strict=True)
    ]
    lanes = [program.vector_elements * k for k in (1, 2, 4)]
    return {d for d in (*tiles, *steps, *lanes, 2, 4, 8) if 1 < d < 1 << 16}
