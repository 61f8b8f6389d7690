"""Proves the kernels of a model with dynamic sizes ahead of calls, for sessions that are saved.

If an operator's sizes have few combinations, a kernel is proven for each. Otherwise, kernels are proven at the ends of
all ranges and at values of each size, combined with random values of the other sizes: of a size with many values, at
the smallest, the largest and random ones.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from roller.compiler.dynamic.compile_kernels_for_all_sizes import SymbolicKernels
from roller.compiler.dynamic.dynamic_size_box import SizeBox
from roller.compiler.dynamic.kernel_choice import seconds_by_kernel
from roller.compiler.dynamic.prove_kernel_for_call_sizes import (
    intermediate_index_overflows,
    run_and_describe_fault,
    static_fault,
)
from roller.compiler.dynamic.symbolic_programs import SymbolicKernel
from roller.errors import NoCandidateError, counted
from roller_runtime.core.size_formulas import Formula
from roller_runtime.plan.proven_kernels import NO_KERNEL, ProvenKernels

_LOG = logging.getLogger("roller")
#: Maximum number of combinations of a model's sizes that are enumerated, and number of random ones drawn otherwise.
_MOST_ENUMERATED, _DRAWN = 1 << 21, 1 << 17
#: Of the values of a size at which kernels are proven, shares of the smallest and of the largest; others are random.
_SMALLEST, _LARGEST = 0.6, 0.05
#: Combinations per job of a process, and time limit of a job in seconds.
_CHUNK, _JOB_S = 32, 1800.0
#: Maximum ratio of predicted times at which a kernel that needs no run to be proven replaces one that does.
_NEAR = 1.03
#: Maximum number of combinations of an operator's sizes at which kernels run; others have the kernel of the nearest.
_MOST_RUNS = 40
#: Maximum number of least values at which the code of a kernel is compared with that of its program.
_MOST_RAISED = 4
#: Numbers of combinations at which to look for sizes where no proven kernel may run: the smallest, where code often has
#: another form, and random ones.
_SMALL_GAPS_SOUGHT, _MOST_GAPS_SOUGHT = 500, 2000
#: Condition that no sizes satisfy: a kernel that was wrong once does not run at sizes where it was not proven.
_NEVER = ((Formula(0), 1),)

Values = tuple[int, ...]


@dataclass
class _Operator:
    """Combinations of an operator's sizes, and the results of proofs."""

    kernels: SymbolicKernels
    combinations: list[Values]
    is_complete: bool
    chosen: dict[Values, int] = field(default_factory=dict)
    usable: dict[Values, frozenset[int]] = field(default_factory=dict)
    wrong: set[int] = field(default_factory=set)
    reasons: list[str] = field(default_factory=list)
    #: For each kernel and each of its minimums, the least values of the formula, with sizes at which it has them.
    at_minimums: list[list[list[tuple[int, list[Values]]]]] = field(default_factory=list)

    def add(self, values: Values, verdict: _Verdict) -> bool:
        """Add a verdict; return whether it proves a kernel."""
        self.usable[values] = verdict.usable
        self.wrong |= verdict.wrong.keys()
        self.reasons += verdict.wrong.values()
        if verdict.proven is None:
            return False
        self.chosen[values] = verdict.proven
        return True

    def table_without_gaps(self, everything: np.ndarray) -> ProvenKernels:
        """Return the results; kernels are also proven at sampled sizes where no proven kernel may run.

        Raises
        ------
        NoCandidateError
            If no kernel is correct at some sizes.
        """
        self.raise_if_none_is_correct()
        table = self.table()
        if self.is_complete:
            return table
        rows = np.random.default_rng(1).permutation(len(everything))[:_MOST_GAPS_SOUGHT]
        several = np.concatenate([everything[_smallest_first(everything)[:_SMALL_GAPS_SOUGHT]], everything[rows]])
        sought = dict.fromkeys(map(tuple, several.tolist()))
        gaps = [v for v in sought if v not in self.chosen and table.kernel_for(v) is None]
        for values, verdict in _prove_without_running((self.kernels, gaps)).items():
            if not self.add(values, verdict):
                _prove_by_running(self, values, verdict.to_run)
        self.raise_if_none_is_correct()
        return self.table() if gaps else table

    def raise_if_none_is_correct(self) -> None:
        """Raise an error if no kernel is correct at some sizes."""
        without = [values for values, n in self.chosen.items() if n == NO_KERNEL]
        if without:
            expression = self.kernels.own.expression.at(self.kernels.own.box.high)
            names = list(self.kernels.own.box.ends)
            raise NoCandidateError(
                f"{expression.name}: shapes: expected a kernel for all sizes, got none that is correct for "
                f"{counted(len(without), 'combination')}, for example {dict(zip(names, without[0], strict=True))}: "
                f"{'; '.join(dict.fromkeys(self.reasons[:3]))}. Compile for ranges without these sizes."
            )

    def table(self) -> ProvenKernels:
        """Return the results in the form that sessions read."""
        own, priced = self.kernels.own, self.kernels.priced
        places = {tuple(p[n] for n in own.box.ends): k for k, p in enumerate(priced[0].places)}
        inside = {v: k for v, k in places.items() if _is_inside(v, own.box)}
        return ProvenKernels.of(
            own.box.ends, own.box.derived, own.formulas, self.chosen, is_complete=self.is_complete,
            minimums=[() if self.is_complete else self._minimums(n) for n in range(len(priced))],
            predicted={v: [float(j.predicted[k]) for j in priced] for v, k in inside.items()},
        )  # fmt: skip

    def _minimums(self, number: int) -> Sequence[tuple[Formula, int]]:
        """Return the conditions under which a kernel runs at sizes where no kernel was proven."""
        kernel, box = _kernel(self.kernels, number), self.kernels.own.box
        found = kernel.minimums
        if number in self.wrong or intermediate_index_overflows(kernel, box.high):
            return _NEVER
        for values, usable in self.usable.items():  # a kernel may have further conditions
            sizes = box.with_derived_sizes(dict(zip(box.ends, values, strict=True)))
            if number not in usable and all(f.at(sizes) >= least for f, least in found):
                return _NEVER
        used = bool(self.at_minimums) and number in self.chosen.values()
        return self._raised_minimums(number, found) if used else found

    def _raised_minimums(self, number: int, found: Sequence[tuple[Formula, int]]) -> Sequence[tuple[Formula, int]]:
        """Return the minimums, raised where the kernel's code is not that of its program at the least sizes.

        A kernel whose code was built for two tiles of an axis may fit one tile by its minimums alone.
        """
        kernel, raised, box = _kernel(self.kernels, number), list[tuple[Formula, int]](), self.kernels.own.box

        @cache
        def is_wrong(values: Values) -> bool:
            sizes = box.with_derived_sizes(dict(zip(box.ends, values, strict=True)))
            known = self.chosen.get(values) == number
            return not known and bool(static_fault(kernel, sizes, self.kernels.spec.units))

        for (formula, least), several in zip(found, self.at_minimums[number], strict=True):
            correct = next((value for value, rows in several if not any(map(is_wrong, rows))), None)
            if correct is None:
                return _NEVER
            raised.append((formula, max(least, correct)))
        return raised


