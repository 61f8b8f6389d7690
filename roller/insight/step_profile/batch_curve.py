"""Throughput and memory of a step as functions of its batch size: a line through three batches, and further points."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from roller.errors import NoCandidateError, RollerError, shown

#: Differences between the three batch sizes, in the order tried; the largest is used if the step needs little memory.
STEPS = (100, 20, 10, 5, 1)
#: Largest share of memory that the batches of the largest difference may take.
SMALL = 0.1
#: Relative errors of the time line and the memory line beyond which the line does not hold at a batch.
APART, APART_BYTES = 0.05, 0.02
#: Largest growth of time over the three batches, relative to the constant, that counts as rounding.
_NOISE = 1e-6
#: Factor by which throughput grows when the batch doubles, below which returns diminish.
DIMINISHING = 1.1


class BatchPoint(NamedTuple):
    """Time and memory of a step at one batch size.

    Parameters
    ----------
    batch
        Samples per call.
    iteration_s
        Time of a step.
    throughput
        Samples per second; 0 if the step does not fit.
    allocated_bytes, total_bytes
        Peak bytes of the allocator and of the process.
    bound
        What limits the step, such as ``"device"``.
    peak_phase
        Phase of the step in which memory peaks.
    """

    batch: int
    iteration_s: float
    throughput: float
    allocated_bytes: int
    total_bytes: int
    fits: bool
    bound: str = ""
    peak_phase: str = ""


class BatchLine(NamedTuple):
    """Least-squares lines over the batch ``x``: ``a x + b`` seconds and ``c x + d`` allocated bytes.

    Parameters
    ----------
    a, b, c, d
        Coefficients; ``b`` is at least 0.
    batches
        Batch sizes of the three points.
    holds
        Whether the time grows with the batch and ``b`` did not have to be set to 0.
    """

    a: float
    b: float
    c: float
    d: float
    batches: tuple[int, ...]
    holds: bool

    def iteration_s(self, batch: float) -> float:
        """Return the time per step at a batch, in seconds."""
        return self.a * batch + self.b

    def throughput(self, batch: float) -> float:
        """Return the samples per second at a batch."""
        took = self.iteration_s(batch)
        return batch / took if took > 0 else 0.0

    def allocated_bytes(self, batch: float) -> float:
        """Return the peak allocated bytes at a batch."""
        return self.c * batch + self.d


@dataclass(frozen=True)
class BatchCurve:
    """Throughput and memory of a step as functions of its batch.

    Parameters
    ----------
    line
        Line through three batches; ``None`` if fewer than three fit.
    computed
        All computed batches in ascending order, including the three batches of the line.
    largest
        Largest batch that fits; 0 if none fits or the search was skipped.
    notes
        Sentences that say where and why the line does not hold.
    """

    line: BatchLine | None
    computed: tuple[BatchPoint, ...]
    largest: int = 0
    notes: tuple[str, ...] = ()

    @property
    def limit_by(self) -> Literal["line", "computed", ""]:
        """Source of the throughput limit for large batches; ``""`` if neither source gives a limit.

        The line is rejected if its time is off by more than 5 % at a computed batch above its own batches, or at a
        batch where returns diminish according to the line.
        """
        if self.line is not None and self.line.holds:
            knee = _first_diminishing_batch(self.line)
            off = (p.batch for p in _points_off_time_line(self.line, self.computed))
            if not any(batch > self.line.batches[-1] or knee <= batch <= 2 * knee for batch in off):
                return "line"
        return "" if self._first_diminishing_computed_batch() is None else "computed"

    @property
    def most_throughput(self) -> float:
        """Limit of the line for large batches, ``1 / a`` samples per second; 0 if the line does not hold."""
        return 1.0 / self.line.a if self.line is not None and self.limit_by == "line" else 0.0

    @property
    def most_computed(self) -> BatchPoint | None:
        """Computed batch with the highest throughput if :attr:`limit_by` is ``"computed"``; otherwise ``None``."""
        if self.limit_by != "computed":
            return None
        return max((p for p in self.computed if p.fits), key=lambda p: p.throughput)

    @property
    def throughput_at_largest(self) -> float:
        """Samples per second at the largest batch that fits; 0 if it was not computed."""
        return next((p.throughput for p in self.computed if p.batch == self.largest), 0.0)

    def at(self, batch: int) -> BatchPoint | None:
        """Return the computed point at a batch; ``None`` if there is none."""
        return next((p for p in self.computed if p.batch == batch), None)

    def diminishing_from(self) -> int:
        """Return the smallest batch ``x`` with ``T(2 x) / T(x) < 1.1``, where ``T`` is the throughput.

        On the line, this is the first batch above ``4.5 b / a``. If the line does not hold (:attr:`limit_by`), it is
        the first such computed batch whose double was also computed.

        Raises
        ------
        NoCandidateError
            If neither the line nor the computed batches contain such a batch.
        """
        knee = None
        if self.line is not None and self.limit_by == "line":
            knee = _first_diminishing_batch(self.line)
        elif self.limit_by == "computed":
            knee = self._first_diminishing_computed_batch()
        if knee is None:
            why = self.notes[0].rstrip(".") if self.notes else "three batches do not fit"
            raise NoCandidateError(
                f"profile: diminishing_from: expected a time that is linear in the batch, or a computed batch from "
                f"which returns diminish, got neither ({why}). Look at the computed batches."
            )
        return knee

    def _first_diminishing_computed_batch(self) -> int | None:
        known = {p.batch: p.throughput for p in self.computed if p.fits and p.throughput > 0}
        pairs = ((batch, known[2 * batch] / known[batch]) for batch in sorted(known) if 2 * batch in known)
        return next((batch for batch, growth in pairs if growth < DIMINISHING), None)

    def batch_of_memory(self, allocated_bytes: float) -> int:
        """Return the largest batch that allocates at most ``allocated_bytes`` according to the line; at least 1.

        Raises
        ------
        NoCandidateError
            If there is no line, or memory does not grow with the batch.
        RollerError
            If ``allocated_bytes`` is not a finite number.
        """
        _check_finite("batch_of_memory", "bytes", allocated_bytes)
        line = self._line_or_error()
        if line.c <= 0:
            raise NoCandidateError(
                "profile: expected memory that grows with the batch, got memory that does not. Ask for a batch."
            )
        return max(1, math.floor((allocated_bytes - line.d) / line.c))

    def batch_of_throughput(self, per_s: float) -> int:
        """Return the smallest batch that reaches a throughput according to the line; at least 1.

        Raises
        ------
        NoCandidateError
            If there is no line, no batch reaches the throughput, or the line does not hold at such batches.
        RollerError
            If ``per_s`` is not a finite number.
        """
        _check_finite("batch_of_throughput", "samples/s", per_s)
        line = self._line_or_error()
        limit = 1.0 / line.a if line.holds else 0.0
        if per_s >= limit:
            raise NoCandidateError(
                f"profile: expected a throughput below {limit:.6g} samples/s, the limit of large "
                f"batches, got {per_s:.6g}. Ask for less."
            )
        found = max(1, math.ceil(line.b * per_s / (1.0 - line.a * per_s)))
        if found > line.batches[-1] and self.limit_by != "line":
            raise NoCandidateError(
                f"profile: expected a throughput of at most {line.throughput(line.batches[-1]):.6g} samples/s, up to "
                f"which the line holds, got {per_s:.6g}. Look at the computed batches."
            )
        return found

    def _line_or_error(self) -> BatchLine:
        if self.line is None:
            why = self.notes[0].rstrip(".") if self.notes else "three batches do not fit"
            raise NoCandidateError(f"profile: expected a line through three batches, got none ({why}).")
        return self.line


def _first_diminishing_batch(line: BatchLine) -> int:
    # 2 (a x + b) / (2 a x + b) < g  <=>  x > (2 - g) b / (2 a (g - 1))
    limit = (2.0 - DIMINISHING) * line.b / (2.0 * (DIMINISHING - 1.0) * line.a)
    return max(1, math.floor(limit + 1e-9) + 1)


def _points_off_time_line(line: BatchLine, computed: Sequence[BatchPoint]) -> list[BatchPoint]:
    return [p for p in computed if p.fits and _differ_by_more_than(line.iteration_s(p.batch), p.iteration_s, APART)]


def _check_finite(where: str, unit: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise RollerError(f"profile: {where}: expected a number of {unit}, got {shown(value)}. Pass a finite one.")


def fit_batch_line(points: Sequence[BatchPoint]) -> BatchLine:
    """Fit lines to time and memory; if the time at batch 0 would be negative, set ``b`` to 0 and ``holds`` to false.

    Examples
    --------
    >>> points = [BatchPoint(x, 0.5 * x + 1.0, 0.0, 100 * x + 7, 0, True) for x in (8, 16, 24)]
    >>> line = fit_batch_line(points)
    >>> round(line.a, 9), round(line.b, 9), round(line.c), round(line.d), line.holds
    (0.5, 1.0, 100, 7, True)
    """
    xs = [float(p.batch) for p in points]
    a, b = _fit_least_squares(xs, [p.iteration_s for p in points])
    c, d = _fit_least_squares(xs, [float(p.allocated_bytes) for p in points])
    holds = a * (xs[-1] - xs[0]) > _NOISE * abs(b) and b >= 0
    if b < 0:
        a, b = sum(x * p.iteration_s for x, p in zip(xs, points, strict=True)) / sum(x * x for x in xs), 0.0
    return BatchLine(a, b, c, d, tuple(p.batch for p in points), holds)


def _fit_least_squares(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    mean_x, mean_y = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    spread = math.fsum((x - mean_x) ** 2 for x in xs)
    slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    return slope, mean_y - slope * mean_x


def batch_curve(
    point_at: Callable[[int], BatchPoint], batch: int, capacity_bytes: int, *, fixed_bytes: int = 0,
    largest: Callable[[], int] = lambda: 0, others: Callable[[int], Sequence[int]] = lambda largest: (),
) -> BatchCurve:  # fmt: skip
    """Compute a step's curve: a line through three batches, and points at the batches of ``others`` and ``largest``."""
    known: dict[int, BatchPoint] = {}

    def point(size: int) -> BatchPoint:
        if size not in known:
            known[size] = point_at(size)
        return known[size]

    first = point(batch)
    chosen = _points_at_three_batches_upwards(
        point, first, capacity_bytes, fixed_bytes
    ) or _points_at_three_halved_batches(point, batch)
    notes: list[str] = []
    if len(chosen) < 3:
        notes.append(f"Fewer than three batch sizes fit: {', '.join(str(p.batch) for p in chosen) or 'none'}.")
    most = largest()
    for size in dict.fromkeys((*others(most), *([most] if most else []))):
        point(size)
    computed = tuple(known[size] for size in sorted(known))
    line = fit_batch_line(chosen) if len(chosen) == 3 else None
    return BatchCurve(line, computed, most, (*notes, *_line_deviation_notes(line, computed)))


