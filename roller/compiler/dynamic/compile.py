"""From a range of extents to few kernels: priced everywhere, built once, timed at some extents."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from roller.compiler.autotune import Selection
from roller.compiler.autotune.priced_only import compiled_spec
from roller.compiler.dynamic.extents import extents_of
from roller.compiler.dynamic.families import (
    Family,
    families,
    families_suit,
    fewest,
    own_of_first,
    price_table,
    samples,
    shortlist,
)  # fmt: skip
from roller.compiler.dynamic.kernel import Variant, VaryingKernel
from roller.compiler.dynamic.kernel_choice import UNMEASURED, near_most
from roller.compiler.dynamic.ranges import Range, nothing_beside, open_range
from roller.compiler.dynamic.symbolic_call import SymbolicRange
from roller.compiler.dynamic.symbolic_operator import compile_extents
from roller.construction.constructor import target_units
from roller.core.c_compiler import need_compiler
from roller.errors import NoCandidateError, RollerError, counted
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.targets import target_for
from roller.templates.common.options import ConstructOptions

if TYPE_CHECKING:
    from roller.backends.devices import DeviceHandle

_LOG = logging.getLogger("roller")
#: Kernels at most; those built to choose among, and that cover all extents beside the first ones; patience (s) with a
#: busy machine at each extent they are timed at.
MOST, _BUILT, _COVER, _PATIENCE_S = 8, 14, 3, 0.5
#: Extents from the least on that all are priced: nothing is interpolated where the count of tiles changes often.
_PRICED = 48
#: Seconds that a kernel is timed for at an extent.
_BUDGET_S = 0.02
#: Kernels are timed where they are expected to take at most this over the fastest: those timed at extents down to a
#: fraction of it, and others.
_BESIDE, _NEAR_KNOWN, _NEAR = 3, 1.15, 1.35
#: Extents at which kernels are compared to choose among them.
_WEIGHED = 64


def compile_varying(
    expr: TensorExpr, spec: DeviceSpec, shapes: Mapping[str, Any], options: ConstructOptions, seed: int, how: Selection,
    here: bool, beside: Mapping[str, bool], handle: DeviceHandle | None = None,
) -> VaryingKernel | SymbolicRange:  # fmt: skip
    """Compile an expression for all extents of some of its axes, on this machine's processor or a GPU.

    One axis along the first dimension takes kernels whose code has its extent as a variable, where the templates that
    can have one suit it (:mod:`roller.compiler.dynamic.families`); all else takes code of some sizes that is
    generalised (:mod:`roller.compiler.dynamic.symbolic_operator`).
    """
    _check_device(spec, here, handle)
    nothing_beside({**beside, "refine_s": bool(how.refine_s)})
    constants = tuple(options.constants_of(expr))
    if spec.traits.blocks:  # predictions choose: no device is touched
        compiled: SymbolicRange = spec.traits.module_for("compiler.dynamic").compile_range(
            extents_of(expr, shapes, constants), compiled_spec(expr, spec), options, here
        )
        return compiled
    timed = not how.deterministic
    need_compiler("compiling for this processor")
    spec, options = target_units(spec, options), replace(options, units=None)
    varies = open_range(expr, shapes, constants)
    if varies is not None and families_suit(varies, spec, options):
        found, best = families(varies, spec, options)
        if found:
            return _compiled(varies, found, best, spec, options, seed, timed)
    return compile_extents(extents_of(expr, shapes, constants), spec, options, seed, timed)


def _check_device(spec: DeviceSpec, here: bool, handle: DeviceHandle | None) -> None:
    """Refuse devices that ranges are not for."""
    if not here and not spec.traits.blocks:
        raise RollerError(
            f"shapes: expected this machine's processor (device='cpu') or a GPU, got {spec.name}. "
            "Compile for one shape."
        )
    if handle is not None and handle.target.pretends:
        raise RollerError(
            f"shapes: expected a device that runs kernels, got a pretended {spec.name}. Write device='{spec.name}'."
        )


def _compiled(
    varies: Range, found: Sequence[Family], best: Mapping[int, float], spec: DeviceSpec, options: ConstructOptions,
    seed: int, timed: bool,
) -> VaryingKernel:  # fmt: skip
    """Build kernels of families, run them at some extents, and keep few of those that are right."""
    extents = sorted(best)
    costs = price_table(found, extents, spec)
    least = np.minimum(costs.min(axis=0), [best[x] for x in extents])
    single = own_of_first(found, extents, costs)
    kept = shortlist(costs, least, max(MOST, len(single) + _COVER), _BUILT, [f.kind for f in found], single)
    variants, reasons = _built([found[n] for n in kept], varies, spec)
    places = samples(varies.low, varies.high) if timed else samples(varies.low, varies.high, 1, 2)
    times = _Times([v.family for v in variants], spec)
    doubt, wrong = _judged(variants, varies, places, times, seed, timed)
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
    kernels, table = _chosen(varies, {n: variants[n] for n in right}, times, reasons)
    regrets = {
        x: float(times.predicted[x][kernels[table[x - varies.low]]] / least[c]) - 1.0 for c, x in enumerate(extents)
    }
    return VaryingKernel(varies, [variants[n] for n in kernels], table, regrets, spec, doubt)


def _chosen(
    varies: Range, right: Mapping[int, Variant], times: _Times, reasons: Sequence[str]
) -> tuple[list[int], np.ndarray]:
    """Return the kernels to keep, and for every extent from the least on the position of its kernel among them."""
    every = np.arange(varies.low, varies.high + 1)
    whole = np.stack([_everywhere(n, v.family.rows, times, every) for n, v in right.items()])
    weighed = np.unique(np.geomspace(varies.low, varies.high, _WEIGHED).round().astype(int)) - varies.low
    chosen = fewest(whole[:, weighed], whole[:, weighed].min(axis=0), MOST)
    least = whole[chosen].min(axis=0)
    if np.isinf(least).any():
        raise NoCandidateError(
            f"{varies.expr.name}: shapes: expected kernels for all extents from {varies.low} to {varies.high}, got "
            f"none for {int(every[np.isinf(least)][0])}. Leave the least extents out"
            f"{''.join(f'; {why}' for why in dict.fromkeys(reasons))}."
        )
    return [list(right)[n] for n in chosen], whole[chosen].argmin(axis=0).astype(np.uint8)


def _built(found: Sequence[Family], varies: Range, spec: DeviceSpec) -> tuple[list[Variant], list[str]]:
    """Return the kernels of families, built in parallel, and why others could not be built."""
    from roller.runtime.build_pool import build_all
    from roller.templates.cpu.emit.llvm import lower_for

    target_for(spec).prepare()
    expression = varies.at(varies.high)
    _LOG.info("%s: building %s for a range", expression.name, counted(len(found), "kernel"))

    def make(family: Family) -> Any:
        program = family.at(varies.high)
        return lower_for(program, expression, spec, replace(family.size, extent=varies.high))

    results = build_all({str(n): f for n, f in enumerate(found)}, make)
    built = [Variant(found[int(n)], r.value) for n, r in results.items() if r.value is not None]
    return built, [str(r.record.reason) for r in results.values() if r.value is None]


@dataclass
class _Times:
    """What the kernels of a range took at some extents, and what they take at others.

    Parameters
    ----------
    families, spec
        The kernels' programs, and the device.
    predicted
        Seconds of every kernel at an extent, ``(kernels,)``, as far as they were asked for.
    measured
        Seconds by kernel and extent.
    """

    families: Sequence[Family]
    spec: DeviceSpec
    predicted: dict[int, np.ndarray] = field(default_factory=dict)
    measured: dict[int, dict[int, float]] = field(default_factory=dict)

    def price(self, extents: Iterable[int]) -> None:
        """Predict all kernels at some extents."""
        new = [x for x in sorted(set(extents)) if x not in self.predicted]
        self.predicted |= zip(new, price_table(self.families, new, self.spec).T, strict=True)

    def at(self, n: int, extent: int) -> float:
        """Return the seconds of a kernel at an extent that is priced: measured, or predicted and off as near ones are.

        Those that were never measured are off as all others together, and then some: they were not near the best.
        """
        mine = self.measured.get(n)
        if mine is not None and extent in mine:
            return mine[extent]
        several = [self._off(m, extent) for m in ([n] if mine else self.measured)]
        off = sum(several) / len(several) if several else 0.0
        return float(self.predicted[extent][n]) * math.exp(off) * (1.0 if mine or not several else UNMEASURED)

    def near(self, usable: Sequence[int], extent: int) -> list[int]:
        """Return the kernels worth timing at an extent that is priced: fewer where near extents compared them."""
        seconds = {n: self.at(n, extent) for n in usable}
        soonest = min(seconds.values())
        known = {n for n in usable if any(extent <= _BESIDE * x for x in self.measured.get(n, ()))}
        return [n for n, s in seconds.items() if s <= soonest * (_NEAR_KNOWN if n in known else _NEAR)]

    def _off(self, n: int, extent: int) -> float:
        """Return the logarithm of a kernel's time over its prediction: what it was elsewhere, near extents more."""
        mine = self.measured[n]
        distances = [abs(math.log(x / extent)) for x in mine]
        return near_most(distances, [math.log(t / self.predicted[x][n]) for x, t in mine.items()])


