"""An operator for all extents of several axes: few kernels with open extents, chosen by timing at some sizes."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from roller.errors import ExprError, NoCandidateError, counted
from roller.hardware import DeviceSpec
from roller.search.constructor import program_of
from roller.search.ranking import best_programs
from roller.targets import target_for
from roller.templates.common.options import ConstructOptions
from roller.templates.registry import programs_of
from roller.tile import RProgram
from roller.varying.box import Box, Sizes
from roller.varying.extents import Extents
from roller.varying.families import fewest, shortlist
from roller.varying.open_build import build
from roller.varying.open_call import Judged, OpenRange
from roller.varying.open_programs import FEW_LANES, OpenExpr, OpenKernel, OpenProgram, open_forms
from roller.varying.open_proof import faults
from roller.varying.open_timing import predicted

_LOG = logging.getLogger("roller")
#: Kernels at most; those built to choose among; programs of every size that is constructed for.
MOST, _BUILT, _EACH = 8, 10, 4
#: Seconds that a kernel is timed for at some sizes, and of patience with a busy machine there.
_BUDGET_S, _PATIENCE_S = 0.015, 0.2
#: Kernels are timed where they are predicted to take at most this over the fastest.
_NEAR = 1.5
#: Extents of a range that is small are looked at beyond its end, to have some.
_LEAST_SPAN = 24


@dataclass
class Search:
    """What is known of an operator while its kernels are built."""

    varies: Extents
    expr: OpenExpr
    families: list[OpenProgram]
    places: Sequence[Sizes]
    costs: np.ndarray
    best: np.ndarray
    built: dict[int, OpenKernel] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)

    def drop(self, row: int, why: str) -> None:
        """Leave a program out, for a reason."""
        self.built.pop(row, None)
        self.costs[row] = np.inf
        self.reasons.append(why)
        _LOG.info("%s: a kernel of the range is left out: %s", self.varies.expr.name, why)


def compile_extents(
    varies: Extents, spec: DeviceSpec, options: ConstructOptions, seed: int = 0, timed: bool = True
) -> OpenRange:
    """Compile an expression for all extents of some axes, on this machine's processor.

    Parameters
    ----------
    varies
        The axes and their ranges.
    spec, options
        As for construction.
    seed
        Of the inputs that kernels are checked and timed with.
    timed
        Whether kernels are timed; else, and at sizes where other programs disturb the timing, predictions choose.

    Raises
    ------
    NoCandidateError
        No kernels for all sizes were found.
    """
    s = search(varies, spec, options)
    target_for(spec).prepare()
    for _ in range(2):  # what could not be built, or is wrong, makes room for others
        rows = [r for r in shortlist(s.costs, s.best, MOST, _BUILT) if r not in s.built]
        if len(s.built) >= MOST or not rows:
            break
        _build(s, rows, spec)
        _check(s, rows, seed)
    measured, doubt = _timed(s, seed) if timed else ({}, "")
    return _chosen(s, measured, spec, doubt)


def _offered(program: RProgram, form: OpenExpr, sizes: Sizes) -> list[OpenProgram]:
    """Return the programs of all sizes that one of some sizes is looked at as."""
    return [] if program.split_k > 1 else OpenProgram(program, form, sizes).with_narrowed(FEW_LANES)


def search(
    varies: Extents, spec: DeviceSpec, options: ConstructOptions,
    offered: Callable[[RProgram, OpenExpr, Sizes], Sequence[OpenProgram]] = _offered,
    places: Sequence[Sizes] | None = None, priced: Callable[..., np.ndarray] = predicted,
) -> Search:  # fmt: skip
    """Construct programs for sizes all over the box, and price each at all of them.

    Parameters
    ----------
    varies, spec, options
        As for :func:`compile_extents`.
    offered
        What a constructed program is looked at as.
    places
        The sizes; those of :meth:`Extents.compared` where ``None``.
    priced
        Returns seconds of programs at some sizes on a device.
    """
    points = [p for p in varies.looked_at if _exists(varies, p)]
    expr = OpenExpr.of([varies.at(p) for p in points], points)
    forms = open_forms(expr, points, options)
    constants = tuple(varies.expr.inputs[n].name for n in options.constants_of(varies.expr))
    places = varies.compared() if places is None else places
    families: dict[Any, OpenProgram] = {}
    best = np.full(len(places), np.inf)
    for column, sizes in enumerate(places):
        batches = [replace(b, constants=constants) for b in programs_of(expr.at(sizes), spec, options) if len(b)]
        ranked = best_programs(batches, spec, _EACH, partial(program_of, spec=spec)) if batches else []
        best[column] = min((e.seconds for _, e in ranked), default=np.inf)
        for program, _ in ranked:
            form = next((f for f in forms if f.at(sizes) == program.expr), None)
            for family in offered(program, form, sizes) if form is not None else ():
                families.setdefault(family.key(), family)
    several = list(families.values())
    costs = np.stack([priced(several, sizes, spec) for sizes in places], axis=1)
    return Search(varies, expr, several, places, costs, np.minimum(best, costs.min(axis=0, initial=np.inf)))


def _exists(varies: Extents, sizes: Sizes) -> bool:
    try:
        varies.at(sizes)
    except ExprError:
        return False
    return True


def _build(s: Search, rows: Sequence[int], spec: DeviceSpec) -> None:
    from roller.runtime.build_pool import build_all

    ends = s.varies.box.ends
    wide = Box({n: (low, max(high, low + _LEAST_SPAN)) for n, (low, high) in ends.items()})
    _LOG.info("%s: building %s for a range", s.varies.expr.name, counted(len(rows), "kernel"))
    jobs = {str(row): s.families[row] for row in rows}
    for name, result in build_all(jobs, lambda f: build(f, s.expr, wide, spec, looked_for=False)).items():
        row = int(name)
        if result.value is None:
            s.drop(row, str(result.record.reason))
        else:  # what was pickled is another object: expressions that are known are those of the family
            s.built[row] = replace(result.value, program=s.families[row])


def _check(s: Search, rows: Sequence[int], seed: int) -> None:
    """Run kernels where they are least, and in between; those that are wrong are dropped.

    Whatever sizes a call has, the kernel is shown to be right there before it runs (:mod:`.open_proof`).
    """
    from roller.runtime.cpu_profile import Bench

    wanted: dict[tuple[int, ...], list[int]] = {}
    for row in (r for r in rows if r in s.built):
        taken = sorted((p for p in [*s.places, s.varies.box.low] if s.built[row].takes(p)), key=_points)
        for p in [taken[n] for n in sorted({0, len(taken) // 2})] if taken else ():
            wanted.setdefault(tuple(p.values()), []).append(row)
    for values, mine in wanted.items():
        sizes = dict(zip(s.varies.box.ends, values, strict=True))
        bench = Bench(s.expr.at(sizes), seed)
        here = {r: s.built[r].at(sizes, bench.expression) for r in dict.fromkeys(mine) if r in s.built}
        for row, why in faults(here, bench).items():
            s.drop(row, f"at {sizes}: {why}")


def _points(sizes: Sizes) -> int:
    return math.prod(sizes.values())


def _timed(s: Search, seed: int) -> tuple[dict[int, dict[int, float]], str]:
    """Return measured seconds by program and place, and what disturbed others: a time that others disturbed is none."""
    from roller.runtime.cpu_profile import Bench

    measured: dict[int, dict[int, float]] = {}
    doubt = ""
    for column, sizes in enumerate(s.places):
        usable = [r for r, k in s.built.items() if k.takes(sizes) and math.isfinite(s.costs[r, column])]
        least = min((s.costs[r, column] for r in usable), default=0.0)
        near = [r for r in usable if s.costs[r, column] <= _NEAR * least]
        if len(near) < 2:
            continue
        bench = Bench(s.expr.at(sizes), seed, patience_s=_PATIENCE_S)
        here = {str(r): s.built[r].at(sizes, bench.expression) for r in near}
        records = bench.profile(here, budget_s=_BUDGET_S)
        disturbed = next((r.reason for r in records.values() if r.status == "doubtful"), "")
        doubt = doubt or disturbed
        for name, record in records.items():
            if record.status in ("wrong", "failed"):
                s.drop(int(name), f"at {sizes}: {record.reason}")
            elif record.measured_s is not None and not disturbed:
                measured.setdefault(int(name), {})[column] = record.measured_s
    return measured, doubt


def _chosen(s: Search, measured: Mapping[int, Mapping[int, float]], spec: DeviceSpec, doubt: str) -> OpenRange:
    """Return the kernels that together are nearest to the fastest everywhere."""
    rows = list(s.built)
    judged = [Judged(s.built[r], tuple(s.places), s.costs[r], dict(measured.get(r, {}))) for r in rows]
    seconds = np.array([j.everywhere for j in judged]).reshape(len(rows), len(s.places))
    chosen = fewest(seconds, seconds.min(axis=0, initial=np.inf), MOST) if rows else []
    least = seconds[chosen].min(axis=0, initial=np.inf)
    if not rows or np.isinf(least).any():
        open_yet = [p for p, x in zip(s.places, least, strict=True) if np.isinf(x)]
        why = "; ".join(dict.fromkeys(s.reasons))
        raise NoCandidateError(
            f"{s.varies.expr.name}: shapes: expected kernels for all extents, got none for {open_yet[:3]}"
            f"{f': {why}' if why else ''}. Leave the least extents out, or compile for each extent."
        )
    return OpenRange(s.varies, s.expr, [judged[n] for n in chosen], s.best, spec, doubt)