def _points_at_three_batches_upwards(
    point: Callable[[int], BatchPoint], first: BatchPoint, capacity_bytes: int, fixed_bytes: int
) -> list[BatchPoint]:
    if not first.fits:
        return []
    each = max(1.0, (first.allocated_bytes - fixed_bytes) / first.batch)
    room = capacity_bytes - first.total_bytes if capacity_bytes else math.inf
    for step in STEPS:
        grown = 2 * step * each
        if grown > room or (step == STEPS[0] and capacity_bytes and first.total_bytes + grown > SMALL * capacity_bytes):
            continue
        found = [point(first.batch + n * step) for n in range(3)]
        if all(p.fits for p in found):
            return found
    return []


def _points_at_three_halved_batches(point: Callable[[int], BatchPoint], batch: int) -> list[BatchPoint]:
    """Return the three largest fitting batches among ``batch`` and its halves."""
    found: list[BatchPoint] = []
    while batch >= 1 and len(found) < 3:
        if point(batch).fits:
            found.append(point(batch))
        batch //= 2
    return found[::-1]


def _line_deviation_notes(line: BatchLine | None, computed: Sequence[BatchPoint]) -> list[str]:
    if line is None:
        return []
    found = []
    if not line.holds:
        found.append(_reason_time_is_not_linear(line, computed))
    points = [p for p in computed if p.fits]
    slower = _points_off_time_line(line, points)
    if slower:
        why = _differing_property_text("bound by the", "bound", slower, line, points)
        sizes = ", ".join(f"{p.batch} ({_line_error_text(line.iteration_s(p.batch), p.iteration_s)})" for p in slower)
        found.append(
            f"The line of the time is off at batch {sizes}: {why or _line_deviation_cause_text(line, slower)}."
        )
    fuller = [p for p in points if _differ_by_more_than(line.allocated_bytes(p.batch), p.allocated_bytes, APART_BYTES)]
    if fuller:
        why = _differing_property_text("the peak is in", "peak_phase", fuller, line, points)
        sizes = ", ".join(
            f"{p.batch} ({_line_error_text(line.allocated_bytes(p.batch), p.allocated_bytes)})" for p in fuller
        )
        other = "other tensors are held at the peak there"
        found.append(f"The line of the memory is off at batch {sizes}: {why or other}.")
    return found