def prove_all_sizes(
    kernels: Mapping[str, SymbolicKernels], box: SizeBox, proofs: int | None
) -> dict[str, ProvenKernels]:  # fmt: skip
    """Return the fastest proven kernels of each operator; ``proofs`` limits the number of combinations of its sizes.

    Raises
    ------
    NoCandidateError
        If an operator has no correct kernel at some sizes.
    """
    from roller.runtime.build_pool import build_all

    operators, sizes = {}, {}
    for key, symbolic in kernels.items():
        everything, is_all = _operator_sizes(symbolic, box)
        combinations, is_complete = _combinations_to_prove(everything, is_all, proofs)
        operators[key], sizes[key] = _Operator(symbolic, combinations, is_complete), everything
        if not is_complete:
            operators[key].at_minimums = _least_sizes_of_kernels(symbolic, everything)
    jobs = {
        f"{key}/{n}": (several.kernels, several.combinations[n : n + _CHUNK])
        for key, several in operators.items() for n in range(0, len(several.combinations), _CHUNK)
    }  # fmt: skip
    count = sum(len(several.combinations) for several in operators.values())
    _LOG.info("proving %s of sizes of %s", counted(count, "combination"), counted(len(operators), "operator"))
    unproven: dict[tuple[str, Values], list[int]] = {}
    for name, result in build_all(jobs, _prove_without_running, reuse=True, timeout_s=_JOB_S).items():
        several = operators[name.rpartition("/")[0]]
        # A process may fail for lack of memory.
        found = _prove_without_running(jobs[name]) if result.value is None else result.value
        for values, verdict in found.items():
            if not several.add(values, verdict):
                unproven[name.rpartition("/")[0], values] = verdict.to_run
    for key, several in operators.items():
        mine = [values for other, values in unproven if other == key]
        for values in mine if several.is_complete else _spread_evenly(mine, _MOST_RUNS):
            _prove_by_running(several, values, unproven[key, values])
    return {key: several.table_without_gaps(sizes[key]) for key, several in operators.items()}


