"""Compiles a range of extents to a few kernels: prices them at all extents, builds each once, times them at some."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from roller.compiler.autotune import Selection
from roller.compiler.autotune.avoid_unemitted_instructions import spec_with_emitted_instructions
from roller.compiler.dynamic.compile_cpu_extents import compile_extents
from roller.compiler.dynamic.dynamic_axes import parse_dynamic_axes
from roller.compiler.dynamic.dynamic_range import DynamicRange, parse_open_range, refuse_unsupported_options
from roller.compiler.dynamic.kernel import KernelVariant, VaryingKernel
from roller.compiler.dynamic.kernel_choice import UNMEASURED, distance_weighted_mean
from roller.compiler.dynamic.program_families import (
    ProgramFamily,
    choose_covering_rows,
    choose_families_of_first_extents,
    families,
    price_families_at_extents,
    sample_extents,
    shortlist_rows,
    templates_allow_families,
)  # fmt: skip
from roller.compiler.dynamic.symbolic_call import SymbolicRange
from roller.construction.constructor import spec_of_device_share
from roller.core.c_compiler import require_compiler
from roller.errors import NoCandidateError, RollerError, counted
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.targets import target_for
from roller.templates.common.options import ConstructOptions

if TYPE_CHECKING:
    from roller.backends.parse_device_names import DeviceHandle

_LOG = logging.getLogger("roller")
#: Maximum number of kernels, number built to choose from, number that covers all but the first extents, and patience,
#: in seconds, with a busy machine at each timed extent.
MOST, _BUILT, _COVER, _PATIENCE_S = 8, 14, 3, 0.5
#: Number of smallest extents that are all priced, because the number of tiles changes often there.
_PRICED = 48
#: Time, in seconds, spent on timing a kernel at one extent.
_BUDGET_S = 0.02
#: A kernel already timed at an extent of at least 1 / _BESIDE of the current one is timed again if its expected time is
#: at most _NEAR_KNOWN times the fastest; any other kernel is timed if it is at most _NEAR times the fastest.
_BESIDE, _NEAR_KNOWN, _NEAR = 3, 1.15, 1.35
#: Number of extents at which kernels are compared.
_WEIGHED = 64


def compile_varying(
    expr: TensorExpr, spec: DeviceSpec, shapes: Mapping[str, Any], options: ConstructOptions, seed: int, how: Selection,
    here: bool, beside: Mapping[str, bool], handle: DeviceHandle | None = None,
) -> VaryingKernel | SymbolicRange:  # fmt: skip
    """Compile an expression for all extents of some axes, on this machine's CPU or on a GPU."""
    _check_device_is_usable(spec, here, handle)
    refuse_unsupported_options({**beside, "refine_s": bool(how.refine_s)})
    constants = tuple(options.constants_of(expr))
    if spec.traits.blocks:  # chosen by prediction, without a device
        compiled: SymbolicRange = spec.traits.module_for("compiler.dynamic").compile_range(
            parse_dynamic_axes(expr, shapes, constants), spec_with_emitted_instructions(expr, spec), options, here
        )
        return compiled
    timed = not how.deterministic
    require_compiler("compiling for this processor")
    spec, options = spec_of_device_share(spec, options), replace(options, units=None)
    # One axis along the first dimension can have kernels whose code takes its extent as a variable (families); all else
    # takes code of some sizes that is generalized (compile_cpu_extents).
    varies = parse_open_range(expr, shapes, constants)
    if varies is not None and templates_allow_families(varies, spec, options):
        found, best = families(varies, spec, options)
        if found:
            return _compile_families(varies, found, best, spec, options, seed, timed)
    return compile_extents(parse_dynamic_axes(expr, shapes, constants), spec, options, seed, timed)


def _check_device_is_usable(spec: DeviceSpec, here: bool, handle: DeviceHandle | None) -> None:
    if not here and not spec.traits.blocks:
        raise RollerError(
            f"shapes: expected this machine's processor (device='cpu') or a GPU, got {spec.name}. "
            "Compile for one shape."
        )
    if handle is not None and handle.target.pretends:
        raise RollerError(
            f"shapes: expected a device that runs kernels, got a pretended {spec.name}. Write device='{spec.name}'."
        )