def _line_deviation_cause_text(line: BatchLine, off: Sequence[BatchPoint]) -> str:
    if all(line.batches[0] <= p.batch <= line.batches[-1] for p in off):
        return "time grows in steps there, at multiples of tiles and waves"
    return (
        f"they are outside of {line.batches[0]} to {line.batches[-1]}, where kernels use the device to another extent"
    )


def _reason_time_is_not_linear(line: BatchLine, computed: Sequence[BatchPoint]) -> str:
    bounds = sorted({p.bound for p in computed if p.batch in line.batches and p.bound})
    if line.b > 0 or line.a <= 0:
        why = f", which are bound by the {' and the '.join(bounds)}" if bounds else ""
        return (
            f"The time does not grow over batches {', '.join(map(str, line.batches))}{why}: there is no limit to tell."
        )
    return "The time grows faster than the batch: the line through 0 is only a first guess."


def _differ_by_more_than(by_line: float, computed: float, share: float) -> bool:
    return computed > 0 and abs(by_line / computed - 1.0) > share


def _line_error_text(by_line: float, computed: float) -> str:
    return f"{100 * (by_line / computed - 1.0):+.0f} %"


def _differing_property_text(
    words: str, name: str, off: Sequence[BatchPoint], line: BatchLine, points: Sequence[BatchPoint]
) -> str:
    """Describe how batches off the line differ in a property from the line's own batches; ``""`` if they do not."""
    sampled = {getattr(p, name) for p in points if p.batch in line.batches}
    others = {getattr(p, name) for p in off} - sampled
    if not others:
        return ""
    return f"{words} {' or '.join(sorted(others))} there, else {' or '.join(sorted(sampled))}"
