"""Counts of a session's calls: how many, how many failed, how long they took, how many are running.

Threads record without a lock. Records are added up after some hundred calls, and when the metrics are read.
"""

from __future__ import annotations

import itertools
import math
import os
import weakref
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, ClassVar, TypeVar

import numpy as np

from roller_runtime.core.fork_safe_lock import ForkSafeLock
from roller_runtime.core.validation import validate_number
from roller_runtime.errors import LaunchError

Result = TypeVar("Result")

#: Number of calls that are recorded before they are added up.
_MOST_RECORDED = 512
#: Recorded instead of the duration of a call that failed.
_FAILED = -1.0
#: Maximum number of classes of sizes that a session counts separately.
MOST_SIZE_CLASSES = 32


@dataclass(frozen=True)
class LatencyHistogram:
    """Durations of the calls that succeeded, counted in fixed buckets.

    Parameters
    ----------
    counts
        Number of calls in each bucket: call durations of at most ``BOUNDS_S[n]`` and above the previous bound, in
        seconds; the last bucket has no upper bound.
    sum_s
        Sum of all durations in seconds.
    min_s, max_s
        Shortest and longest duration in seconds; ``None`` if there was no call.

    Examples
    --------
    >>> found = LatencyHistogram.of([0.004] * 98 + [0.020, 0.040])
    >>> found.count, found.max_s, 0.003 < found.quantile_s(0.5) <= 0.005, 0.015 < found.p99_s <= 0.02
    (100, 0.04, True, True)
    """

    counts: tuple[int, ...]
    sum_s: float
    min_s: float | None
    max_s: float | None

    #: Upper bounds of the buckets, in seconds: 1, 1.5, 2, 3, 5 and 7 times the powers of ten from 10 us to 10 s.
    BOUNDS_S: ClassVar[tuple[float, ...]] = (
        *(float(f"{m}e{e}") for e in range(-5, 1) for m in (1, 1.5, 2, 3, 5, 7)), 10.0,
    )  # fmt: skip

    @classmethod
    def of(cls, seconds: Sequence[float] | np.ndarray) -> LatencyHistogram:
        """Return the histogram of the given durations."""
        if not len(seconds):
            return cls((0,) * (len(cls.BOUNDS_S) + 1), 0.0, None, None)
        places = np.searchsorted(_BOUNDS, seconds)  # a bound belongs to its bucket
        counts = np.bincount(places, minlength=len(_BOUNDS) + 1)
        return cls(tuple(counts.tolist()), float(np.sum(seconds)), float(np.min(seconds)), float(np.max(seconds)))

    @property
    def count(self) -> int:
        """Number of calls."""
        return sum(self.counts)

    @property
    def mean_s(self) -> float | None:
        """Mean duration in seconds; ``None`` if there was no call."""
        return self.sum_s / self.count if self.count else None

    @property
    def p50_s(self) -> float | None:
        """Median in seconds; see :meth:`quantile_s`."""
        return self.quantile_s(0.5)

    @property
    def p95_s(self) -> float | None:
        """95th percentile in seconds; see :meth:`quantile_s`."""
        return self.quantile_s(0.95)

    @property
    def p99_s(self) -> float | None:
        """99th percentile in seconds; see :meth:`quantile_s`."""
        return self.quantile_s(0.99)

    def quantile_s(self, q: float) -> float | None:
        """Return the duration in seconds below which a share ``q`` of the calls lies; ``None`` if there was no call.

        Raises
        ------
        LaunchError
            If ``q`` is not a number from 0 to 1.

        Notes
        -----
        Durations are assumed to be evenly distributed within a bucket, as Prometheus' ``histogram_quantile`` assumes
        it; the result lies between the shortest and the longest duration and is wrong by at most a bucket's width.
        """
        if validate_number(q, "q", expected="a share from 0 to 1", error=LaunchError) > 1.0:
            raise LaunchError(f"q: expected a share from 0 to 1, got {q}. Write {q / 100} for {q} %.")
        if self.min_s is None or self.max_s is None:
            return None
        wanted, before = q * self.count, 0
        ends = zip((0.0, *self.BOUNDS_S), (*self.BOUNDS_S, self.max_s), self.counts, strict=True)
        for low, high, count in ends:
            if count and before + count >= wanted:
                found = low + (high - low) * max(0.0, wanted - before) / count
                return min(max(found, self.min_s), self.max_s)
            before += count
        return self.max_s

    def __add__(self, other: LatencyHistogram) -> LatencyHistogram:
        """Return the histogram of the calls of both."""
        ends = [(h.min_s, h.max_s) for h in (self, other)]
        return LatencyHistogram(
            tuple(a + b for a, b in zip(self.counts, other.counts, strict=True)),
            self.sum_s + other.sum_s,
            min((low for low, _ in ends if low is not None), default=None),
            max((high for _, high in ends if high is not None), default=None),
        )


