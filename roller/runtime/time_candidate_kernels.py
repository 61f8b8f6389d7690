"""Timing of kernels: medians over batched calls in undisturbed windows, one kernel at a time.

Disturbed windows do not count (:mod:`roller_runtime.timing.clock`). If too few windows are left, or blocks of them
disagree, more are taken for a bounded time. A measurement that is still unsettled is marked as doubtful, with a reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import length_hint

from roller.runtime.ranking_reliability import NOISE, is_ranking_reliable
from roller_runtime.timing.clock import Clock, ClockSample, system_or_trusting_clock
from roller_runtime.timing.disturbance import Disturbance
from roller_runtime.timing.measure_median import PATIENCE_S, measure_median
from roller_runtime.timing.undisturbed_timing_windows import (
    LONG_S,
    MIN_SAMPLE_S,
    REST_S,
    WINDOW_S,
    ExtraTime,
    Timing,
    TimingSeries,
    calls_per_window,
    time_calls_together,
)

#: Largest ratio of the time of a cold first run to that of a warm run, whose workspace has been touched before.
_COLD = 3.0
#: Minimum and maximum number of rounds of the final, in which the fastest candidates run in turn.
_ROUNDS, _MOST_ROUNDS = 7, 60
#: Share of a candidate's budget that is spent before the final.
_HEAT = 1 / 3
#: Maximum number of first runs of a candidate before a disturbed one may drop it.
_LOOKS = 8
#: Largest acceptable share of time taken by the hypervisor from a long kernel, which no window can avoid.
STOLEN = 0.1


@dataclass(frozen=True)
class Contender:
    """A kernel call to be timed.

    Parameters
    ----------
    first_s
        Time of its first run, in seconds, including page faults; the result of this run was checked.
    threads
        Number of threads that it runs on.
    first_quiet
        Whether the first run was undisturbed.
    """

    name: str
    run: Callable[[], object]
    first_s: float
    threads: int = 1
    first_quiet: bool = True


def time_candidates(
    contenders: Iterable[Contender],
    *,
    budget_s: float = 0.3,
    drop_factor: float = 1.3,
    finalists: int = 3,
    clock: Clock | None = None,
    patience_s: float = PATIENCE_S,
    expected: int = 1,
) -> dict[str, Timing]:
    """Time candidates one after another, then time the best few in turn."""
    # A candidate whose first run (or warm run, if it is short) exceeds drop_factor times the best median keeps that
    # single time and is dropped. The finalists run in turn, so that a disturbance of one does not decide.
    if clock is None:
        own = system_or_trusting_clock()
        try:
            return time_candidates(contenders, budget_s=budget_s, drop_factor=drop_factor, finalists=finalists,
                                   clock=own,
                           patience_s=patience_s, expected=expected)  # fmt: skip
        finally:
            own.release()
    alone = ExtraTime(clock, patience_s / 2, length_hint(contenders, expected))
    together = ExtraTime(clock, patience_s / 2)
    before = clock.load()
    out: dict[str, Timing] = {}
    ahead: list[Contender] = []
    threads, noise = dict[str, int](), NOISE
    for c in contenders:
        threads[c.name] = c.threads
        best = min((t.median_s for t in out.values() if t.complete), default=float("inf"))
        out[c.name] = _time_or_drop(c, best, drop_factor, _HEAT * budget_s, clock, alone)
        alone.start_next_share()
        if out[c.name].complete:
            ahead = sorted([*ahead, c], key=lambda a: out[a.name].median_s)[:finalists]  # frees the other kernels
    if len(ahead) > 1 and out[ahead[0].name].median_s <= LONG_S:
        known = {c.name: out[c.name].median_s for c in ahead}
        out.update(_time_finalists(ahead, list(known.values()), budget_s, clock, together))
        # Repeated times show the error of the single ones.
        noise = max(noise, *(abs(math.log(out[n].median_s / s)) for n, s in known.items()))
    if clock.trusting:
        return out
    return _explain_doubts(
        _drop_surely_slower(out, drop_factor), threads, Disturbance.between(before, clock.load()), noise
    )


def _time_or_drop(
    c: Contender, best: float, drop_factor: float, heat_s: float, clock: Clock, patience: ExtraTime
) -> Timing:
    """Time one candidate, or drop it after its first runs."""
    clock.attend()
    first = _fastest_first_run(c, best, drop_factor, clock, patience)
    if first.wall_s > drop_factor * best and first.wall_s > MIN_SAMPLE_S:
        doubt = "" if first.quiet or first.least_s > drop_factor * best else "none of its runs was quiet"
        return Timing(first.wall_s, first.wall_s, 1, 1, False, doubt, first.least_s)
    if first.wall_s <= LONG_S:
        return measure_median(c.run, budget_s=heat_s, min_samples=3, warm_up=1, clock=clock, patience=patience)
    once = time_calls_together(c.run, clock)
    if once.wall_s < LONG_S / _COLD:  # the first run was cold and is no measure of it
        return measure_median(c.run, budget_s=heat_s, min_samples=3, warm_up=1, clock=clock, patience=patience)
    if once.quiet:  # the first run may have been cold: an upper bound, not a second measurement
        return Timing(once.wall_s, min(once.wall_s, first.wall_s), 1, 1, least_s=once.wall_s)
    series = TimingSeries(c.run, clock, 1, 2, [once])
    while not series.windows[-1].quiet and patience.count_and_has_time_left():
        series.retry()
    patience.pause()
    if not series.windows[-1].quiet:
        return series.timing()
    seconds = series.windows[-1].wall_s / series.calls
    return Timing(seconds, seconds, 1, series.calls, least_s=seconds)


def _fastest_first_run(c: Contender, best: float, drop_factor: float, clock: Clock, patience: ExtraTime) -> ClockSample:
    """Return the fastest of a candidate's first runs, a quiet one if possible."""
    # The checked run counts for a long kernel; if it may have been cold, a warm run follows before the kernel loses.
    first = ClockSample(c.first_s, 0.0 if c.first_quiet else c.first_s)
    if c.first_s > LONG_S:
        if first.quiet and not drop_factor * best < c.first_s < _COLD * best:
            return first
        runs = [time_calls_together(c.run, clock)]
    else:
        runs = [time_calls_together(c.run, clock) for _ in range(3)]
    while not any(r.quiet for r in runs) and len(runs) < _LOOKS and patience.count_and_has_time_left():
        clock.rest(REST_S)
        runs.append(time_calls_together(c.run, clock))
    patience.pause()
    return min((r for r in runs if r.quiet), key=_wall_s, default=min(runs, key=_wall_s))


