"""Compiles a dynamic operator for a GPU to a few kernels, chosen by prediction."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from roller.compiler.dynamic.build_search_request import build_search_request
from roller.compiler.dynamic.dynamic_axes import DynamicAxes
from roller.compiler.dynamic.dynamic_size_box import SizeBox, Sizes
from roller.compiler.dynamic.gpu.programs import MOST_KEPT, GpuKernel, SymbolicGpuProgram, build, predicted
from roller.compiler.dynamic.kernel_choice import PricedKernel
from roller.compiler.dynamic.program_families import choose_covering_rows, shortlist_rows
from roller.compiler.dynamic.symbolic_call import SymbolicRange
from roller.compiler.dynamic.symbolic_programs import SymbolicExpr
from roller.compiler.dynamic.symbolic_search import MOST, SearchRequest, SearchState, construct_symbolic_programs
from roller.construction.constructor import spec_of_device_share
from roller.errors import NoCandidateError, RollerError, counted
from roller.hardware import DeviceSpec
from roller.targets import target_for
from roller.templates.common.options import ConstructOptions
from roller.tile import RProgram

_LOG = logging.getLogger("roller")
#: Number of programs to choose from if some have several kinds of code.
_WRITTEN = 12
#: Number of programs per constructed size.
_EACH = 4
#: Number of sample sizes per axis for construction, if there is one axis, two, or more; number of further ones for
#: pricing.
_PLACES, _PRICED = (20, 4, 2), 36
#: Number of sizes at which code is generated first, and number of further ones per axis if the code differs.
_FEW, _MORE = 8, 16
#: Remainders modulo 8 of sample sizes, in turn: code depends on the remainders modulo the vector lengths 2, 4 and 8.
_RESTS = (0, 1, 2, 4)
#: Number of rounds of searching for sizes without code, and number of sizes per round.
_ROUNDS, _TRIED = 4, 16
#: Maximum number of sizes in a range that is checked exhaustively.
_ALL = 48


@dataclass
class _CodeKindsBySize:
    """The kinds of code that programs have at different sizes."""

    s: SearchState
    spec: DeviceSpec
    few: Sequence[Sizes]  #: Sizes at which the code of every program is generated
    #: Kernels by kind; the only kind of each program, or ``""`` if it has several; generated kinds by program and
    #: sizes.
    built: dict[tuple[int, str], GpuKernel | None] = field(default_factory=dict)
    single: dict[int, str] = field(default_factory=dict)
    known: dict[int, dict[tuple[int, ...], tuple[Sizes, str]]] = field(default_factory=dict)

    def forget(self, rows: Sequence[int], places: Sequence[Sizes]) -> None:
        """Discard kernels whose kind of code occurs at the new sizes; they are rebuilt with this code included."""
        for row in rows:
            found = {self.written(row, p) for p in places}
            if found - {self.single.get(row, "")}:
                self.single[row] = ""
            for code in found:
                self.built.pop((row, code), None)

    def has_single_kind(self, row: int) -> bool:
        """Return whether all code generated for a program so far is of one kind."""
        if row not in self.single:
            first, *others = {self.written(row, p) for p in self.few}
            self.single[row] = "" if others else first
        return bool(self.single[row])

    def kinds(self, rows: Sequence[int]) -> list[tuple[int, str]]:
        """Return pairs of a program and the digest of its code at a sample size, without those that cannot be built."""
        found = dict.fromkeys((row, code) for row in rows for p in self.s.places if (code := self.digest(row, p)))
        return [k for k in found if self.built.get(k, True) is not None]

    def costs(self, kinds: Sequence[tuple[int, str]]) -> np.ndarray:
        """Return predicted seconds, shape ``(kinds, places)``; infinite where a program's code is of another kind."""
        places = self.s.places
        return np.array([
            [self.s.costs[row, n] if self.digest(row, p) == code else np.inf for n, p in enumerate(places)]
            for row, code in kinds
        ]).reshape(len(kinds), len(places))  # fmt: skip

    def digest(self, row: int, sizes: Sizes) -> str:
        """Return the kind of a program's code at the given sizes; if only one kind is known so far, assume it."""
        return self.single[row] if self.has_single_kind(row) else self.written(row, sizes)

    def written(self, row: int, sizes: Sizes) -> str:
        """Return the kind of a program's generated code at the given sizes; empty if there is none."""
        mine, key = self.known.setdefault(row, {}), tuple(sizes.values())
        if key not in mine:
            own = _gpu_program_at_row(self.s, row).own(sizes, self.spec)
            mine[key] = sizes, "" if isinstance(own, str) else own.digest
        return mine[key][1]

    def build(self, kind: tuple[int, str]) -> GpuKernel | None:
        """Return the kernel of a kind, or ``None`` if it cannot be built."""
        if kind not in self.built:
            row, code = kind
            program = _gpu_program_at_row(self.s, row)
            mine = _evenly_spread_sizes([p for p, digest in self.known[row].values() if digest == code], MOST_KEPT)
            several = [own for own in program.codes_at(mine, self.spec) if not isinstance(own, str)]
            try:
                self.built[kind] = build(
                    program, several, mine[0], self.s.question.own.expression.at(mine[0]), self.spec
                )
            except RollerError as err:
                self.built[kind] = None
                self.s.reasons.append(str(err))
                _LOG.info("%s: a kernel of the range is left out: %s", self.s.question.name, err)
        return self.built[kind]


