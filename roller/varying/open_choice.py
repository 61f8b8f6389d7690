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

from roller import perf
from roller.errors import NoCandidateError, counted
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.search.constructor import program_of
from roller.search.ranking import best_programs
from roller.targets import target_for
from roller.templates.common.options import ConstructOptions
from roller.templates.registry import programs_of
from roller.varying.box import Box, Sizes
from roller.varying.families import fewest
from roller.varying.open_build import build
from roller.varying.open_programs import OpenExpr, OpenKernel, OpenProgram, open_forms
from roller.varying.open_proof import fault

_LOG = logging.getLogger("roller")
#: Kernels of an expression at most; programs of every size that is constructed for; rounds of building.
_MOST, _EACH, _ROUNDS = 4, 2, 8
#: What one more kernel must gain; see :func:`~roller.varying.families.fewest`.
_WORTH = 0.01
#: Lanes that programs of few elements are made with, beside those of the device.
_LANES = (1, 4)


@dataclass(frozen=True)
class OpenKernels:
    """The kernels of one expression.

    Parameters
    ----------
    expression
        What they compute.
    kernels
        Built and checked.
    grid
        Sizes at which they were priced.
    costs
        Predicted seconds ``(kernels, sizes of grid)``; infinite where a kernel cannot be used.
    cores
        That they are written for.
    """

    expression: OpenExpr
    kernels: tuple[OpenKernel, ...]
    grid: tuple[Sizes, ...]
    costs: np.ndarray
    cores: int
    _chosen: dict[tuple[int, ...], int] = field(default_factory=dict, compare=False, repr=False)
    _lock: Lock = field(default_factory=Lock, compare=False, repr=False)

    def best(self, sizes: Sizes) -> int:
        """Return the position of the kernel for some sizes: the first that is right there of those that take them.

        What is found is kept. New sizes take some milliseconds, more where a kernel must run to show that it is right.

        Raises
        ------
        NoCandidateError
            No kernel takes them, or none is right there.
        """
        key = tuple(sizes.values())
        with self._lock:
            if key not in self._chosen:
                self._chosen[key] = self._right(sizes)
            return self._chosen[key]

    def _right(self, sizes: Sizes) -> int:
        reasons = []
        expression = self.expression.at(sizes)
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
        """Return the kernels that take some sizes, the cheapest at the nearest sizes that were priced first."""
        usable = np.array([k.takes(sizes) for k in self.kernels])
        logs = np.array([[math.log(p[n]) for n in sizes] for p in self.grid])
        off = np.abs(logs - [math.log(x) for x in sizes.values()]).sum(axis=1)
        costs = np.where(usable[:, None], self.costs, np.inf)
        known = np.isfinite(costs).any(axis=0)
        column = costs[:, int(np.where(known, off, np.inf).argmin())]
        return [int(row) for row in column.argsort(kind="stable") if usable[row]]


@dataclass
class _Search:
    """What is known of one expression while its kernels are built."""

    name: str
    expr: OpenExpr
    families: list[OpenProgram]
    grid: Sequence[Sizes]
    costs: np.ndarray
    best: np.ndarray
    built: dict[int, OpenKernel] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    checked: set[int] = field(default_factory=set)

    def wanted(self) -> list[int]:
        """Return the families to use as far as known."""
        return fewest(self.costs, self.best, _MOST, _WORTH)

    def drop(self, row: int, why: str) -> None:
        self.costs[row] = np.inf
        self.built.pop(row, None)
        self.reasons.append(why)
        _LOG.info("%s: a kernel of the range is left out: %s", self.name, why)


