"""Searches for a few kernels that cover all sizes: constructs, prices, builds, checks and times programs."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from roller.compiler.dynamic.dynamic_size_box import Sizes
from roller.compiler.dynamic.kernel_choice import PricedKernel, mean_measured_to_predicted_ratio
from roller.compiler.dynamic.program_families import choose_covering_rows, shortlist_rows
from roller.compiler.dynamic.prove_kernel_for_call_sizes import fault, find_out_of_bounds_kernels, find_wrong_kernels
from roller.compiler.dynamic.relevant_sizes import RelevantSizes
from roller.compiler.dynamic.symbolic_build import build_symbolic_kernel
from roller.compiler.dynamic.symbolic_programs import FEW_LANES, SymbolicExpr, SymbolicKernel, SymbolicProgram
from roller.construction.constructor import program_from_row
from roller.construction.ranking import best_programs
from roller.errors import NoCandidateError, counted
from roller.hardware import DeviceSpec
from roller.targets import target_for
from roller.templates.common.options import ConstructOptions
from roller.templates.registry import programs_of
from roller.tile import RProgram

_LOG = logging.getLogger("roller")
#: Maximum number of kernels per expression.
MOST = 8
#: Number of rounds of building; each replaces the kernels that failed in the one before.
_ROUNDS = 4
#: Minimum span of sampled extents; small ranges are extended.
_LEAST_SPAN = 24
#: Maximum ratio of predicted time to the fastest at which a kernel is timed.
_NEAR = 1.5


@dataclass(frozen=True)
class SearchEffort:
    """Limits on the effort of a search."""

    each: int  #: Number of programs per constructed size
    #: Number of kernels that together are predicted nearest to the best, number of kernels to build including others,
    #: and number of correct kernels with which failed ones need no replacement.
    cover: int
    built: int
    enough: int
    #: Time spent on timing the kernels at one size, and patience with a busy machine, in seconds.
    budget_s: float
    patience_s: float
    #: Maximum number of sizes to time at, and maximum predicted time there, in seconds.
    timed_at: int
    longest_s: float
    exact: bool  #: Whether to construct also for sizes at which an axis has one element, which gives other programs
    worth: float  #: Minimum gain of one more kernel (:func:`.program_families.choose_covering_rows`)
    #: Maximum numbers of kernels to build and to keep of an expression with a large share of a model's time, and the
    #: minimum gain of one more, of the whole model's time.
    most_built: int = 0
    most_kept: int = 0
    worth_of_model: float = math.inf
    #: Maximum number of kernels to build in addition, of other kinds that are predicted within 50 % at a timed size.
    rivals: int = 0


@dataclass(frozen=True)
class SearchRequest:
    """An expression and the conditions for its kernels."""

    own: RelevantSizes  #: The expression, its forms and its sizes
    constants: tuple[str, ...] = ()  #: Names of the constant inputs
    #: Number of bytes that a model touches between two runs of a kernel, which may evict its constants from caches.
    passing_bytes: int = 0

    @property
    def name(self) -> str:
        """Name of the expression."""
        return self.own.expression.at(self.own.box.high).name


@dataclass
class SearchState:
    """State of the search for the kernels of an expression."""

    question: SearchRequest
    families: list[SymbolicProgram]  #: The programs
    places: Sequence[Sizes]  #: Sample sizes
    costs: np.ndarray  #: Predicted seconds, shape ``(families, places)``; infinite where unsupported or dropped
    best: np.ndarray  #: Predicted seconds of the best program, shape ``(places,)``
    built: dict[int, SymbolicKernel] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    share: float = 0.0  #: Largest share of the model's predicted time, of small, middle and large sizes

    def drop(self, row: int, why: str) -> None:
        """Drop a program and log the reason."""
        self.built.pop(row, None)
        self.costs[row] = np.inf
        self.reasons.append(why)
        _LOG.info("%s: a kernel of the range is left out: %s", self.question.name, why)

    def wanted(self, effort: SearchEffort) -> list[int]:
        """Return the indices of the programs to build."""
        few = shortlist_rows(self.costs, self.best, effort.cover, effort.built, [f.kind for f in self.families])
        if not self.share or len(few) >= effort.most_built:
            return few
        worth = effort.worth_of_model / self.share
        found = choose_covering_rows(self.costs, self.best, effort.most_built, worth, given=few)
        # Where the first kernels suffice, no other kind is nearly as fast as they are.
        return [*found, *self._rivals(found, effort)] if len(found) > len(few) else found

    def _rivals(self, chosen: Sequence[int], effort: SearchEffort) -> list[int]:
        """Return programs of other kinds than the chosen ones that are predicted to be competitive at a timed size."""
        # The errors of predictions differ between kinds more than within one, and only a measurement shows them.
        known, found = {self.families[row].kind for row in chosen}, dict[object, tuple[float, int]]()
        timed = self.costs[:, [n for n in self.timed_at(effort) if np.isfinite(self.costs[:, n]).any()]]
        near = (timed / timed.min(axis=0, initial=np.inf)).min(axis=1, initial=np.inf)
        for row in np.flatnonzero(near <= _NEAR).tolist():
            kind = self.families[row].kind
            if kind not in known:
                found[kind] = min(found.get(kind, (np.inf, row)), (float(near[row]), row))
        return [row for _, row in sorted(found.values())[: effort.rivals]]

    def timed_at(self, effort: SearchEffort) -> list[int]:
        """Return the indices of the sample sizes at which to time kernels."""
        short = [n for n in range(len(self.places)) if self.best[n] < effort.longest_s]
        names = tuple(self.question.own.box.ends)
        return [short[n] for n in positions_far_apart([self.places[n] for n in short], names, effort.timed_at)]

    def lacks(self, enough: int) -> bool:
        """Return whether too few kernels are built or some sample size has no kernel."""
        least = self.costs[list(self.built)].min(axis=0, initial=np.inf)
        return len(self.built) < enough or bool(np.isinf(least).any())


def construct_and_price_all(
    questions: Mapping[str, SearchRequest], spec: DeviceSpec, options: ConstructOptions, effort: SearchEffort
) -> dict[str, SearchState]:
    """Construct programs for each expression at sample sizes; price each program at all sample sizes."""
    from roller.runtime.build_pool import build_all, build_all_without_fork

    run = build_all if len(questions) > 1 else build_all_without_fork
    results = run(questions, lambda q: _construct_and_price(q, spec, options, effort))
    found = {}
    for key, result in results.items():
        q = questions[key]
        if result.value is None or not result.value[0]:
            why = f": {result.record.reason}" if result.value is None else ""
            raise NoCandidateError(
                f"{q.name}: shapes: expected programs that take open extents, got none{why}. Compile for each shape."
            )
        programs, best, costs = result.value
        # Pickling copies objects: use the known expressions of the forms.
        families = [SymbolicProgram(program, q.own.forms[form], sizes) for program, form, sizes in programs]
        found[key] = SearchState(q, families, q.own.box.sample_sizes(), costs, best)
    return found


def find_shares(searches: Mapping[str, SearchState], uses: Mapping[str, int]) -> None:
    """Set each search's largest share of a model's predicted time; ``uses`` are the steps with its kernel, by key."""
    seconds = {}
    for key, s in searches.items():
        known = s.best[np.isfinite(s.best)]
        seconds[key] = uses.get(key, 1) * np.quantile(known, (0.0, 0.5, 1.0)) if len(known) else np.zeros(3)
    total = np.sum(list(seconds.values()), axis=0)
    for key, s in searches.items():
        s.share = float(np.max(seconds[key] / np.maximum(total, np.finfo(float).tiny)))


def _construct_and_price(
    q: SearchRequest, spec: DeviceSpec, options: ConstructOptions, effort: SearchEffort
) -> tuple[Any, ...]:
    """Return programs (each with its form's index and its sizes), the best seconds per place, and all seconds."""
    own, places = q.own, q.own.box.sample_sizes()
    looked_at = [*places, *(p for p in map(own.box.raise_ones_to_two, places) if p not in places)]
    if not effort.exact:
        looked_at = [p for p in looked_at if p == own.box.raise_ones_to_two(p)]
    several, best = construct_symbolic_programs(q, looked_at, spec, options, effort.each)
    predicted = spec.traits.module_for("compiler.dynamic").predicted
    costs = np.stack([predicted(several, sizes, spec) for sizes in places], axis=1)
    forms = {id(f): n for n, f in enumerate(own.forms)}
    programs = [(f.program, forms[id(f.form)], f.sizes) for f in several]
    known = [best.get(tuple(p.values()), np.inf) for p in places]
    return programs, np.minimum(known, costs.min(axis=0, initial=np.inf)), costs


def _symbolic_programs_to_consider(program: RProgram, form: SymbolicExpr, sizes: Sizes) -> list[SymbolicProgram]:
    """Return the symbolic programs to consider for a program constructed at some sizes."""
    return [] if program.split_k > 1 else SymbolicProgram(program, form, sizes).with_narrowed_variants(FEW_LANES)


def construct_symbolic_programs(
    q: SearchRequest, looked_at: Sequence[Sizes], spec: DeviceSpec, options: ConstructOptions, each: int,
    offered: Callable[[RProgram, SymbolicExpr, Sizes], Sequence[SymbolicProgram]] = _symbolic_programs_to_consider,
) -> tuple[list[SymbolicProgram], dict[tuple[int, ...], float]]:  # fmt: skip
    """Construct programs at some sizes; return the programs for all sizes and the best seconds, keyed by sizes."""
    families: dict[Any, SymbolicProgram] = {}
    best: dict[tuple[int, ...], float] = {}
    for sizes in looked_at:
        batches = [
            replace(b, constants=q.constants) for b in programs_of(q.own.expression.at(sizes), spec, options) if len(b)
        ]
        ranked = best_programs(batches, spec, each, partial(program_from_row, spec=spec)) if batches else []
        best[tuple(sizes.values())] = min((e.seconds for _, e in ranked), default=np.inf)
        for program, _ in ranked:
            form = next((f for f in q.own.forms if f.at(sizes) == program.expr), None)
            for family in offered(program, form, sizes) if form is not None else ():
                families.setdefault(family.key(), family)
    return list(families.values()), best


def build_and_check(
    searches: Mapping[str, SearchState], spec: DeviceSpec, effort: SearchEffort, seed: int, timed: bool = True
) -> None:
    """Build the most promising programs in parallel and check them; replace those that fail."""
    target_for(spec).prepare()
    for turn in range(_ROUNDS):
        jobs = {
            f"{key}/{row}": (s, row)
            for key, s in searches.items() if turn == 0 or s.lacks(effort.enough)
            for row in s.wanted(effort) if row not in s.built
        }  # fmt: skip
        if not jobs:
            break
        _build_programs(jobs, spec, effort, timed)
        for key, s in searches.items():
            _check_kernels(s, [row for name, (_, row) in jobs.items() if name.rpartition("/")[0] == key], seed)


def _build_programs(
    jobs: Mapping[str, tuple[SearchState, int]], spec: DeviceSpec, effort: SearchEffort, timed: bool
) -> None:
    """Build programs; the process that builds a kernel also proves it correct at the sizes of its timing."""
    from roller.runtime.build_pool import build_all

    _LOG.info("building %s for a range", counted(len(jobs), "kernel"))

    rows: dict[int, list[int]] = {}
    for s, row in jobs.values():
        rows.setdefault(id(s), []).append(row)

    def made(job: tuple[SearchState, int]) -> SymbolicKernel:
        s, row = job
        box = s.question.own.widened_box(_LEAST_SPAN)
        least = s.costs[[*s.built, *rows[id(s)]]].min(axis=0)
        asked = [s.places[n] for n in s.timed_at(effort) if s.costs[row, n] <= _NEAR * least[n]] if timed else []
        return build_symbolic_kernel(s.families[row], s.question.own.expression, box, spec, asked)

    for name, result in build_all(jobs, made, reuse=True).items():
        s, row = jobs[name]
        if result.value is None:
            s.drop(row, str(result.record.reason))
        else:  # pickling copies objects: use the family's program
            s.built[row] = replace(result.value, program=s.families[row])
            s.costs[row, [n for n, p in enumerate(s.places) if not s.built[row].takes(p)]] = np.inf


def _check_kernels(s: SearchState, rows: Sequence[int], seed: int) -> None:
    from roller.runtime.check_and_time_cpu_kernels import CpuBench

    # Only a smoke test: every call proves its kernel at its own sizes (symbolic_proof).
    own = s.question.own
    wanted: dict[tuple[int, ...], list[int]] = {}
    for row in (r for r in rows if r in s.built):
        taken = [p for p in [*s.places, own.box.low] if s.built[row].takes(p)]
        taken.sort(key=lambda p: math.prod(p[n] for n in own.box.ends))
        for p in [taken[n] for n in sorted({0, len(taken) // 2})] if taken else ():
            wanted.setdefault(tuple(p[n] for n in own.box.ends), []).append(row)
    for values, mine in wanted.items():
        sizes = own.box.with_derived_sizes(dict(zip(own.box.ends, values, strict=True)))
        bench = CpuBench(own.expression.at(sizes), seed, fenced=True)
        here = {r: s.built[r].at(sizes, bench.expression) for r in dict.fromkeys(mine) if r in s.built}
        for row, why in find_wrong_kernels(here, bench).items():
            s.drop(row, f"at {sizes}: {why}")


def _time_kernels(
    s: SearchState, effort: SearchEffort, seed: int, units: int
) -> tuple[dict[int, dict[int, float]], str]:
    """Time kernels; return undisturbed seconds, keyed by program and place, and the disturbance (empty if none)."""
    from roller.runtime.check_and_time_cpu_kernels import CpuBench, has_guarded_loads

    measured: dict[int, dict[int, float]] = {}
    own, doubt = s.question.own, ""
    for column in s.timed_at(effort):
        sizes, near = s.places[column], _kernels_competitive_at_place(s, column)
        if len(near) < 2:
            continue
        expression = own.expression.at(sizes)
        for row in near:
            if fault(s.built[row], expression, sizes, units, seed):  # do not run a wrong kernel
                s.costs[row, column] = np.inf
        near = [r for r in near if math.isfinite(s.costs[r, column])]
        bench = CpuBench(
            expression, seed, rotating_bytes=s.question.passing_bytes, patience_s=effort.patience_s, fenced=True
        )
        here = {str(r): s.built[r].at(sizes, expression) for r in near}
        if has_guarded_loads(expression):  # guarded accesses, which a compiler may get wrong
            for row, why in find_out_of_bounds_kernels({int(r): k for r, k in here.items()}, bench).items():
                s.drop(row, f"at {sizes}: {why}")
                del here[str(row)]
        records = bench.profile(here, budget_s=effort.budget_s) if here else {}
        disturbed = next((r.reason for r in records.values() if r.status == "doubtful"), "")
        doubt = doubt or disturbed
        for name, record in records.items():
            if record.status in ("wrong", "failed"):
                s.drop(int(name), f"at {sizes}: {record.reason}")
            elif record.measured_s is not None and not disturbed:
                measured.setdefault(int(name), {})[column] = record.measured_s
    return measured, doubt


def _kernels_competitive_at_place(s: SearchState, column: int) -> list[int]:
    sizes = s.places[column]
    usable = [r for r, k in s.built.items() if k.takes(sizes) and math.isfinite(s.costs[r, column])]
    least = min((s.costs[r, column] for r in usable), default=0.0)
    return [r for r in usable if s.costs[r, column] <= _NEAR * least]


def positions_far_apart(places: Sequence[Sizes], names: Sequence[str], most: int) -> list[int]:
    """Return the indices of at most ``most`` sample sizes that are far apart, including the largest."""
    if len(places) <= most:
        return list(range(len(places)))
    logs = np.array([[math.log(p[n]) for n in names] for p in places])
    choose_kernels = [int(logs.sum(axis=1).argmax())]
    while len(choose_kernels) < most:
        off = np.stack([np.abs(logs - logs[n]).sum(axis=1) for n in choose_kernels]).min(axis=0)
        if off.max() == 0:
            break
        choose_kernels.append(int(off.argmax()))
    return sorted(choose_kernels)


def choose_kernels(
    s: SearchState, spec: DeviceSpec, effort: SearchEffort, seed: int, timed: bool
) -> tuple[list[PricedKernel], str]:
    """Return the kernels that together are closest to the fastest at all places, and the reason for doubt or ``""``."""
    measured, doubt = _time_kernels(s, effort, seed, spec.units) if timed else ({}, "")
    rows = list(s.built)
    measured = {r: t for r, t in measured.items() if r in s.built}
    usual = mean_measured_to_predicted_ratio(dict(enumerate(s.costs)), measured)
    priced = [PricedKernel(s.built[r], tuple(s.places), s.costs[r], dict(measured.get(r, {})), usual) for r in rows]
    seconds = np.array([j.seconds_at_samples for j in priced]).reshape(len(rows), len(s.places))
    most = max(MOST, effort.most_kept)
    kept = choose_covering_rows(seconds, seconds.min(axis=0, initial=np.inf), most, effort.worth) if rows else []
    least = seconds[kept].min(axis=0, initial=np.inf)
    if not rows or np.isinf(least).any():
        open_yet = [p for p, x in zip(s.places, least, strict=True) if np.isinf(x)]
        why = "; ".join(dict.fromkeys(s.reasons))
        raise NoCandidateError(
            f"{s.question.name}: shapes: expected kernels for all sizes, got none for {open_yet[:3]}"
            f"{f': {why}' if why else ''}. Leave the least extents out, or compile for each extent."
        )
    return [priced[n] for n in kept], doubt