def _gpu_program_at_row(s: SearchState, row: int) -> SymbolicGpuProgram:
    program = s.families[row]
    assert isinstance(program, SymbolicGpuProgram)
    return program


def _gpu_programs_to_consider(program: RProgram, form: SymbolicExpr, sizes: Sizes) -> list[SymbolicGpuProgram]:
    return SymbolicGpuProgram(program, form, sizes).with_scalar_variant


def _construct_and_price(q: SearchRequest, spec: DeviceSpec, options: ConstructOptions) -> SearchState:
    places = q.own.box.sample_sizes(_PLACES)
    several, found = construct_symbolic_programs(q, places, spec, options, _EACH, _gpu_programs_to_consider)
    costs = np.stack([predicted(several, sizes, spec) for sizes in places], axis=1)
    best = np.minimum([found[tuple(p.values())] for p in places], costs.min(axis=0, initial=np.inf))
    return SearchState(q, list(several), places, costs, best)


def compile_range(varies: DynamicAxes, spec: DeviceSpec, options: ConstructOptions, reachable: bool) -> SymbolicRange:
    """Compile an expression for all extents of some axes on a GPU, which may be absent."""
    share = spec_of_device_share(spec, options)
    s = _construct_and_price(build_search_request(varies, options), share, replace(options, units=None))
    if not s.families:
        raise NoCandidateError(
            f"{varies.expr.name}: shapes: expected programs whose forms all sizes have, got none. "
            "Compile for each extent."
        )
    target_for(spec).prepare()
    codes = _CodeKindsBySize(s, share, _evenly_spread_sizes(s.places, _FEW))
    priced: list[PricedKernel] = []
    if all(codes.has_single_kind(row) for row in choose_covering_rows(s.costs, s.best, MOST)):
        made_for = list(s.places)
        _add_sample_sizes(s, list(itertools.islice(varies.box.random_sizes(5), _PRICED)), share)
        priced = _choose_nearest_kernels(codes)
        if not priced:
            _restrict_sample_sizes(s, made_for)
    if not priced:
        _add_sample_sizes(s, _further_sample_sizes(varies.box), share)
        priced = _choose_covering_kernels(codes)
    return SymbolicRange(varies, s.question.own.expression, priced, s.best, share, reachable=reachable)


def _choose_nearest_kernels(codes: _CodeKindsBySize) -> list[PricedKernel]:
    """Return the kernels closest to the best if each program has one kind of code; otherwise none."""
    s = codes.s
    rows = choose_covering_rows(s.costs, s.best, MOST)
    _LOG.info("%s: writing %s for a range", s.question.name, counted(len(rows), "program"))
    if not all(codes.has_single_kind(row) for row in rows):
        return []
    several = [(row, codes.build((row, codes.digest(row, codes.few[0])))) for row in rows]
    found = [PricedKernel(k, tuple(s.places), s.costs[row], {}) for row, k in several if k is not None]
    return [] if len(found) < len(several) or _sizes_without_code(s.question.own.box, 0, found) else found


def _choose_covering_kernels(codes: _CodeKindsBySize) -> list[PricedKernel]:
    """Return near-best kernels with code for all sample sizes."""
    s = codes.s
    # Sizes found to have no code become sample sizes, so that the last choice has code for them.
    rows = shortlist_rows(s.costs, s.best, MOST, _WRITTEN)
    for n in range(_ROUNDS + 1):
        found = _choose_kernels(codes, rows)
        lacking = _sizes_without_code(s.question.own.box, n, found)
        if not lacking:
            break
        if n == _ROUNDS:
            _LOG.warning(
                "%s: the range has sizes that no kernel has code for, e.g. %s: calls of these are refused. Compile for "
                "each of them.", s.question.name, lacking[0],
            )  # fmt: skip
            break
        _add_sample_sizes(s, lacking, codes.spec)
        codes.forget(rows, lacking)
    return found