def _compile_families(
    varies: DynamicRange, found: Sequence[ProgramFamily], best: Mapping[int, float], spec: DeviceSpec,
    options: ConstructOptions,
    seed: int, timed: bool,
) -> VaryingKernel:  # fmt: skip
    """Build kernels of families, run them at some extents, and keep a few correct ones."""
    extents = sorted(best)
    costs = price_families_at_extents(found, extents, spec)
    least = np.minimum(costs.min(axis=0), [best[x] for x in extents])
    single = choose_families_of_first_extents(found, extents, costs)
    kept = shortlist_rows(costs, least, max(MOST, len(single) + _COVER), _BUILT, [f.kind for f in found], single)
    variants, reasons = _build_families([found[n] for n in kept], varies, spec)
    places = sample_extents(varies.low, varies.high) if timed else sample_extents(varies.low, varies.high, 1, 2)
    times = _KernelTimes([v.family for v in variants], spec)
    doubt, wrong = _check_and_time(variants, varies, places, times, seed, timed)
    for level, why in ((logging.INFO, reasons), (logging.WARNING, list(wrong.values()))):
        for reason in dict.fromkeys(why):
            _LOG.log(level, "%s: a kernel of the range is left out: %s", varies.expr.name, reason)
    reasons += wrong.values()
    right = [n for n in range(len(variants)) if n not in wrong]
    if not right:
        raise NoCandidateError(
            f"{varies.expr.name}: shapes: expected a kernel that is right, none of {counted(len(kept), 'kernel')} is: "
            f"{'; '.join(dict.fromkeys(reasons)).rstrip('.')}."
        )
    first = range(varies.low, min(varies.low + _PRICED, varies.high + 1))
    times.price({*extents, *first, *(max(variants[n].family.rows, varies.low) for n in right)})
    kernels, table = _choose_kernels_for_extents(varies, {n: variants[n] for n in right}, times, reasons)
    regrets = {
        x: float(times.predicted[x][kernels[table[x - varies.low]]] / least[c]) - 1.0 for c, x in enumerate(extents)
    }
    return VaryingKernel(varies, [variants[n] for n in kernels], table, regrets, spec, doubt)


def _choose_kernels_for_extents(
    varies: DynamicRange, right: Mapping[int, KernelVariant], times: _KernelTimes, reasons: Sequence[str]
) -> tuple[list[int], np.ndarray]:
    every = np.arange(varies.low, varies.high + 1)
    whole = np.stack([_seconds_at_all_extents(n, v.family.rows, times, every) for n, v in right.items()])
    weighed = np.unique(np.geomspace(varies.low, varies.high, _WEIGHED).round().astype(int)) - varies.low
    chosen = choose_covering_rows(whole[:, weighed], whole[:, weighed].min(axis=0), MOST)
    least = whole[chosen].min(axis=0)
    if np.isinf(least).any():
        raise NoCandidateError(
            f"{varies.expr.name}: shapes: expected kernels for all extents from {varies.low} to {varies.high}, got "
            f"none for {int(every[np.isinf(least)][0])}. Leave the least extents out"
            f"{''.join(f'; {why}' for why in dict.fromkeys(reasons))}."
        )
    return [list(right)[n] for n in chosen], whole[chosen].argmin(axis=0).astype(np.uint8)


def _build_families(
    found: Sequence[ProgramFamily], varies: DynamicRange, spec: DeviceSpec
) -> tuple[list[KernelVariant], list[str]]:
    from roller.runtime.build_pool import build_all
    from roller.templates.cpu.emit.lower_cpu_program import lower_for

    target_for(spec).prepare()
    expression = varies.at(varies.high)
    _LOG.info("%s: building %s for a range", expression.name, counted(len(found), "kernel"))

    def make(family: ProgramFamily) -> Any:
        program = family.at(varies.high)
        return lower_for(program, expression, spec, replace(family.size, extent=varies.high))

    results = build_all({str(n): f for n, f in enumerate(found)}, make)
    built = [KernelVariant(found[int(n)], r.value) for n, r in results.items() if r.value is not None]
    return built, [str(r.record.reason) for r in results.values() if r.value is None]


