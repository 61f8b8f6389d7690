"""From a range of extents to few kernels: priced everywhere, built once, timed at some extents."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from roller.choosing import Selection
from roller.core.c_compiler import need_compiler
from roller.errors import NoCandidateError, RollerError, counted
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.search.constructor import target_units
from roller.targets import target_for
from roller.templates.common.options import ConstructOptions
from roller.varying.extents import extents_of
from roller.varying.families import Family, families, families_suit, fewest, price_table, samples, shortlist
from roller.varying.kernel import Variant, VaryingKernel
from roller.varying.open_call import OpenRange
from roller.varying.open_operator import compile_extents
from roller.varying.ranges import Range, open_range

_LOG = logging.getLogger("roller")
#: Kernels at most; those built to choose among; extents they are timed at; patience (s) with a busy machine at each.
MOST, _BUILT, _TIMED, _PATIENCE_S = 8, 14, 9, 0.5
#: Seconds that kernels are timed for at an extent.
_BUDGET_S = 0.03
#: Extents at which kernels are compared to choose among them.
_WEIGHED = 64
#: What a time that was not measured is taken for, over its prediction: such kernels were not near the best.
_UNMEASURED = 1.1


def compile_varying(
    expr: TensorExpr, spec: DeviceSpec, shapes: Mapping[str, Any], options: ConstructOptions, seed: int, how: Selection,
    here: bool, plain: bool = True,
) -> VaryingKernel | OpenRange:  # fmt: skip
    """Compile an expression for all extents of some of its axes, on this machine's processor.

    One axis along the first dimension takes kernels whose code has its extent as a variable, where the templates that
    can have one suit it (:mod:`roller.varying.families`); all else takes code of some sizes that is generalised
    (:mod:`roller.varying.open_operator`).

    Parameters
    ----------
    expr, spec, options
        As for construction.
    shapes
        Names of axes -> their extents (:func:`~roller.varying.extents.extents_of`).
    seed
        Of the inputs that kernels are checked and timed with.
    how
        Whether kernels are timed; else, and where other programs disturb the timing, predictions choose.
    here, plain
        Whether the device is this machine's processor, and nothing is asked beside that a range does not have.

    Raises
    ------
    NoCandidateError
        No program takes an open extent, or no kernel of those that were built is right.
    RollerError
        ``shapes`` names no size that can vary, or the device is not this machine's processor.
    """
    if not here:
        raise RollerError(
            f"shapes: expected this machine's processor (device='cpu'), got {spec.name}. Compile for one shape."
        )
    if how.refine_s or not plain:
        raise RollerError("shapes: expected neither prove, refine_s nor remeasure beside it, got one. Leave it out.")
    timed = not how.deterministic
    need_compiler("compiling for this processor")
    constants = tuple(options.constants_of(expr))
    spec, options = target_units(spec, options), replace(options, units=None)
    varies = open_range(expr, shapes, constants)
    if varies is None or not families_suit(varies, spec, options):
        return compile_extents(extents_of(expr, shapes, constants), spec, options, seed, timed)
    found, best = families(varies, spec, options)
    extents = sorted(best)
    costs = price_table(found, extents, spec)
    least = np.minimum(costs.min(axis=0), [best[x] for x in extents])
    kept = shortlist(costs, least, MOST, _BUILT)
    variants, reasons = _built([found[n] for n in kept], varies, spec)
    places = samples(varies.low, varies.high, _TIMED if timed else 3)
    if timed:  # where one row more is half a kernel's work, nothing can be interpolated
        places = tuple(sorted({*places, *range(varies.low, min(varies.low + 4, varies.high + 1))}))
    measured, doubt, wrong = _judged(variants, varies, places, seed, timed)
    for level, why in ((logging.INFO, reasons), (logging.WARNING, list(wrong.values()))):
        for reason in dict.fromkeys(why):
            _LOG.log(level, "%s: a kernel of the range is left out: %s", expr.name, reason)
    reasons += wrong.values()
    right = [v for v in variants if id(v) not in wrong]
    if not right:
        raise NoCandidateError(
            f"{expr.name}: shapes: expected a kernel that is right, none of {counted(len(kept), 'kernel')} is: "
            f"{'; '.join(dict.fromkeys(reasons)).rstrip('.')}."
        )
    every = np.arange(varies.low, varies.high + 1)
    if doubt:  # a time that others disturbed decides nothing
        measured = {}
    whole = np.stack([_everywhere(v, spec, extents, measured.get(id(v), {}), every) for v in right])
    weighed = np.array(samples(varies.low, varies.high, _WEIGHED)) - varies.low  # small extents count as much as large
    chosen = fewest(whole[:, weighed], whole[:, weighed].min(axis=0), MOST)
    if np.isinf(whole[chosen].min(axis=0)).any():
        raise NoCandidateError(
            f"{expr.name}: shapes: expected kernels for all extents from {varies.low} to {varies.high}, got none for "
            f"{int(every[np.isinf(whole[chosen].min(axis=0))][0])}. Leave the least extents out"
            f"{''.join(f'; {why}' for why in dict.fromkeys(reasons))}."
        )
    table = whole[chosen].argmin(axis=0).astype(np.uint8)
    mine = price_table([right[n].family for n in chosen], extents, spec)
    regrets = {x: float(mine[table[x - varies.low], c] / least[c]) - 1.0 for c, x in enumerate(extents)}
    return VaryingKernel(varies, [right[n] for n in chosen], table, regrets, spec, doubt)


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


def _judged(
    variants: Sequence[Variant], varies: Range, places: Sequence[int], seed: int, timed: bool
) -> tuple[dict[int, dict[int, float]], str, dict[int, str]]:
    """Return measured seconds by kernel and extent, what disturbed them, and why kernels are wrong."""
    from roller.runtime.cpu_profile import Bench

    measured: dict[int, dict[int, float]] = {}
    reasons: dict[int, str] = {}
    doubt = ""
    own = {x for v in variants for x in (v.family.rows, v.family.rows + 1) if varies.low <= x <= varies.high}
    for extent in sorted({*places, *own}):  # where a kernel takes its least, and where its last tile overlaps, too
        here = {str(id(v)): v.at(varies, extent) for v in variants if v.family.rows <= extent and id(v) not in reasons}
        if not here:
            continue
        records = Bench(varies.at(extent), seed, patience_s=_PATIENCE_S).profile(
            here, timed=timed and extent in places, budget_s=_BUDGET_S
        )
        for name, record in records.items():
            if record.status in ("wrong", "failed"):
                reasons[int(name)] = f"at {extent}: {record.reason}"
            elif record.measured_s is not None:
                measured.setdefault(int(name), {})[extent] = record.measured_s
            doubt = doubt or (record.reason if record.status == "doubtful" else "")
    return measured, doubt, reasons


def _everywhere(
    variant: Variant, spec: DeviceSpec, extents: Sequence[int], measured: Mapping[int, float], every: np.ndarray
) -> np.ndarray:
    """Return the seconds of a kernel at every extent: between known ones the time of a register tile is interpolated.

    Extents that were measured count, and beside them those that were priced, scaled by what measuring found. Infinite
    below the rows of a tile, and from where the device's capacities are exceeded on.
    """
    rows = variant.family.rows
    known = sorted({*(x for x in extents if x >= rows), *measured, max(rows, int(every[0]))})
    predicted = dict(zip(known, price_table([variant.family], known, spec)[0].tolist(), strict=True))
    off = sorted(math.log(t / predicted[x]) for x, t in measured.items() if math.isfinite(predicted[x]))
    scale = math.exp(off[len(off) // 2]) if off else _UNMEASURED
    seconds = [measured.get(x, predicted[x] * scale) for x in known]
    fitting = list(itertools.takewhile(lambda x: math.isfinite(x[1]), zip(known, seconds, strict=True)))
    if not fitting:
        return np.full(len(every), np.inf)
    at, took = (np.array(column) for column in zip(*fitting, strict=True))
    between = np.exp(np.interp(np.log(every), np.log(at), np.log(took / -(-at // rows))))
    last = every[-1] if len(fitting) == len(known) else at[-1]
    return np.where((every >= rows) & (every <= last), between * -(-every // rows), np.inf)