def _choose_kernels(codes: _CodeKindsBySize, rows: Sequence[int]) -> list[PricedKernel]:
    s = codes.s
    while True:
        kinds = codes.kinds(rows)
        costs = codes.costs(kinds)
        taken = choose_covering_rows(costs, costs.min(axis=0, initial=np.inf), MOST) if kinds else []
        least = costs[taken].min(axis=0, initial=np.inf)
        if np.isinf(least).any():
            lacking = [dict(p) for p, x in zip(s.places, least, strict=True) if np.isinf(x)]
            why = "; ".join(dict.fromkeys(s.reasons))
            raise NoCandidateError(
                f"{s.question.name}: shapes: expected at most {MOST} kernels for all extents, got none of them for "
                f"{lacking[:3]}{f': {why}' if why else ''}. Leave extents out, or compile for each extent."
            )
        several = [(codes.build(kinds[n]), costs[n]) for n in taken]
        found = [PricedKernel(k, tuple(s.places), c, {}) for k, c in several if k is not None]
        if len(found) == len(several):  # else choose again among the others
            return found


def _evenly_spread_sizes(places: Sequence[Sizes], count: int) -> list[Sizes]:
    ordered = sorted(places, key=lambda p: math.prod(p.values()))
    if len(ordered) <= count:
        return ordered
    return [ordered[n] for n in sorted({round(k * (len(ordered) - 1) / (count - 1)) for k in range(count)})]


def _add_sample_sizes(s: SearchState, places: Sequence[Sizes], spec: DeviceSpec) -> None:
    known = {tuple(p.values()) for p in s.places}
    more = [p for key, p in {tuple(p.values()): p for p in places}.items() if key not in known]
    if not more:
        return
    costs = np.stack([predicted(s.families, p, spec) for p in more], axis=1)
    s.places = [*s.places, *more]
    s.costs = np.concatenate([s.costs, costs], axis=1)
    s.best = np.concatenate([s.best, costs.min(axis=0, initial=np.inf)])


def _restrict_sample_sizes(s: SearchState, places: Sequence[Sizes]) -> None:
    wanted = {tuple(p.values()) for p in places}
    columns = [n for n, p in enumerate(s.places) if tuple(p.values()) in wanted]
    s.places, s.costs, s.best = [s.places[n] for n in columns], s.costs[:, columns], s.best[columns]


def _further_sample_sizes(box: SizeBox) -> list[dict[str, int]]:
    """Return further sizes for code generation, with various remainders modulo the vector lengths."""
    found: dict[tuple[int, ...], dict[str, int]] = {}
    for sizes, rest in zip(box.random_sizes(5), itertools.islice(itertools.cycle(_RESTS), _MORE), strict=False):
        for n in range(len(sizes)):  # along each axis, and along all axes
            more = {name: rest if k >= n else 0 for k, name in enumerate(sizes)}
            p = {n: min(box.ends[n][1], max(box.ends[n][0], x // 8 * 8 + more[n])) for n, x in sizes.items()}
            found.setdefault(tuple(p.values()), p)
    return list(found.values())


def _sizes_without_code(box: SizeBox, seed: int, found: Sequence[PricedKernel]) -> list[dict[str, int]]:
    """Return sizes, among random and small ones, for which no kernel has code."""
    tried: list[dict[str, int]] = list(itertools.islice(box.random_sizes(31 + seed), _TRIED))
    tried += [{n: min(high, low + seed * 3 + k) for n, (low, high) in box.ends.items()} for k in range(3)]
    if math.prod(high - low + 1 for low, high in box.ends.values()) <= _ALL:
        several = itertools.product(*(range(low, high + 1) for low, high in box.ends.values()))
        tried = [dict(zip(box.ends, c, strict=True)) for c in several]
    return [p for p in tried if all(_is_kernel_refused(j.kernel, p) for j in found)]


def _is_kernel_refused(kernel: object, sizes: Sizes) -> bool:
    assert isinstance(kernel, GpuKernel)
    return isinstance(kernel.passed(sizes), str)
