"""Checks a kernel's result against the float64 reference, within bounds on rounding errors.

For one sum over ``K`` terms, the bound is ``|y - ref| <= 4 eps(acc) sqrt(K) sum|a||b| + eps(out) |ref|``
(docs/design/check.md). For other expressions, it comes from running error analysis
(:mod:`roller.expr.reference_with_error_bounds`).
Integers must be equal unless inexact floats decide them. Small outputs are compared in full, and large ones at the
points of :mod:`roller.runtime.output_elements_to_compare`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from roller.backends.periodic_inputs import PeriodicInput
from roller.errors import ExprError, counted
from roller.expr import TensorExpr
from roller.expr.reference_with_error_bounds import ReferenceWithBounds
from roller.expr.rounded_enclosures import EnclosedValues, error_to_bound_ratios
from roller.runtime.output_elements_to_compare import (
    all_coordinates,
    compares_whole_output,
    sample_output_points,
    sample_tile_boundaries,
)
from roller.runtime.random_inputs import checked_seed
from roller.tile.program import RProgram
from roller.tile.winograd import kernels_only_reorder_sums

#: Maximum number of programs whose tile boundaries are compared at a time.
_MOST_PROGRAMS = 64


@dataclass(frozen=True)
class CheckResult:
    """Outcome of a comparison.

    Parameters
    ----------
    max_ratio
        Largest error divided by its bound (at most 1 if ``ok``; infinite for NaN).
    points
        Number of elements compared, over all outputs.
    message
        Empty if ``ok``; otherwise the worst element: *output[index]: expected, got, bound*.
    decided
        Number of compared elements that distinguish right from wrong results: elements that are not NaN and cannot
        overflow or underflow.
    """

    ok: bool
    max_ratio: float
    points: int
    message: str = ""
    decided: int = 0

    @property
    def doubt(self) -> str:
        """Reason why an accepted result may still be wrong; empty if the compared elements decide.

        Examples
        --------
        >>> CheckResult(True, 0.0, 8, decided=0).doubt
        'unchecked: none of 8 compared elements tells a right result from a wrong one (NaN, overflow or underflow)'
        """
        if not self.ok or self.decided:
            return ""
        return (f"unchecked: none of {counted(self.points, 'compared element')} tells a right result from a wrong one "
                "(NaN, overflow or underflow)")  # fmt: skip


@dataclass(frozen=True)
class _ExpectedOutput:
    """Reference values and error bounds for one output at its compared points."""

    name: str
    dtype: str
    points: np.ndarray
    found: EnclosedValues

    @cached_property
    def decided(self) -> int:
        """Number of elements that distinguish right from wrong results."""
        shape = np.shape(self.found.value)
        return int(np.count_nonzero(np.broadcast_to(self.found.decides(self.dtype), shape)))

    def describe_error(self, i: int, got: Any) -> str:
        """Describe the error at the ``i``-th point."""
        return f"output '{self.name}'{[int(x) for x in self.points[i]]}: {self.found.wrong(i, got)}"


class Oracle:
    """Reference results of one expression on given inputs, computed once for many candidates.

    Parameters
    ----------
    arrays
        Inputs in call order: arrays, or :class:`PeriodicInput` for arrays on a device.
    seed
        Seed for the sampled points.
    points
        Coordinates to compare for each output, shape ``(P, rank)``; sampled if not given.
    whole_points
        Number of stage points up to which every output element is compared.
    """

    def __init__(
        self,
        expression: TensorExpr,
        arrays: Sequence[np.ndarray | PeriodicInput],
        seed: int = 0,
        points: Sequence[np.ndarray] | None = None,
        whole_points: int | None = None,
    ) -> None:
        self.expression, self.seed = expression, checked_seed(seed)
        rng = np.random.default_rng(self.seed)
        # Points chosen by the caller are complete, like those of a whole output; programs add none.
        self._whole = points is not None or compares_whole_output(expression, whole_points)
        sampled = {} if self._whole else sample_output_points(expression, rng)
        given = dict(zip((t.name for t in expression.output_tensors), points or (), strict=False))
        chosen = {
            t.name: given[t.name] if t.name in given else all_coordinates(t.shape) if self._whole else sampled[t.name]
            for t in expression.output_tensors
        }
        self._expected = self._sampled = self._at(arrays, chosen)
        self._covered: set[str] = set()

    def _at(self, arrays: Sequence[np.ndarray | PeriodicInput], points: dict[str, np.ndarray]) -> list[_ExpectedOutput]:
        # A PeriodicInput is evaluated at points only: the whole array may not fit into memory.
        values: dict[str, Any] = {
            t.name: a if isinstance(a, PeriodicInput) else np.asarray(a)
            for t, a in zip(self.expression.inputs, arrays, strict=True)
        }
        run = ReferenceWithBounds(self.expression, values, reordered=kernels_only_reorder_sums(self.expression))
        with np.errstate(all="ignore"):
            tensors = self.expression.tensors
            return [_ExpectedOutput(name, tensors[name].dtype, p, run.at(name, p)) for name, p in points.items()]

    def cover(self, programs: Iterable[RProgram], arrays: Sequence[np.ndarray | PeriodicInput]) -> None:
        """Compare also at the tile boundaries of ``programs`` from now on; ``arrays`` are the same inputs as before."""
        if self._whole:
            return
        new_ones = {p.digest: p for p in programs if p.digest not in self._covered}
        if len(self._covered) + len(new_ones) > _MOST_PROGRAMS:  # earlier programs are already checked
            self._covered, self._expected = set(), self._sampled
        self._covered |= set(new_ones)
        more: dict[str, list[np.ndarray]] = {}
        for p in new_ones.values():
            rng = np.random.default_rng(self.seed)
            for name, at in sample_tile_boundaries(p, self.expression, rng, len(new_ones)).items():
                more.setdefault(name, []).append(at)
        new: dict[str, np.ndarray] = {}
        for old in self._expected:
            if old.name in more:
                shape = self.expression.tensors[old.name].shape
                known = np.ravel_multi_index(tuple(old.points.T), shape)
                flat = np.ravel_multi_index(tuple(np.concatenate(more[old.name]).T), shape)
                flat = np.setdiff1d(flat, known)
                new[old.name] = np.stack(np.unravel_index(flat, shape), axis=1)
        added = {e.name: e for e in self._at(arrays, {n: p for n, p in new.items() if len(p)})}
        self._expected = [_concatenate_expected(e, added[e.name]) if e.name in added else e for e in self._expected]

    def check(self, outputs: Sequence[np.ndarray]) -> CheckResult:
        """Compare one candidate's outputs with the reference."""
        tensors = self.expression.output_tensors
        if len(outputs) != len(tensors):
            raise ExprError(f"{self.expression.name}: expected {counted(len(tensors), 'output')}, got {len(outputs)}.")
        values = []
        for t, points, array in zip(tensors, self.points, outputs, strict=True):
            if tuple(array.shape) != t.shape:
                raise ExprError(f"output '{t.name}': expected shape {t.shape}, got {tuple(array.shape)}.")
            values.append(np.asarray(array)[tuple(points.T)] if t.shape else np.asarray(array).reshape(1))
        return self.check_compared_elements(values)

    @property
    def doubt(self) -> str:
        """Reason why any kernel that passes may still be wrong; see :attr:`CheckResult.doubt`."""
        return CheckResult(
            True, 0.0, sum(len(e.points) for e in self._expected), "", self._count_decisive_elements
        ).doubt

    @property
    def _count_decisive_elements(self) -> int:
        return sum(e.decided for e in self._expected)

    @property
    def points(self) -> list[np.ndarray]:
        """Compared coordinates of each output, shape ``(P, rank)``."""
        return [e.points for e in self._expected]

    def check_compared_elements(self, values: Sequence[np.ndarray]) -> CheckResult:
        """Compare the elements at :attr:`points`, one array of shape ``(P,)`` per output, with the reference."""
        worst, message, count = 0.0, "", 0
        for expected, got in zip(self._expected, values, strict=True):
            ratio = error_to_bound_ratios(got, expected.found)
            count += len(ratio)
            if not len(ratio):
                continue
            i = int(np.argmax(ratio))
            if ratio[i] > worst:
                worst = float(ratio[i])
                message = expected.describe_error(i, got[i])
        return CheckResult(worst <= 1.0, worst, count, "" if worst <= 1.0 else message, self._count_decisive_elements)


def check(
    expression: TensorExpr, arrays: Sequence[np.ndarray], outputs: Sequence[np.ndarray] | np.ndarray, seed: int = 0
) -> CheckResult:
    """Compare the outputs of a kernel with the float64 reference of its expression.

    Examples
    --------
    >>> import numpy as np, roller
    >>> e, a, b = roller.ops.matmul(2, 2, 2), np.eye(2, dtype="f"), np.full((2, 2), 0.1, "f")
    >>> check(e, [a, b], a @ b).ok, check(e, [a, b], a @ b + 1e-3).ok
    (True, False)
    """
    given = [outputs] if isinstance(outputs, np.ndarray) else list(outputs)
    return Oracle(expression, arrays, seed).check(given)


def _concatenate_expected(one: _ExpectedOutput, other: _ExpectedOutput) -> _ExpectedOutput:
    a, b = one.found, other.found
    ends = [np.concatenate([getattr(e, end) for e in (a, b)]) for end in ("value", "low", "high")]
    found = EnclosedValues.point(ends[0]) if a.is_point and b.is_point else EnclosedValues(*ends)
    return _ExpectedOutput(one.name, one.dtype, np.concatenate([one.points, other.points]), found)
