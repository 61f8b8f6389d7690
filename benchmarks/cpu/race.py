"""Contenders in turn: A B C A B C ..., medians of paired ratios, bootstrap intervals."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.cpu.environment import parted

Call = Callable[[], object]

#: Every turn begins with calls that do not count, for so long (seconds): the others have emptied the caches, and a
#: worker that is woken may share a processor with its caller until the scheduler's next ticks (4 ms each) part them.
WARM_S = 0.015
#: Calls longer than this need none of that (seconds).
_LONG_S = 0.05
#: Parts of a turn, of which the median counts: one interruption does not make a turn.
_PARTS = 5
#: The process is idle where it uses less than this share of a processor; looked at in steps of so many seconds, several
#: ticks of the scheduler (4 or 10 ms), at which the system books what a running thread uses.
_IDLE_SHARE, _IDLE_STEP_S = 0.1, 0.025


@dataclass(frozen=True)
class Pace:
    """How long a race is: ``rounds`` turns per contender of about ``turn_s`` seconds each."""

    rounds: int = 15
    turn_s: float = 0.02
    settle_s: float = 0.5


@dataclass(frozen=True)
class Ratio:
    """Median of paired ratios and its 95 % interval."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Race:
    """Seconds per call of every contender, one per round; ``restless`` turns began before the others were idle."""

    times: Mapping[str, tuple[float, ...]]
    restless: int = 0

    def median_s(self, name: str) -> float:
        """Return the median seconds per call."""
        return statistics.median(self.times[name])

    def best(self, names: Sequence[str]) -> str:
        """Return the fastest of the names by its median."""
        return min(names, key=self.median_s)

    def ratio(self, baseline: str, candidate: str) -> Ratio:
        """Return how many times as fast the candidate is, from pairs of the same round."""
        pairs = zip(self.times[baseline], self.times[candidate], strict=True)
        return paired([b / c for b, c in pairs])


def paired(ratios: Sequence[float], resamples: int = 2000) -> Ratio:
    """Return the median of ratios with its 95 % bootstrap interval (percentiles; the same every time).

    Examples
    --------
    >>> paired([2.0, 2.0, 2.0])
    Ratio(median=2.0, low=2.0, high=2.0)
    """
    values = np.asarray(ratios, dtype=np.float64)
    picks = np.random.default_rng(0).integers(0, len(values), (resamples, len(values)))
    low, high = np.percentile(np.median(values[picks], axis=1), [2.5, 97.5])
    return Ratio(float(np.median(values)), float(low), float(high))


def settle(
    limit_s: float, clock: Callable[[], float] = time.process_time, sleep: Callable[[float], None] = time.sleep
) -> bool:
    """Wait until no thread of this process spins; ``False`` where one still does at the limit.

    Every runtime keeps its workers spinning for a while after a call (OpenMP, OpenBLAS, ONNX Runtime and TVM alike).
    That is right for itself and takes processors from whoever comes next, so it is waited for instead of switched off.
    """
    end = time.perf_counter() + limit_s
    while True:
        used, start = clock(), time.perf_counter()
        sleep(_IDLE_STEP_S)
        if clock() - used < _IDLE_SHARE * max(time.perf_counter() - start, _IDLE_STEP_S):
            return True
        if time.perf_counter() >= end:
            return False


def warm_s(call: Call, least_s: float = WARM_S) -> float:
    """Run a call again and again for ``least_s``, at least once; return the seconds of the fastest."""
    best, start = float("inf"), time.perf_counter()
    now = start
    while True:
        begin = now
        call()
        now = time.perf_counter()
        best = min(best, now - begin)
        if now - start >= least_s:
            return best


def race(contenders: Mapping[str, Call], pace: Pace, wait: Callable[[float], bool] = settle) -> Race:
    """Run the contenders in turn, several calls in a row per turn, and return seconds per call.

    Parameters
    ----------
    contenders
        One call per name; it must finish its work before it returns.
    pace
        Rounds and seconds per turn.
    wait
        Called before every turn, until the threads of the one before are asleep.
    """
    once, restless = {}, 0
    for name, call in contenders.items():
        wait(pace.settle_s)
        once[name] = warm_s(call)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(pace.rounds):
        for name, call in contenders.items():
            restless += not wait(pace.settle_s)
            times[name].append(_turn(call, once[name], pace.turn_s))
    return Race({name: tuple(t) for name, t in times.items()}, restless)


def _turn(call: Call, once_s: float, turn_s: float) -> float:
    """Return the median over the parts of a turn of the seconds per call."""
    call()  # a library makes its threads at its first call
    with parted():
        return _timed(call, once_s, turn_s)


def _timed(call: Call, once_s: float, turn_s: float) -> float:
    if once_s < _LONG_S:
        warm_s(call)
    calls = max(1, min(10_000, round(turn_s / max(once_s, 1e-9))))
    parts, found = min(_PARTS, calls), []
    for _ in range(parts):
        start = time.perf_counter()
        for _ in range(calls // parts):
            call()
        found.append((time.perf_counter() - start) / (calls // parts))
    return statistics.median(found)
