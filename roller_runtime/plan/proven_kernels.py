"""The kernel that runs at each combination of an operator's sizes, proven ahead, so that calls need no compiler."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from roller_runtime.core.size_formulas import Formula

#: Value of :attr:`ProvenKernels.kernels` for sizes at which no kernel is correct.
NO_KERNEL = -1
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class ProvenKernels:
    """The results of proofs for one operator of a model with dynamic sizes.

    Parameters
    ----------
    ends, derived, formulas
        The sizes that the operator depends on: smallest and largest values; formulas of further sizes in terms of
        these; and each size of ``ends`` in terms of the model's sizes.
    positions
        Combinations of sizes at which kernels were proven, as increasing row-major positions in the box ``ends``, shape
        ``(proofs,)``.
    kernels
        Number of the fastest kernel proven correct at each of these, or :data:`NO_KERNEL`, shape ``(proofs,)``.
    is_complete
        Whether ``positions`` contains all combinations that the model's sizes can produce. If not, the kernel proven at
        the nearest combination runs at all others.
    minimums
        For each kernel, formulas in the sizes and their smallest values at which it can run.
    places, seconds
        Positions of sample sizes, and predicted seconds there, shape ``(places, kernels)``.
    """

    ends: Mapping[str, tuple[int, int]]
    derived: Mapping[str, Formula]
    formulas: Mapping[str, Formula]
    positions: np.ndarray = field(repr=False)
    kernels: np.ndarray = field(repr=False)
    is_complete: bool
    minimums: tuple[tuple[tuple[Formula, int], ...], ...] = ()
    places: np.ndarray = field(repr=False, default_factory=lambda: np.zeros(0, np.int64))
    seconds: np.ndarray = field(repr=False, default_factory=lambda: np.zeros((0, 0)))

    @property
    def count(self) -> int:
        """Number of kernels that results refer to."""
        return max(len(self.minimums), int(self.kernels.max(initial=NO_KERNEL)) + 1)

    def kernel_at(self, sizes: Sizes) -> int | None:
        """Return the number of the kernel to run at a model's sizes; ``None`` if none is known to be correct."""
        return self.kernel_for([f.at(sizes) for f in self.formulas.values()])

    def kernel_for(self, values: Sequence[int]) -> int | None:
        """Return the number of the kernel to run at values of the operator's own sizes, in order; see kernel_at."""
        found = self._kernel_proven_at(values)
        if found is None and not self.is_complete:
            return self._kernel_proven_nearest(values)
        return None if found == NO_KERNEL else found

    def kernel_proven_at(self, sizes: Sizes) -> int | None:
        """Return the number of the kernel that was proven at exactly these sizes of a model, if any."""
        found = self._kernel_proven_at([f.at(sizes) for f in self.formulas.values()])
        return None if found == NO_KERNEL else found

    def _kernel_proven_at(self, values: Sequence[int]) -> int | None:
        position = int(self._position_of(values))
        index = int(np.searchsorted(self.positions, position))
        known = index < len(self.positions) and self.positions[index] == position
        return int(self.kernels[index]) if known else None

    def own_sizes(self, sizes: Sizes) -> dict[str, int]:
        """Return the operator's sizes at a model's sizes, in order, including derived sizes."""
        own = {n: f.at(sizes) for n, f in self.formulas.items()}
        for name, formula in self.derived.items():
            own[name] = formula.at(own)
        return own

    def predicted_at(self, number: int, sizes: Sizes) -> float:
        """Return the predicted seconds of a kernel at the sample sizes nearest to a model's sizes."""
        if not len(self.places):
            return math.nan
        values = [f.at(sizes) for f in self.formulas.values()]
        return float(self.seconds[self._distances(self.places, values).argmin(), number])

    def _kernel_proven_nearest(self, values: Sequence[int]) -> int | None:
        own = dict(zip(self.ends, values, strict=True))
        for name, formula in self.derived.items():
            own[name] = formula.at(own)
        fits = [all(f.at(own) >= least for f, least in minimum) for minimum in self.minimums]
        usable = np.array([*fits, False])[self.kernels]  # the last entry is that of NO_KERNEL
        if not usable.any():
            return None
        distances = np.where(usable, self._distances(self.positions, values), np.inf)
        return int(self.kernels[distances.argmin()])

    def _distances(self, positions: np.ndarray, values: Sequence[int]) -> np.ndarray:
        """Return the distances between logarithms of sizes, shape ``(positions,)``."""
        logs = self._logs_of_positions if positions is self.positions else self._logs(positions)
        found: np.ndarray = np.abs(logs - np.log(np.maximum(1, values))).sum(axis=1)
        return found

    @cached_property
    def _logs_of_positions(self) -> np.ndarray:
        return self._logs(self.positions)

    def _logs(self, positions: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.log(np.maximum(1, self.sizes_of(positions)))
        return found

    def _position_of(self, values: Sequence[Any]) -> Any:
        found: Any = 0
        for (low, high), value in zip(self.ends.values(), values, strict=True):
            found = found * (high - low + 1) + (value - low)
        return found

    def sizes_of(self, positions: np.ndarray) -> np.ndarray:
        """Return the sizes at positions, shape ``(positions, sizes)``."""
        rest, columns = np.asarray(positions, np.int64), list[np.ndarray]()
        for low, high in reversed(list(self.ends.values())):
            rest, column = np.divmod(rest, high - low + 1)
            columns.insert(0, column + low)
        return np.stack(columns, axis=1) if columns else np.zeros((len(rest), 0), np.int64)

    def to_json(self) -> dict[str, Any]:
        """Return JSON data."""
        return {
            "ends": {n: list(e) for n, e in self.ends.items()},
            "derived": {n: f.to_list() for n, f in self.derived.items()},
            "formulas": {n: f.to_list() for n, f in self.formulas.items()},
            "positions": _consecutive_runs(self.positions.tolist()),
            "kernels": [[k, len(list(g))] for k, g in itertools.groupby(self.kernels.tolist())],
            "complete": self.is_complete,
            "minimums": [[[f.to_list(), least] for f, least in several] for several in self.minimums],
            "places": self.places.tolist(),
            "seconds": self.seconds.tolist(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ProvenKernels:
        """Rebuild from :meth:`to_json` data; raise ``LookupError``, ``TypeError`` or ``ValueError`` if malformed."""
        ends = {str(n): (int(low), int(high)) for n, (low, high) in data["ends"].items()}
        formulas = {str(n): Formula.from_list(f) for n, f in data["formulas"].items()}
        positions = np.concatenate([np.zeros(0, np.int64), *(np.arange(a, a + n) for a, n in data["positions"])])
        kernels = np.repeat(*np.array(data["kernels"] or [[NO_KERNEL, 0]], np.int64).T)
        minimums = tuple(tuple((Formula.from_list(f), int(x)) for f, x in several) for several in data["minimums"])
        places, seconds = np.array(data["places"], np.int64), np.array(data["seconds"], float)
        known = kernels.min(initial=NO_KERNEL) >= NO_KERNEL and kernels.max(initial=NO_KERNEL) < len(minimums)
        if list(formulas) != list(ends) or len(kernels) != len(positions) or not known:
            raise ValueError("proven kernels")
        if len(places) and seconds.shape != (len(places), len(minimums)):
            raise ValueError("predicted seconds")
        derived = {str(n): Formula.from_list(f) for n, f in data["derived"].items()}
        return cls(ends, derived, formulas, positions.astype(np.int64), kernels, bool(data["complete"]), minimums,
                   places, seconds)  # fmt: skip

    @classmethod
    def of(
        cls, ends: Mapping[str, tuple[int, int]], derived: Mapping[str, Formula], formulas: Mapping[str, Formula],
        kernel_by_sizes: Mapping[tuple[int, ...], int], *, is_complete: bool,
        minimums: Iterable[Sequence[tuple[Formula, int]]], predicted: Mapping[tuple[int, ...], Sequence[float]],
    ) -> ProvenKernels:  # fmt: skip
        """Return the table of results by sizes; ``predicted`` contains the kernels' predicted seconds by sizes."""
        empty = cls(ends, derived, formulas, np.zeros(0, np.int64), np.zeros(0, np.int64), is_complete)
        several = np.array(list(kernel_by_sizes), np.int64).reshape(len(kernel_by_sizes), len(ends))
        positions = np.broadcast_to(np.asarray(empty._position_of(list(several.T)), np.int64), len(kernel_by_sizes))
        order = np.argsort(positions)
        kernels = np.array(list(kernel_by_sizes.values()), np.int64)
        places = np.array([empty._position_of(p) for p in predicted], np.int64)
        seconds = np.array(list(predicted.values()), float)
        return cls(ends, derived, formulas, positions[order], kernels[order], is_complete,
                   tuple(map(tuple, minimums)), places, seconds)  # fmt: skip


def _consecutive_runs(numbers: Sequence[int]) -> list[list[int]]:
    """Return the first number and the length of each run of consecutive numbers."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and runs[-1][0] + runs[-1][1] == n:
            runs[-1][1] += 1
        else:
            runs.append([n, 1])
    return runs