def table_of_known_results(kernels: SymbolicKernels) -> ProvenKernels:
    """Return the results of the proofs that calls have needed so far."""
    known = {values[: len(kernels.own.box.ends)]: n for values, n in kernels.known_choices.items()}
    return _Operator(kernels, [], False, known, wrong=set(range(len(kernels.priced)))).table()


def _smallest_first(everything: np.ndarray) -> np.ndarray:
    """Return the order of combinations by the product of their sizes."""
    found: np.ndarray = np.log(np.maximum(1, everything)).sum(axis=1).argsort(kind="stable")
    return found


def _spread_evenly(several: Sequence[Values], most: int) -> list[Values]:
    return (
        [several[n] for n in np.unique(np.linspace(0, len(several) - 1, most).round().astype(int))] if several else []
    )


@dataclass
class _Verdict:
    """Verdict on the kernels at one combination of sizes, from their generated code alone."""

    usable: frozenset[int] = frozenset()  #: Kernels that support the sizes
    proven: int | None = None  #: The kernel to use
    to_run: list[int] = field(default_factory=list)  #: Otherwise, kernels that may be correct, the fastest first
    wrong: dict[int, str] = field(default_factory=dict)  #: Reasons by kernel


def _prove_without_running(job: tuple[SymbolicKernels, Sequence[Values]]) -> dict[Values, _Verdict]:
    """Return the verdict at each combination of an operator's sizes; run no kernel."""
    kernels, several = job
    box, found = kernels.own.box, dict[Values, _Verdict]()
    for values in several:
        sizes = box.with_derived_sizes(dict(zip(box.ends, values, strict=True)))
        seconds = seconds_by_kernel(kernels.priced, sizes, kernels.spec)
        verdict = found[values] = _Verdict(frozenset(seconds))
        for n in sorted(seconds, key=lambda k: seconds[k]):
            fault = static_fault(_kernel(kernels, n), sizes, kernels.spec.units)
            if fault is None:
                verdict.to_run.append(n)
            elif fault:
                verdict.wrong[n] = fault
            else:
                first = verdict.to_run[0] if verdict.to_run else n
                if seconds[n] <= _NEAR * seconds[first]:
                    verdict.proven = n
                verdict.to_run.append(n)
                break
    return found


def _kernel(kernels: SymbolicKernels, number: int) -> SymbolicKernel:
    found = kernels.priced[number].kernel
    assert isinstance(found, SymbolicKernel)  # ranges of models are for processors
    return found


def _prove_by_running(operator: _Operator, values: Values, candidates: Sequence[int]) -> None:
    """Run kernels at sizes where their code is not that of their programs, until one is correct."""
    kernels = operator.kernels
    sizes = kernels.own.box.with_derived_sizes(dict(zip(kernels.own.box.ends, values, strict=True)))
    expression = kernels.own.expression.at(sizes)
    operator.chosen[values] = NO_KERNEL
    for n in candidates:
        kernel = _kernel(kernels, n)
        fault = static_fault(kernel, sizes, kernels.spec.units)
        if fault is None:
            fault = run_and_describe_fault(kernel.at(sizes, expression), expression, sizes, 0)
        if not fault:
            operator.chosen[values] = n
            return
        operator.wrong.add(n)
        operator.reasons.append(fault)


def combinations_to_prove(
    kernels: SymbolicKernels, box: SizeBox, proofs: int | None = None
) -> tuple[list[Values], bool]:
    """Return combinations of an operator's sizes, and whether these are all that the model's sizes can produce."""
    return _combinations_to_prove(*_operator_sizes(kernels, box), proofs)


def _operator_sizes(kernels: SymbolicKernels, box: SizeBox) -> tuple[np.ndarray, bool]:
    """Return combinations of an operator's sizes, shape ``(combinations, sizes)``, and whether these are all."""
    own, enumerated = kernels.own, _model_sizes(box)
    columns = [np.asarray(own.formulas[n].of_many(enumerated[0]), np.int64) for n in own.box.ends]
    return np.unique(np.stack(columns, axis=1), axis=0), enumerated[1]