def compile_open(
    expressions: Mapping[str, tuple[OpenExpr, tuple[str, ...]]], points: Sequence[Sizes], box: Box, spec: DeviceSpec,
    options: ConstructOptions, seed: int = 0,
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

    Raises
    ------
    NoCandidateError
        Where no kernels for all sizes of an expression were found.
    """
    searches = {key: _search(e, names, points, box, spec, options) for key, (e, names) in expressions.items()}
    target_for(spec).prepare()
    for _ in range(_ROUNDS):
        jobs = {f"{key}/{row}": (s.families[row], s.expr) for key, s in searches.items()
                for row in s.wanted() if row not in s.built}  # fmt: skip
        if not jobs:
            break
        _build(jobs, searches, box, spec)
        for s in searches.values():
            _check(s, box, seed)
    return {key: _chosen(s, spec.units) for key, s in searches.items()}


def _search(
    expr: OpenExpr, constants: tuple[str, ...], points: Sequence[Sizes], box: Box, spec: DeviceSpec,
    options: ConstructOptions,
) -> _Search:  # fmt: skip
    forms = open_forms(expr, points, options)
    families: dict[Any, OpenProgram] = {}
    nominal = [p for p in box.nominal() if min(p.values()) > 1]
    for sizes in nominal:
        batches = [replace(b, constants=constants) for b in programs_of(expr.at(sizes), spec, options) if len(b)]
        for program, _ in best_programs(batches, spec, _EACH, partial(program_of, spec=spec)) if batches else ():
            form = next((f for f in forms if f.at(sizes) == program.expr), None)
            if form is None or program.split_k > 1 or program.traits.output_side:
                continue
            found = OpenProgram(program, form, sizes)
            for family in (found, *(found.narrowed(lanes) for lanes in _LANES)):
                families.setdefault(family.key(), family)
    several = list(families.values())
    grid = box.grid()
    costs = np.full((len(several), len(grid)), np.inf)
    for column, sizes in enumerate(grid):
        rows = [n for n, f in enumerate(several) if f.takes(sizes)]
        shared: dict[TensorExpr, TensorExpr] = {}
        programs = [several[n].at(sizes) for n in rows]
        programs = [replace(p, expr=shared.setdefault(p.expr, p.expr)) for p in programs]
        if programs:
            costs[rows, column] = [e.seconds for e in perf.estimate_programs(programs, spec)]
    name = expr.at(box.high).name
    return _Search(name, expr, several, grid, costs, costs.min(axis=0, initial=np.inf))


def _build(
    jobs: Mapping[str, tuple[OpenProgram, OpenExpr]], searches: Mapping[str, _Search], box: Box, spec: DeviceSpec
) -> None:
    """Build kernels in parallel, and note where one cannot be."""
    from roller.runtime.build_pool import build_all

    _LOG.info("building %s for a range", counted(len(jobs), "kernel"))
    for name, result in build_all(jobs, lambda job: build(*job, box, spec)).items():
        key, row = name.rsplit("/", 1)
        s, kernel = searches[key], result.value
        if kernel is None:
            s.drop(int(row), str(result.record.reason))
            continue
        # What was pickled is another object: the expressions that are known already are those of the family.
        s.built[int(row)] = replace(kernel, program=s.families[int(row)])
        usable = np.array([s.built[int(row)].takes(p) for p in s.grid])
        s.costs[int(row), ~usable] = np.inf


def _check(s: _Search, box: Box, seed: int) -> None:
    """Run kernels that are new at some sizes, where they are least too; those that are wrong are dropped."""
    from roller.backends.cpu.launcher import CpuKernel
    from roller.runtime.cpu_profile import Bench
    from roller.runtime.guard_pages import trespass

    fresh = {row: k for row, k in s.built.items() if row not in s.checked}
    places: dict[tuple[int, ...], list[int]] = {}
    for row, kernel in fresh.items():
        taken = sorted((p for p in [*s.grid, *_some(box)] if kernel.takes(p)), key=lambda p: math.prod(p.values()))
        few = [*taken[:3], *taken[3 : len(taken) * 3 // 4 : max(1, len(taken) // 3)], *taken[-1:]]
        for p in [*few, *(p for p in kernel.unlike if kernel.takes(p))]:
            rows = places.setdefault(tuple(p.values()), [])
            rows += [row] if row not in rows else []
    for values, rows in places.items():
        sizes = dict(zip(box.ends, values, strict=True))
        expression = s.expr.at(sizes)
        here = {str(r): fresh[r].at(sizes, expression) for r in rows if r in s.built}
        bench = Bench(expression, seed)
        for name, artifact in list(here.items()):  # before it may write where it must not
            held = tuple(replace(c, values=bench.inputs[c.position].tobytes()) for c in artifact.constants)
            fault = trespass(CpuKernel(replace(artifact, constants=held)))
            if fault:
                s.drop(int(name), f"at {sizes}: {fault}")
                del here[name]
        for name, record in bench.profile(here, timed=False).items() if here else ():
            if record.status in ("wrong", "failed"):
                s.drop(int(name), f"at {sizes}: {record.reason}")
    s.checked |= set(fresh)


def _some(box: Box) -> list[Sizes]:
    return [p for p, _ in zip(box.points(11), range(6), strict=False)]


def _chosen(s: _Search, cores: int) -> OpenKernels:
    rows = [r for r in s.wanted() if r in s.built]
    costs = s.costs[rows]
    open_yet = [p for p, column in zip(s.grid, costs.T, strict=True) if np.isinf(column).all()]
    if open_yet or not rows:
        why = "; ".join(dict.fromkeys(s.reasons))
        raise NoCandidateError(
            f"{s.name}: shapes: expected kernels for all sizes, got none for {open_yet[:3]}{f': {why}' if why else ''}."
        )
    return OpenKernels(s.expr, tuple(s.built[r] for r in rows), tuple(s.grid), costs, cores)