@dataclass
class _KernelTimes:
    """Measured and predicted times of a range's kernels."""

    families: Sequence[ProgramFamily]
    spec: DeviceSpec
    predicted: dict[int, np.ndarray] = field(default_factory=dict)  #: Predicted seconds by extent, shape ``(kernels,)``
    measured: dict[int, dict[int, float]] = field(default_factory=dict)  #: Measured seconds by kernel and extent

    def price(self, extents: Iterable[int]) -> None:
        """Predict the times of all kernels at the given extents."""
        new = [x for x in sorted(set(extents)) if x not in self.predicted]
        self.predicted |= zip(new, price_families_at_extents(self.families, new, self.spec).T, strict=True)

    def at(self, n: int, extent: int) -> float:
        """Return a kernel's time at a priced extent in seconds: measured, or predicted and then corrected."""
        mine = self.measured.get(n)
        if mine is not None and extent in mine:
            return mine[extent]
        # An unmeasured kernel takes the mean correction of the others and a surcharge: it was not near the best.
        several = [self._log_correction(m, extent) for m in ([n] if mine else self.measured)]
        off = sum(several) / len(several) if several else 0.0
        return float(self.predicted[extent][n]) * math.exp(off) * (1.0 if mine or not several else UNMEASURED)

    def near(self, usable: Sequence[int], extent: int) -> list[int]:
        """Return the kernels worth timing at a priced extent: fewer if they were compared at nearby extents."""
        seconds = {n: self.at(n, extent) for n in usable}
        soonest = min(seconds.values())
        known = {n for n in usable if any(extent <= _BESIDE * x for x in self.measured.get(n, ()))}
        return [n for n, s in seconds.items() if s <= soonest * (_NEAR_KNOWN if n in known else _NEAR)]

    def _log_correction(self, n: int, extent: int) -> float:
        """Return the mean logarithm of measured over predicted time, weighted towards nearby extents."""
        mine = self.measured[n]
        distances = [abs(math.log(x / extent)) for x in mine]
        return distance_weighted_mean(distances, [math.log(t / self.predicted[x][n]) for x, t in mine.items()])


def _check_and_time(
    variants: Sequence[KernelVariant],
    varies: DynamicRange,
    places: Sequence[int],
    times: _KernelTimes,
    seed: int,
    timed: bool,
) -> tuple[str, dict[int, str]]:
    """Check kernels and time competitive ones; return the disturbance (empty if none) and why kernels are wrong."""
    from roller.runtime.check_and_time_cpu_kernels import CpuBench

    wrong: dict[int, str] = {}
    doubt = ""
    # All kernels run at their smallest extents, the most critical ones; a disturbed time is discarded.
    least = {n: {max(v.family.rows, varies.low), v.family.rows + 1} for n, v in enumerate(variants)}
    for extent in sorted({*places, *(x for some in least.values() for x in some if x <= varies.high)}):
        usable = [n for n, v in enumerate(variants) if v.family.rows <= extent and n not in wrong]
        if not usable:
            continue
        times.price([extent])
        near = times.near(usable, extent) if timed and extent in places else []
        others = [n for n in usable if n not in near and (extent in least[n] or (not timed and extent in places))]
        bench = CpuBench(varies.at(extent), seed, patience_s=_PATIENCE_S)
        for some, by_time in ((near, True), (others, False)):
            here = {str(n): variants[n].at(varies, extent) for n in some}
            records = bench.profile(here, timed=by_time, budget_s=_BUDGET_S) if here else {}
            disturbed = next((r.reason for r in records.values() if r.status == "doubtful"), "")
            doubt = doubt or disturbed
            for n, record in ((int(name), r) for name, r in records.items()):
                if record.status in ("wrong", "failed"):
                    wrong[n] = f"at {extent}: {record.reason}"
                elif record.measured_s is not None and not disturbed and math.isfinite(times.predicted[extent][n]):
                    times.measured.setdefault(n, {})[extent] = record.measured_s
    return doubt, wrong


def _seconds_at_all_extents(n: int, rows: int, times: _KernelTimes, every: np.ndarray) -> np.ndarray:
    """Return a kernel's time at every extent, in seconds; the time per register tile is interpolated."""
    # Infinite below the rows of a tile, and beyond the extents that fit the device's capacities.
    known = [x for x in sorted(times.predicted) if x >= rows]
    fitting = list(itertools.takewhile(math.isfinite, (times.at(n, x) for x in known)))
    if not fitting:
        return np.full(len(every), np.inf)
    at, took = np.array(known[: len(fitting)]), np.array(fitting)
    between = np.exp(np.interp(np.log(every), np.log(at), np.log(took / -(-at // rows))))
    last = every[-1] if len(fitting) == len(known) else at[-1]
    return np.where((every >= rows) & (every <= last), between * -(-every // rows), np.inf)