def _least_sizes_of_kernels(
    kernels: SymbolicKernels, everything: np.ndarray
) -> list[list[list[tuple[int, list[Values]]]]]:
    """Return the least values of each kernel's minimums, the smallest first, with sizes at which it has them."""
    box, out = kernels.own.box, list[list[list[tuple[int, list[Values]]]]]()
    sizes = {n: everything[:, k] for k, n in enumerate(box.ends)}
    for name, formula in box.derived.items():
        sizes[name] = formula.of_many(sizes)
    everything = everything[(order := _smallest_first(everything))]
    for number in range(len(kernels.priced)):
        found = [(f, f.of_many(sizes)[order], least) for f, least in _kernel(kernels, number).minimums]
        usable = np.all([np.ones(len(everything), bool), *(x >= least for _, x, least in found)], axis=0)
        if not usable.any():  # no sizes satisfy all conditions
            out.append([[] for _ in found])
            continue
        several: list[list[tuple[int, list[Values]]]] = []
        for formula, values, _ in found:
            # Sizes that are the least of another minimum would blame this one.
            others = [x > x[usable].min() for f, x, _ in found if f != formula and np.ptp(x[usable])]
            inside = np.all([usable, *others], axis=0)
            inside = inside if inside.any() else usable
            rows = {int(x): np.flatnonzero(inside & (values == x)) for x in np.unique(values[inside])[:_MOST_RAISED]}
            # From the smallest to the largest sizes: code is often of another form, which only a run can judge.
            several.append(
                [(x, [tuple(everything[r[(len(r) - 1) * n // 3]].tolist()) for n in range(4)]) for x, r in rows.items()]
            )
        out.append(several)
    return out


def _combinations_to_prove(everything: np.ndarray, is_all: bool, proofs: int | None) -> tuple[list[Values], bool]:
    if is_all and (proofs is None or len(everything) <= proofs):
        return [tuple(row) for row in everything.tolist()], True
    rows, rng = set[int](), np.random.default_rng(0)
    for axis in range(everything.shape[1]):
        values, most = np.unique(everything[:, axis]), (proofs or _DRAWN) // everything.shape[1]
        if len(values) > most:
            low, high = math.ceil(_SMALLEST * most), math.ceil(_LARGEST * most)
            between = rng.choice(values[low:-high], max(0, most - low - high), replace=False)
            values = np.concatenate([values[:low], between, values[-high:]])
        order = rng.permutation(len(everything))
        first = order[np.unique(everything[order, axis], return_index=True)[1]]
        rows.update(first[np.isin(everything[first, axis], values)].tolist())
    # The ends: rows that are extreme for each combination of signs.
    logs = np.log(np.maximum(1, everything))
    for signs in itertools.product((-1, 0, 1), repeat=everything.shape[1]):
        rows.add(int((logs @ np.array(signs, float)).argmax()))
    return [tuple(row) for row in everything[sorted(rows)].tolist()], False


def _model_sizes(box: SizeBox) -> tuple[dict[str, np.ndarray], bool]:
    """Return all combinations of a model's sizes, by name, or random ones, and whether these are all."""
    counts = [high - low + 1 for low, high in box.ends.values()]
    is_complete = float(np.prod(np.array(counts, float))) <= _MOST_ENUMERATED
    if is_complete:
        grid = np.meshgrid(*(np.arange(low, high + 1) for low, high in box.ends.values()), indexing="ij")
        found = {n: axis.reshape(-1) for n, axis in zip(box.ends, grid, strict=True)}
    else:
        rng = np.random.default_rng(0)
        found = {n: _logarithmic_integers(rng, low, high) for n, (low, high) in box.ends.items()}
        corners = list(itertools.product(*box.ends.values()))
        found = {n: np.concatenate([x, [c[k] for c in corners]]) for k, (n, x) in enumerate(found.items())}
    for name, formula in box.derived.items():
        found[name] = formula.of_many(found)
    return found, is_complete


def _logarithmic_integers(rng: np.random.Generator, low: int, high: int) -> np.ndarray:
    found = np.exp(rng.uniform(np.log(low), np.log(high + 1), _DRAWN)).astype(np.int64)
    return np.clip(found, low, high)


def _is_inside(values: Values, box: SizeBox) -> bool:
    return all(low <= x <= high for x, (low, high) in zip(values, box.ends.values(), strict=True))
