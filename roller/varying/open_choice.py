"""From an expression of all sizes to few kernels: constructed for some sizes, priced at others, built once, checked."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock
from typing import Any

import numpy as np

from roller.errors import NoCandidateError, counted
from roller.hardware import DeviceSpec
from roller.search.constructor import program_of
from roller.search.ranking import best_programs
from roller.targets import target_for
from roller.templates.common.options import ConstructOptions
from roller.templates.registry import programs_of
from roller.varying.box import Box, Sizes
from roller.varying.families import fewest
from roller.varying.open_build import build
from roller.varying.open_programs import FEW_LANES, OpenExpr, OpenKernel, OpenProgram
from roller.varying.open_proof import fault, faults
from roller.varying.open_timing import Costs, predicted, timed
from roller.varying.own_sizes import OwnSizes, own_sizes

_LOG = logging.getLogger("roller")
#: Kernels of an expression at most; programs of every size that is constructed for; rounds of building.
_MOST, _EACH, _ROUNDS = 8, 2, 8
#: Kernels of an expression for which others that failed are not replaced; sizes of other code that are checked.
_FEW, _UNLIKE = 3, 2
#: Kernels that are built to cover all sizes, and beside them to choose from by their times.
_COVER, _MORE = 4, 1
#: What one more kernel must gain; see :func:`~roller.varying.families.fewest`.
_WORTH, _TIMED_WORTH = 0.01, 0.002


@dataclass(frozen=True)
class OpenKernels:
    """The kernels of one expression.

    Parameters
    ----------
    own
        What they compute, and the sizes that it depends on.
    kernels
        Built and checked.
    costs
        What each of them takes at any sizes.
    cores
        That they are written for.
    """

    own: OwnSizes
    kernels: tuple[OpenKernel, ...]
    costs: Costs
    cores: int
    _chosen: dict[tuple[int, ...], int] = field(default_factory=dict, compare=False, repr=False)
    _lock: Lock = field(default_factory=Lock, compare=False, repr=False)

    def best(self, sizes: Sizes) -> int:
        """Return the position of the kernel for a model's sizes: the first that is right there of those that take them.

        What is found is kept. New sizes take some milliseconds, more where a kernel must run to show that it is right.

        Raises
        ------
        NoCandidateError
            No kernel takes them, or none is right there.
        """
        own = self.own.at(sizes)
        key = tuple(own.values())
        with self._lock:
            if key not in self._chosen:
                self._chosen[key] = self._right(own)
            return self._chosen[key]

    def _right(self, sizes: Sizes) -> int:
        reasons = []
        expression = self.own.expression.at(sizes)
        for row in self._order(sizes):
            why = fault(self.kernels[row], expression, sizes, self.cores)
            if not why:
                return row
            reasons.append(why)
            _LOG.warning("%s: a kernel of the range is not used: %s", expression.name, why)
        what = f" that is right: {'; '.join(reasons)}" if reasons else ""
        raise NoCandidateError(
            f"{expression.name}: shapes: expected a kernel for {dict(sizes)}, got none{what}. "
            "Compile for these shapes, or ranges without them."
        )

    def _order(self, sizes: Sizes) -> list[int]:
        """Return the kernels that take some sizes, the fastest first as far as known."""
        seconds = self.costs.at([k.program for k in self.kernels], sizes)
        return [int(row) for row in seconds.argsort(kind="stable") if self.kernels[row].takes(sizes)]


@dataclass
class _Search:
    """What is known of one expression while its kernels are built."""

    name: str
    own: OwnSizes
    families: list[OpenProgram]
    grid: Sequence[Sizes]
    costs: np.ndarray
    best: np.ndarray
    timed: bool
    built: dict[int, OpenKernel] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    checked: set[int] = field(default_factory=set)

    def wanted(self) -> list[int]:
        """Return the families to build as far as known: those that cover all sizes, then the best of the others."""
        first = fewest(self.costs, self.best, _COVER, _WORTH)
        others = [n for n in range(len(self.families)) if n not in first and np.isfinite(self.costs[n]).any()]
        more = fewest(self.costs[others], self.best, min(_MORE, len(first)), _WORTH) if others and self.timed else []
        return [*first, *(others[n] for n in more)]

    def lacks(self) -> bool:
        """Whether too few kernels are built, or none for some sizes."""
        costs = self.costs[list(self.built)]
        return len(self.built) < _FEW or bool(np.isinf(costs.min(axis=0, initial=np.inf)).any())

    def drop(self, row: int, why: str) -> None:
        self.costs[row] = np.inf
        self.built.pop(row, None)
        self.reasons.append(why)
        _LOG.info("%s: a kernel of the range is left out: %s", self.name, why)


def compile_open(
    expressions: Mapping[str, tuple[OpenExpr, tuple[str, ...]]], points: Sequence[Sizes], box: Box, spec: DeviceSpec,
    options: ConstructOptions, seed: int = 0, passing_bytes: Mapping[str, int] | None = None,
) -> dict[str, OpenKernels]:  # fmt: skip
    """Compile expressions for all sizes of a box, on this machine's processor.

    Parameters
    ----------
    expressions
        By key, with the names of the inputs that are constant.
    points
        Sizes at which their canonical forms are asked for; all of at least 2.
    box
        The sizes.
    spec, options
        As for construction.
    seed
        Of the inputs that kernels are checked with.
    passing_bytes
        By key the bytes that a model touches between two calls of a kernel; without it none is timed, and predictions
        choose.

    Raises
    ------
    NoCandidateError
        Where no kernels for all sizes of an expression were found.
    """
    searches = {
        key: _search(own_sizes(e, points, box, options), names, spec, options, passing_bytes is not None)
        for key, (e, names) in expressions.items()
    }
    target_for(spec).prepare()
    for n in range(_ROUNDS):
        jobs = {f"{key}/{row}": (s.families[row], s.own) for key, s in searches.items()
                for row in s.wanted() if row not in s.built and (n < 2 or s.lacks())}  # fmt: skip
        if not jobs:
            break
        _build(jobs, searches, spec)
        for s in searches.values():
            _check(s, seed)
    known = passing_bytes or {}
    return {key: _chosen(s, spec, known.get(key, 0), seed) for key, s in searches.items()}


def _search(
    own: OwnSizes, constants: tuple[str, ...], spec: DeviceSpec, options: ConstructOptions, timed: bool
) -> _Search:
    expr, forms, box = own.expression, own.forms, own.box
    families: dict[Any, OpenProgram] = {}
    nominal = [p for p in box.nominal() if min(p.values()) > 1]
    for sizes in nominal:
        batches = [replace(b, constants=constants) for b in programs_of(expr.at(sizes), spec, options) if len(b)]
        for program, _ in best_programs(batches, spec, _EACH, partial(program_of, spec=spec)) if batches else ():
            form = next((f for f in forms if f.at(sizes) == program.expr), None)
            if form is None or program.split_k > 1 or program.traits.output_side:
                continue
            found = OpenProgram(program, form, sizes)
            for family in found.with_narrowed(FEW_LANES):
                families.setdefault(family.key(), family)
    several = list(families.values())
    grid = box.grid()
    costs = np.stack([predicted(several, sizes, spec) for sizes in grid], axis=1)
    name = expr.at(box.high).name
    return _Search(name, own, several, grid, costs, costs.min(axis=0, initial=np.inf), timed)


def _build(jobs: Mapping[str, tuple[OpenProgram, OwnSizes]], searches: Mapping[str, _Search], spec: DeviceSpec) -> None:
    """Build kernels in parallel, and note where one cannot be."""
    from roller.runtime.build_pool import build_all

    _LOG.info("building %s for a range", counted(len(jobs), "kernel"))
    for name, result in build_all(jobs, lambda job: build(job[0], job[1].expression, job[1].box, spec)).items():
        key, row = name.rsplit("/", 1)
        s, kernel = searches[key], result.value
        if kernel is None:
            s.drop(int(row), str(result.record.reason))
            continue
        # What was pickled is another object: the expressions that are known already are those of the family.
        s.built[int(row)] = replace(kernel, program=s.families[int(row)])
        usable = np.array([s.built[int(row)].takes(p) for p in s.grid])
        s.costs[int(row), ~usable] = np.inf


def _check(s: _Search, seed: int) -> None:
    """Run kernels that are new at some sizes, where they are least too; those that are wrong are dropped."""
    from roller.runtime.cpu_profile import Bench

    box = s.own.box
    fresh = {row: k for row, k in s.built.items() if row not in s.checked}
    places: dict[tuple[int, ...], list[int]] = {}
    for row, kernel in fresh.items():
        taken = sorted((p for p in [*s.grid, *_some(box)] if kernel.takes(p)), key=lambda p: math.prod(p.values()))
        few = [*taken[:3], *taken[3 : len(taken) * 3 // 4 : max(1, len(taken) // 3)], *taken[-1:]]
        if s.timed:  # what is timed is checked, too, at every place
            few = [*taken[:2], *taken[len(taken) // 2 : len(taken) // 2 + 1]]
        for p in [*few, *(p for p in kernel.unlike[:_UNLIKE] if kernel.takes(p))]:
            rows = places.setdefault(tuple(p[n] for n in box.ends), [])
            rows += [row] if row not in rows else []
    for values, rows in places.items():
        sizes = box.whole(dict(zip(box.ends, values, strict=True)))
        expression = s.own.expression.at(sizes)
        here = {r: fresh[r].at(sizes, expression) for r in rows if r in s.built}
        for row, why in faults(here, Bench(expression, seed)).items():
            s.drop(row, f"at {sizes}: {why}")
    s.checked |= set(fresh)


def _some(box: Box) -> list[Sizes]:
    return [p for p, _ in zip(box.points(11), range(6), strict=False)]


def _chosen(s: _Search, spec: DeviceSpec, passing_bytes: int, seed: int) -> OpenKernels:
    """Return the kernels to use of those that were built: by their times, or by predictions where none was timed."""
    rows, costs = list(s.built), Costs(tuple(s.own.box.ends), spec)
    if s.timed and len(rows) > 1:
        costs, wrong = timed([s.built[r] for r in rows], s.own, s.grid, s.best, spec, passing_bytes, seed)
        for n, why in wrong.items():
            s.drop(rows[n], why)
        kept = [n for n in range(len(rows)) if n not in wrong]
        rows, costs = [rows[n] for n in kept], replace(costs, found=tuple(costs.found[n] for n in kept))
    programs = [s.built[r].program for r in rows]
    seconds = np.full((len(rows), len(s.grid)), np.inf)
    for column, sizes in enumerate(s.grid):
        takes = [s.built[r].takes(sizes) for r in rows]
        seconds[:, column] = np.where(takes, costs.at(programs, sizes), np.inf) if rows else np.inf
    worth = _TIMED_WORTH if s.timed else _WORTH
    chosen = fewest(seconds, seconds.min(axis=0, initial=np.inf), _MOST, worth) if rows else []
    open_yet = [p for p, column in zip(s.grid, seconds[chosen].T, strict=True) if np.isinf(column).all()]
    if open_yet or not rows:
        why = "; ".join(dict.fromkeys(s.reasons))
        raise NoCandidateError(
            f"{s.name}: shapes: expected kernels for all sizes, got none for {open_yet[:3]}{f': {why}' if why else ''}."
        )
    found = tuple(costs.found[n] for n in chosen) if costs.found else ()
    return OpenKernels(s.own, tuple(s.built[rows[n]] for n in chosen), replace(costs, found=found), spec.units)