_BOUNDS = np.array(LatencyHistogram.BOUNDS_S)


@dataclass(frozen=True)
class CallMetrics:
    """Counts of calls.

    Parameters
    ----------
    failures
        Number of calls that raised an error, including those whose arrays were refused.
    in_progress
        Number of calls that are running.
    latency
        Durations of the calls that succeeded, from the call to the return of its results.
    """

    failures: int
    in_progress: int
    latency: LatencyHistogram

    @property
    def calls(self) -> int:
        """Number of finished calls, including failures."""
        return self.latency.count + self.failures

    def __add__(self, other: CallMetrics) -> CallMetrics:
        """Return the counts of both together."""
        return CallMetrics(
            self.failures + other.failures, self.in_progress + other.in_progress, self.latency + other.latency
        )


class CallMeter:
    """Counts calls of any number of threads; a forked process starts from zero."""

    __slots__ = ("__weakref__", "_added", "_failures", "_lock", "_recorded", "_running")

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self.reset()
        _METERS.add(self)

    def reset(self) -> None:
        """Start from zero."""
        #: Durations that are not added up yet.
        self._recorded: list[float] = []
        self._running: list[None] = []
        self._failures, self._added = 0, LatencyHistogram.of([])

    def measure(self, call: Callable[[Any, Any, bool], Result], inputs: Any, out: Any, on_device: bool) -> Result:
        """Return ``call(inputs, out, on_device)`` and count it."""
        # Every call pays for this code, so it takes a fixed number of arguments: any number costs 0.1 us more.
        # Appending to a list and removing its items are atomic. This call belongs to these lists, even if the process
        # forks meanwhile.
        running, recorded = self._running, self._recorded
        running.append(None)
        start = perf_counter()
        try:
            result = call(inputs, out, on_device)
        except BaseException:
            recorded.append(_FAILED)
            raise
        else:
            recorded.append(perf_counter() - start)
        finally:
            running.pop()
            if len(recorded) > _MOST_RECORDED:
                self._add_up_unless_locked()
        return result

    def measure_since(self, start: float | None, call: Callable[[], Result]) -> Result:
        """Return ``call()`` and count it, with its duration since ``start``; count only a failure if it is ``None``."""
        running, recorded = self._running, self._recorded
        running.append(None)
        try:
            result = call()
        except BaseException:
            recorded.append(_FAILED)
            raise
        else:
            recorded.extend(() if start is None else (perf_counter() - start,))
        finally:
            running.pop()
            if len(recorded) > _MOST_RECORDED:
                self._add_up_unless_locked()
        return result

    def metrics(self) -> CallMetrics:
        """Return the counts."""
        with self._lock:
            self._add_up()
            return CallMetrics(self._failures, len(self._running), self._added)

    def _add_up_unless_locked(self) -> None:
        if self._lock.acquire(blocking=False):
            try:
                self._add_up()
            finally:
                self._lock.release()

    def _add_up(self) -> None:
        recorded = self._recorded
        count = len(recorded)
        taken = np.array(recorded[:count])
        del recorded[:count]  # others only append
        seconds = taken[taken >= 0.0]
        self._failures += count - len(seconds)
        self._added += LatencyHistogram.of(seconds)


_METERS: weakref.WeakSet[CallMeter] = weakref.WeakSet()