def _judged(
    variants: Sequence[Variant], varies: Range, places: Sequence[int], times: _Times, seed: int, timed: bool
) -> tuple[str, dict[int, str]]:
    """Run kernels, and time them where they may be the fastest; return what disturbed that, and why some are wrong.

    All run at the least extents they take; a time that others disturbed counts as none.
    """
    from roller.runtime.cpu_profile import Bench

    wrong: dict[int, str] = {}
    doubt = ""
    least = {n: {max(v.family.rows, varies.low), v.family.rows + 1} for n, v in enumerate(variants)}
    for extent in sorted({*places, *(x for some in least.values() for x in some if x <= varies.high)}):
        usable = [n for n, v in enumerate(variants) if v.family.rows <= extent and n not in wrong]
        if not usable:
            continue
        times.price([extent])
        near = times.near(usable, extent) if timed and extent in places else []
        others = [n for n in usable if n not in near and (extent in least[n] or (not timed and extent in places))]
        bench = Bench(varies.at(extent), seed, patience_s=_PATIENCE_S)
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


def _everywhere(n: int, rows: int, times: _Times, every: np.ndarray) -> np.ndarray:
    """Return the seconds of a kernel at every extent: between known ones the time of a register tile is interpolated.

    Infinite below the rows of a tile, and from where the device's capacities are exceeded on.
    """
    known = [x for x in sorted(times.predicted) if x >= rows]
    fitting = list(itertools.takewhile(math.isfinite, (times.at(n, x) for x in known)))
    if not fitting:
        return np.full(len(every), np.inf)
    at, took = np.array(known[: len(fitting)]), np.array(fitting)
    between = np.exp(np.interp(np.log(every), np.log(at), np.log(took / -(-at // rows))))
    last = every[-1] if len(fitting) == len(known) else at[-1]
    return np.where((every >= rows) & (every <= last), between * -(-every // rows), np.inf)
