"""Interleaved timing: every side once per round, in turning order; a ratio is the median over rounds."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

#: Runs shorter than this are timed as graphs of many, so that launches do not count (seconds).
GRAPH_BELOW_S = 100e-6
#: One graph lasts about this long (seconds), with at most so many launches.
_GRAPH_S, _MOST_LAUNCHES = 400e-6, 512
_MIN_ROUNDS, _MAX_ROUNDS = 7, 60


@dataclass(frozen=True)
class Compared:
    """One side against the first.

    Parameters
    ----------
    median_s
        Median seconds per call of this side.
    ratio
        Median over rounds of its time divided by the first side's: above 1 the first side is faster.
    spread
        Interquartile range of these ratios.
    rounds
        How many there were.
    """

    median_s: float
    ratio: float
    spread: float
    rounds: int


def compare(stopwatches: Mapping[str, Callable[[], float]], budget_s: float) -> dict[str, Compared]:
    """Time all sides in turn: A B, B A, A B, ...

    Parameters
    ----------
    stopwatches
        By name, a call that runs one sample and returns its seconds; the first is the one others are held against.
    budget_s
        Seconds to spend, exceeded only to reach the least number of rounds.

    Examples
    --------
    >>> found = compare({"ours": lambda: 1.0, "theirs": lambda: 2.0}, budget_s=0.0)
    >>> found["theirs"].ratio, found["ours"].ratio, found["ours"].rounds
    (2.0, 1.0, 7)
    """
    names = list(stopwatches)
    samples: dict[str, list[float]] = {n: [] for n in names}
    end = time.perf_counter() + budget_s
    for number in range(_MAX_ROUNDS):
        if number >= _MIN_ROUNDS and time.perf_counter() > end:
            break
        for n in names if number % 2 == 0 else reversed(names):
            samples[n].append(stopwatches[n]())
    first = samples[names[0]]
    return {n: _compared(x, first) for n, x in samples.items()}


def _compared(samples: list[float], first: list[float]) -> Compared:
    ratios = [b / a for a, b in zip(first, samples, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    return Compared(statistics.median(samples), statistics.median(ratios), high - low, len(ratios))


class Stopwatches:
    """How runs on a CUDA or ROCm device are timed: by events, after the cache was emptied, or as graphs.

    Parameters
    ----------
    torch
        The module.
    cache_bytes
        Last-level cache of the device.
    """

    def __init__(self, torch: Any, cache_bytes: int) -> None:
        self._torch = torch
        # Read, not written: dirty lines would be written back while the next run is timed.
        self._flush = torch.zeros(max(2 * cache_bytes, 1 << 25) // 4, dtype=torch.float32, device="cuda")

    def of(self, runs: Mapping[str, Callable[[int], Any]], sets: int) -> tuple[dict[str, Callable[[], float]], str]:
        """Return a stopwatch per run, all of one kind, and the kind: ``"events"``, ``"graph"`` or ``"loop"``.

        Parameters
        ----------
        runs
            By name, a call on buffer set ``n`` that starts the work on the current stream.
        sets
            Buffer sets that short runs rotate over.
        """
        for run in runs.values():  # compiles, tunes, allocates
            for n in range(3):
                run(n % sets)
        self._torch.cuda.synchronize()
        once = {name: min(self._cold(run) for _ in range(3)) for name, run in runs.items()}
        if min(once.values()) >= GRAPH_BELOW_S:
            return {n: self._bind(run) for n, run in runs.items()}, "events"
        counts = {n: _launches(seconds, sets) for n, seconds in once.items()}
        try:
            return {n: self._graph(run, counts[n]) for n, run in runs.items()}, "graph"
        except RuntimeError:  # a side that cannot be captured; then no side is
            self._torch.cuda.synchronize()
            return {n: self._loop(run, counts[n]) for n, run in runs.items()}, "loop"

    def _bind(self, run: Callable[[int], Any]) -> Callable[[], float]:
        return lambda: self._cold(run)

    def _cold(self, run: Callable[[int], Any]) -> float:
        self._flush.sum()
        return self._timed(lambda: run(0))

    def _timed(self, run: Callable[[], Any]) -> float:
        cuda = self._torch.cuda
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3

    def _graph(self, run: Callable[[int], Any], count: int) -> Callable[[], float]:
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(graph):
            for n in range(count):
                run(n)
        self._timed(graph.replay)
        return lambda: self._timed(graph.replay) / count

    def _loop(self, run: Callable[[int], Any], count: int) -> Callable[[], float]:
        def all_of_it() -> None:
            for n in range(count):
                run(n)

        return lambda: self._timed(all_of_it) / count


def _launches(seconds: float, sets: int) -> int:
    """Return launches per graph: long enough to time, a whole number of rotations where that is possible.

    Examples
    --------
    >>> _launches(4e-6, 8), _launches(90e-6, 64), _launches(1e-6, 64)
    (104, 64, 448)
    """
    wanted = math.ceil(_GRAPH_S / max(seconds, 1e-6))
    return min(_MOST_LAUNCHES, math.ceil(max(wanted, sets) / sets) * sets)
