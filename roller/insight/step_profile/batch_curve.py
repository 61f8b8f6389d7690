"""Throughput and memory of a step over its batch: the line through three batches, and computed ones beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from roller.errors import NoCandidateError, RollerError, shown

#: Distances between the three batches, largest first: a step that takes little of the memory takes the first.
STEPS = (100, 20, 10, 5, 1)
#: Share of the memory that the batches of the widest distance may take.
SMALL = 0.1
#: Relative distances of a computed batch from the lines of time and bytes, from which on they do not hold there.
APART, APART_BYTES = 0.05, 0.02
#: Growth of the time over the three batches, relative to the constant, that is no more than rounding.
_NOISE = 1e-6
#: Growth of throughput by a doubled batch, below which returns diminish.
DIMINISHING = 1.1


class BatchPoint(NamedTuple):
    """One step of a batch.

    Parameters
    ----------
    batch
        Samples of a call.
    iteration_s
        Time of a step.
    throughput
        Samples per second; 0 if the step does not fit.
    allocated_bytes, total_bytes
        Peaks of the allocator, and of the process.
    fits
        Whether it fits.
    bound
        What bounds the step.
    peak_phase
        Phase of the step at the memory's peak.
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
    """Lines over the batch ``x``: ``a x + b`` seconds, ``c x + d`` allocated bytes.

    Parameters
    ----------
    a, b, c, d
        By least squares, ``b`` at least 0.
    batches
        Where they were sampled.
    holds
        Whether the time grows with the batch, and no constraint was needed.
    """

    a: float
    b: float
    c: float
    d: float
    batches: tuple[int, ...]
    holds: bool

    def iteration_s(self, batch: float) -> float:
        """Return the time of a step."""
        return self.a * batch + self.b

    def throughput(self, batch: float) -> float:
        """Return the samples per second."""
        took = self.iteration_s(batch)
        return batch / took if took > 0 else 0.0

    def allocated_bytes(self, batch: float) -> float:
        """Return the peak of allocated bytes."""
        return self.c * batch + self.d


@dataclass(frozen=True)
class BatchCurve:
    """Throughput and memory of a step over its batch.

    Parameters
    ----------
    line
        Through three batches; ``None`` if three do not fit.
    computed
        Batches that were computed, those of the line among them, in order.
    largest
        Largest batch that fits; 0 if none does, or it was not searched.
    notes
        Where the line does not hold, and why, a sentence each.
    """

    line: BatchLine | None
    computed: tuple[BatchPoint, ...]
    largest: int = 0
    notes: tuple[str, ...] = ()

    @property
    def limit_by(self) -> Literal["line", "computed", ""]:
        """What tells the limit of large batches: the line where it holds there, else the computed batches, or neither.

        The line does not hold where it is off by more than 5 % at a computed batch beyond its own, or at one from which
        returns diminish by it.
        """
        if self.line is not None and self.line.holds:
            knee = _knee_of_line(self.line)
            off = (p.batch for p in _slower(self.line, self.computed))
            if not any(batch > self.line.batches[-1] or knee <= batch <= 2 * knee for batch in off):
                return "line"
        return "" if self._knee_of_computed() is None else "computed"

    @property
    def most_throughput(self) -> float:
        """Limit of the line for large batches, ``1 / a`` samples per second; 0 where it does not hold."""
        return 1.0 / self.line.a if self.line is not None and self.limit_by == "line" else 0.0

    @property
    def most_computed(self) -> BatchPoint | None:
        """The computed batch with most samples per second where :attr:`limit_by` is ``"computed"``; else ``None``."""
        if self.limit_by != "computed":
            return None
        return max((p for p in self.computed if p.fits), key=lambda p: p.throughput)

    @property
    def throughput_at_largest(self) -> float:
        """Samples per second at the largest batch that fits; 0 if it was not computed."""
        return next((p.throughput for p in self.computed if p.batch == self.largest), 0.0)

    def at(self, batch: int) -> BatchPoint | None:
        """Return a batch that was computed; ``None`` if it was not."""
        return next((p for p in self.computed if p.batch == batch), None)

    def diminishing_from(self) -> int:
        """Return the first batch ``x`` with ``T(2 x) / T(x) < 1.1``.

        On the line, the first above ``4.5 b / a``; where the line does not hold (:attr:`limit_by`), the first computed
        batch whose double was computed, too.

        Raises
        ------
        NoCandidateError
            Neither the line nor the computed batches tell one.
        """
        knee = None
        if self.line is not None and self.limit_by == "line":
            knee = _knee_of_line(self.line)
        elif self.limit_by == "computed":
            knee = self._knee_of_computed()
        if knee is None:
            why = self.notes[0].rstrip(".") if self.notes else "three batches do not fit"
            raise NoCandidateError(
                f"profile: diminishing_from: expected a time that is linear in the batch, or a computed batch from "
                f"which returns diminish, got neither ({why}). Look at the computed batches."
            )
        return knee

    def _knee_of_computed(self) -> int | None:
        """Return the first computed batch whose computed double brings less than a tenth more; ``None`` if none."""
        known = {p.batch: p.throughput for p in self.computed if p.fits and p.throughput > 0}
        pairs = ((batch, known[2 * batch] / known[batch]) for batch in sorted(known) if 2 * batch in known)
        return next((batch for batch, growth in pairs if growth < DIMINISHING), None)

    def batch_of_memory(self, allocated_bytes: float) -> int:
        """Return the largest batch whose allocated bytes are at most these, by the line; at least 1.

        Raises
        ------
        NoCandidateError
            There is no line, or memory does not grow with the batch.
        RollerError
            ``allocated_bytes`` is no finite number.
        """
        _check_finite("batch_of_memory", "bytes", allocated_bytes)
        line = self._line()
        if line.c <= 0:
            raise NoCandidateError(
                "profile: expected memory that grows with the batch, got memory that does not. Ask for a batch."
            )
        return max(1, math.floor((allocated_bytes - line.d) / line.c))

    def batch_of_throughput(self, per_s: float) -> int:
        """Return the smallest batch with a throughput, by the line; at least 1.

        Raises
        ------
        NoCandidateError
            There is no line, no batch is so fast, or the line does not hold at such batches.
        RollerError
            ``per_s`` is no finite number.
        """
        _check_finite("batch_of_throughput", "samples/s", per_s)
        line = self._line()
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

    def _line(self) -> BatchLine:
        if self.line is None:
            why = self.notes[0].rstrip(".") if self.notes else "three batches do not fit"
            raise NoCandidateError(f"profile: expected a line through three batches, got none ({why}).")
        return self.line