def _reset_in_child() -> None:
    # The parent's calls are not this process's, and those that are running never end here.
    for meter in list(_METERS):
        meter.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)


class SizeClassMeters:
    """Meters of a session with dynamic sizes, one for each class of sizes.

    Classes depend on the ranges only, and there are at most :data:`MOST_SIZE_CLASSES`, so that clients that send many
    sizes cannot use up memory. The classes of a size end at powers of two or, if these give too many classes, of 4, 8
    and so on.

    Parameters
    ----------
    ends
        Smallest and largest value of each size.

    Examples
    --------
    >>> meters = SizeClassMeters({"batch": (1, 8), "length": (10, 100)})
    >>> meters.name_of_class({"batch": 3, "length": 17})
    'batch=3..4,length=17..32'
    """

    def __init__(self, ends: Mapping[str, tuple[int, int]]) -> None:
        self._ends = dict(ends)
        self._bounds = _class_bounds(self._ends)
        self._meters: dict[str, CallMeter] = {}
        #: Calls that failed before their sizes were known.
        self.unknown = CallMeter()
        #: Preparations of new sizes.
        self.prepared = CallMeter()

    def name_of_class(self, sizes: Mapping[str, int]) -> str:
        """Return the name of the class of the given sizes."""
        names = []
        for name, bounds in self._bounds.items():
            n = bisect_left(bounds, sizes[name])
            low = bounds[n - 1] + 1 if n else self._ends[name][0]
            names.append(f"{name}={low}" if low == bounds[n] else f"{name}={low}..{bounds[n]}")
        return ",".join(names)

    def of(self, sizes: Mapping[str, int]) -> CallMeter:
        """Return the meter of the given sizes, which are within the ranges."""
        return self._meters.setdefault(self.name_of_class(sizes), CallMeter())

    def measure_with_preparation(
        self, prepare: Callable[[Sequence[Any]], Any], arguments: Sequence[Any], options: Mapping[str, Any]
    ) -> Any:
        """Run the session that ``prepare(arguments)`` returns, and count the call with the time of the preparation."""
        start = perf_counter()
        session = self.unknown.measure_since(None, partial(prepare, arguments))
        return session._meter.measure_since(start, partial(session._run, arguments, **options))

    def metrics(self) -> tuple[CallMetrics, dict[str, CallMetrics]]:
        """Return the counts of all calls, and those of each class of sizes that was called, by its name."""
        classes = {name: meter.metrics() for name, meter in sorted(self._meters.copy().items())}
        total = sum(classes.values(), self.unknown.metrics())
        return total, {name: m for name, m in classes.items() if m.calls or m.in_progress}


def _class_bounds(ends: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, ...]]:
    """Return the largest value of each class by the name of its size."""
    steps = dict.fromkeys(ends, 1)
    while True:
        bounds = {name: _bounds_of_size(*ends[name], step) for name, step in steps.items()}
        if math.prod(map(len, bounds.values())) <= MOST_SIZE_CLASSES:
            return bounds
        widest = max(bounds, key=lambda name: len(bounds[name]))
        steps[widest] += 1


def _bounds_of_size(low: int, high: int, step: int) -> tuple[int, ...]:
    """Return ``high`` and the powers of ``2**step`` from ``low`` to below ``high``, in ascending order."""
    exponents = range(0, high.bit_length(), step) if step < high.bit_length() else ()
    return (*(2**e for e in exponents if low <= 2**e < high), high)


class HeldArenas:
    """The working memories of a session that exist, wherever they are held."""

    def __init__(self) -> None:
        self._numbers, self._alive = itertools.count(), dict[int, "weakref.ref[np.ndarray]"]()

    def add(self, arena: np.ndarray) -> None:
        """Count ``arena`` as long as it exists."""
        number, alive = next(self._numbers), self._alive
        alive[number] = weakref.ref(arena, lambda _: alive.pop(number, None))

    def sizes_bytes(self) -> list[int]:
        """Return the size of each arena in bytes."""
        arenas = [ref() for ref in self._alive.copy().values()]
        return [a.nbytes for a in arenas if a is not None]