def _time_finalists(
    ahead: Sequence[Contender], known_s: Sequence[float], budget_s: float, clock: Clock, patience: ExtraTime
) -> dict[str, Timing]:
    """Time the contenders in turn for as many rounds as the budget allows, and for more rounds after disturbances."""
    series = {}
    for c, seconds in zip(ahead, known_s, strict=True):
        series[c.name] = TimingSeries(c.run, clock, calls_per_window(seconds, 2 * WINDOW_S))
    turns_s = sum(max(2 * WINDOW_S, s) + (s if s < WINDOW_S else 0.0) for s in known_s)
    clock.attend()
    for _ in range(max(_ROUNDS, min(_MOST_ROUNDS, int(budget_s / turns_s)))):
        for s, seconds in zip(series.values(), known_s, strict=True):
            _take_warmed_window(s, seconds)
    while not all(s.do_windows_agree() for s in series.values()) and patience.count_and_has_time_left():
        if not all(s.windows[-1].quiet for s in series.values()):
            clock.rest(REST_S)
        for s, seconds in zip(series.values(), known_s, strict=True):
            _take_warmed_window(s, seconds)
    patience.pause()
    return {name: s.timing() for name, s in series.items()}


def _take_warmed_window(series: TimingSeries, seconds: float) -> None:
    """Take a window; if the kernel is short, first run it once to refill caches after the other kernels."""
    if seconds < WINDOW_S:
        series.run()
    series.take()


def _drop_surely_slower(out: dict[str, Timing], drop_factor: float) -> dict[str, Timing]:
    """Drop doubtful candidates that would lose even without their lost time."""
    best = min((t.median_s for t in out.values() if t.complete and not t.doubt), default=float("inf"))
    lost = {n: t for n, t in out.items() if t.doubt and t.least_s > drop_factor * best}
    return out | {n: replace(t, complete=False, doubt="") for n, t in lost.items()}


def _explain_doubts(
    out: dict[str, Timing], threads: dict[str, int], found: Disturbance, noise: float
) -> dict[str, Timing]:
    """Add the cause to every doubtful time; also mark times slowed down by shared cores as doubtful."""
    # noise is the average relative error of undoubted times; with it, times too close to each other get no rank.
    cause = str(found) or "something the system does not count"
    explained = {}
    for name, timing in out.items():
        if timing.doubt:
            timing = replace(timing, doubt=f"{cause} while it was timed: {timing.doubt}")
        elif timing.complete and found.beside(threads[name]):
            timing = replace(timing, doubt=f"{cause} while it was timed, which may be other halves of its cores")
        elif timing.complete and found.stolen > STOLEN and timing.median_s > LONG_S:
            timing = replace(timing, doubt=f"{cause} while it was timed")
        explained[name] = timing
    if str(found) and not is_ranking_reliable([t.median_s for t in out.values()], noise):
        tied = f"the times are too close to be ranked while {found}"
        explained = {n: t if t.doubt or not t.complete else replace(t, tied=tied) for n, t in explained.items()}
    return explained


def _wall_s(found: ClockSample) -> float:
    return found.wall_s