def _knee_of_line(line: BatchLine) -> int:
    # 2 (a x + b) / (2 a x + b) < g  <=>  x > (2 - g) b / (2 a (g - 1))
    limit = (2.0 - DIMINISHING) * line.b / (2.0 * (DIMINISHING - 1.0) * line.a)
    return max(1, math.floor(limit + 1e-9) + 1)


def _slower(line: BatchLine, computed: Sequence[BatchPoint]) -> list[BatchPoint]:
    """Return the batches that fit where the line of the time is off."""
    return [p for p in computed if p.fits and _are_apart(line.iteration_s(p.batch), p.iteration_s, APART)]


def _check_finite(where: str, unit: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise RollerError(f"profile: {where}: expected a number of {unit}, got {shown(value)}. Pass a finite one.")


def fit_line(points: Sequence[BatchPoint]) -> BatchLine:
    """Return the lines of least squares through some batches.

    Where the time would be negative at batch 0, ``b`` is 0; the line is then said not to hold.

    Examples
    --------
    >>> points = [BatchPoint(x, 0.5 * x + 1.0, 0.0, 100 * x + 7, 0, True) for x in (8, 16, 24)]
    >>> line = fit_line(points)
    >>> round(line.a, 9), round(line.b, 9), round(line.c), round(line.d), line.holds
    (0.5, 1.0, 100, 7, True)
    """
    xs = [float(p.batch) for p in points]
    a, b = _least_squares(xs, [p.iteration_s for p in points])
    c, d = _least_squares(xs, [float(p.allocated_bytes) for p in points])
    holds = a * (xs[-1] - xs[0]) > _NOISE * abs(b) and b >= 0
    if b < 0:
        a, b = sum(x * p.iteration_s for x, p in zip(xs, points, strict=True)) / sum(x * x for x in xs), 0.0
    return BatchLine(a, b, c, d, tuple(p.batch for p in points), holds)


def _least_squares(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    mean_x, mean_y = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    spread = math.fsum((x - mean_x) ** 2 for x in xs)
    slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    return slope, mean_y - slope * mean_x


def batch_curve(
    point_at: Callable[[int], BatchPoint], batch: int, capacity_bytes: int, *, fixed_bytes: int = 0,
    largest: Callable[[], int] = lambda: 0, others: Callable[[int], Sequence[int]] = lambda largest: (),
) -> BatchCurve:  # fmt: skip
    """Return the curve of a step: a line through three batches from ``batch`` on, and others beside it.

    The three are 100, 20, 10, 5 or 1 apart, as the memory allows; if one of them does not fit, they are ``batch`` and
    its halves.
    """
    known: dict[int, BatchPoint] = {}

    def point(size: int) -> BatchPoint:
        if size not in known:
            known[size] = point_at(size)
        return known[size]

    first = point(batch)
    chosen = _upwards(point, first, capacity_bytes, fixed_bytes) or _downwards(point, batch)
    notes: list[str] = []
    if len(chosen) < 3:
        notes.append(f"Fewer than three batch sizes fit: {', '.join(str(p.batch) for p in chosen) or 'none'}.")
    most = largest()
    for size in dict.fromkeys((*others(most), *([most] if most else []))):
        point(size)
    computed = tuple(known[size] for size in sorted(known))
    line = fit_line(chosen) if len(chosen) == 3 else None
    return BatchCurve(line, computed, most, (*notes, *_doubts(line, computed)))


def _upwards(
    point: Callable[[int], BatchPoint], first: BatchPoint, capacity_bytes: int, fixed_bytes: int
) -> list[BatchPoint]:
    """Return three batches upwards from the first; none if one of them does not fit."""
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


def _downwards(point: Callable[[int], BatchPoint], batch: int) -> list[BatchPoint]:
    """Return the largest three of a batch and its halves that fit."""
    found: list[BatchPoint] = []
    while batch >= 1 and len(found) < 3:
        if point(batch).fits:
            found.append(point(batch))
        batch //= 2
    return found[::-1]


def _doubts(line: BatchLine | None, computed: Sequence[BatchPoint]) -> list[str]:
    """Return where the line does not hold, and why."""
    if line is None:
        return []
    found = []
    if not line.holds:
        found.append(_why_no_line(line, computed))
    points = [p for p in computed if p.fits]
    slower = _slower(line, points)
    if slower:
        why = _difference("bound by the", "bound", slower, line, points)
        sizes = ", ".join(f"{p.batch} ({_percent(line.iteration_s(p.batch), p.iteration_s)})" for p in slower)
        found.append(f"The line of the time is off at batch {sizes}: {why or _far_or_near(line, slower)}.")
    fuller = [p for p in points if _are_apart(line.allocated_bytes(p.batch), p.allocated_bytes, APART_BYTES)]
    if fuller:
        why = _difference("the peak is in", "peak_phase", fuller, line, points)
        sizes = ", ".join(f"{p.batch} ({_percent(line.allocated_bytes(p.batch), p.allocated_bytes)})" for p in fuller)
        other = "other tensors are held at the peak there"
        found.append(f"The line of the memory is off at batch {sizes}: {why or other}.")
    return found


def _far_or_near(line: BatchLine, off: Sequence[BatchPoint]) -> str:
    if all(line.batches[0] <= p.batch <= line.batches[-1] for p in off):
        return "time grows in steps there, at multiples of tiles and waves"
    return (
        f"they are outside of {line.batches[0]} to {line.batches[-1]}, where kernels use the device to another extent"
    )


def _why_no_line(line: BatchLine, computed: Sequence[BatchPoint]) -> str:
    bounds = sorted({p.bound for p in computed if p.batch in line.batches and p.bound})
    if line.b > 0 or line.a <= 0:
        why = f", which are bound by the {' and the '.join(bounds)}" if bounds else ""
        return (
            f"The time does not grow over batches {', '.join(map(str, line.batches))}{why}: there is no limit to tell."
        )
    return "The time grows faster than the batch: the line through 0 is only a first guess."


def _are_apart(by_line: float, computed: float, share: float) -> bool:
    return computed > 0 and abs(by_line / computed - 1.0) > share


def _percent(by_line: float, computed: float) -> str:
    return f"{100 * (by_line / computed - 1.0):+.0f} %"


def _difference(words: str, name: str, off: Sequence[BatchPoint], line: BatchLine, points: Sequence[BatchPoint]) -> str:
    """Return in which property the batches that are off differ from the sampled ones; ``""`` if in none."""
    sampled = {getattr(p, name) for p in points if p.batch in line.batches}
    others = {getattr(p, name) for p in off} - sampled
    if not others:
        return ""
    return f"{words} {' or '.join(sorted(others))} there, else {' or '.join(sorted(sampled))}"
