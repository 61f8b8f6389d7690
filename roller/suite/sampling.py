"""Sampling of consecutive iterations by the stop rule of the training benchmark."""

# Warm-up ends when moving medians change little. Then iterations count until the interval of their mean is narrow, the
# maximum number is reached, or the budget is spent. Iterations disturbed by other work do not count.

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from roller.errors import RollerError
from roller.insight.trace.progress import report_progress
from roller.insight.trace.time_steps_until_stable import StepTiming, is_undisturbed
from roller.suite.mean_interval import MeanInterval, mean_interval
from roller_runtime.timing.clock import Clock, Load, system_or_trusting_clock
from roller_runtime.timing.undisturbed_timing_windows import time_calls_together


@dataclass(frozen=True)
class SamplingRule:
    """Rule for when warm-up ends and how many iterations to take.

    The publication discards iterations until throughput is stable, then takes 50 to 1,000; the thresholds that define
    stability are Roller's own.

    Parameters
    ----------
    window
        Number of iterations per moving median, and of consecutive medians that must agree.
    tolerance
        Largest relative difference between these medians.
    least, most
        Bounds on the number of counted iterations.
    precise
        Half-width of the mean's confidence interval, relative to the mean, at which sampling stops.
    limit
        Relative half-width above which the mean is not reported.
    """

    window: int = 20
    tolerance: float = 0.02
    least: int = 50
    most: int = 1000
    precise: float = 0.01
    limit: float = 0.05

    def __post_init__(self) -> None:
        if self.window < 1 or not 2 <= self.least <= self.most or not 0 < self.precise <= self.limit:
            raise RollerError(
                f"sampling: expected a window of at least 1, 2 <= least <= most and 0 < precise <= limit, got {self}. "
                f"Change them."
            )


#: Rule for a short budget: smaller windows, a looser end of the warm-up and at least 6 iterations, with the same
#: precision of the mean.
QUICK = SamplingRule(window=3, tolerance=0.05, least=6, most=1000)


@dataclass(frozen=True)
class Sample:
    """Times of the iterations of a step.

    Parameters
    ----------
    warm_up
        Number of undisturbed iterations before the first counted iteration.
    samples_s
        Time of each counted iteration, in seconds, in order.
    disturbed
        Number of iterations in both phases that were discarded because other programs disturbed them.
    interval
        Mean of ``samples_s`` with its 95 % confidence interval; ``None`` for fewer than two counted iterations.
    cpu_utilisation
        CPU time of this process in the counted phase, divided by the elapsed time and the number of processors;
        ``None`` without counted iterations.
    note
        Why the mean is not reported; ``""`` if it is reported.
    """

    warm_up: int
    samples_s: tuple[float, ...]
    disturbed: int
    interval: MeanInterval | None
    cpu_utilisation: float | None
    note: str = ""

    @property
    def is_stable(self) -> bool:
        """Whether the mean is reported."""
        return not self.note

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Sample:
        """Create the sample from JSON data."""
        interval = data["interval"]
        given = {
            "samples_s": tuple(data["samples_s"]),
            "interval": None if interval is None else MeanInterval(*interval),
        }
        return cls(**{**data, **given})

    def timing(self) -> StepTiming:
        """Return the mean as a step timing; without a confidence interval, its bounds are zero and infinity."""
        mean, lower, upper = self.interval or MeanInterval(0.0, 0.0, float("inf"))
        return StepTiming(mean, max(0.0, lower), upper, self.is_stable, self.samples_s, self.note)


def count_warm_up_iterations(seconds: Sequence[float], rule: SamplingRule) -> int | None:
    """Return the number of warm-up iterations in a series; ``None`` if warm-up has not ended.

    Examples
    --------
    The medians over three iterations are 9, 2, 1, 1 and 1; the last three agree.

    >>> count_warm_up_iterations([9.0, 9.0, 2.0, 1.0, 1.0, 1.0, 1.0], SamplingRule(window=3, least=2))
    7
    >>> count_warm_up_iterations([9.0, 9.0, 2.0, 1.0, 1.0, 1.0], SamplingRule(window=3, least=2)) is None
    True
    """
    size = rule.window
    medians = [statistics.median(seconds[n : n + size]) for n in range(len(seconds) - size + 1)]
    for first in range(len(medians) - size + 1):
        own = medians[first : first + size]
        if max(own) <= (1 + rule.tolerance) * min(own):
            return first + 2 * size - 1
    return None


def sample_iterations(
    step: Callable[[], object],
    rule: SamplingRule,
    *,
    steps_per_call: int = 1,
    budget_s: float,
) -> Sample:
    """Time iterations of ``step`` until ``rule`` is satisfied or ``budget_s`` seconds have passed."""
    clock = system_or_trusting_clock()
    try:
        return _Sampler(step, rule, steps_per_call, budget_s, clock).run()
    finally:
        clock.release()


class _Sampler:
    def __init__(
        self, step: Callable[[], object], rule: SamplingRule, steps_per_call: int, budget_s: float, clock: Clock
    ) -> None:
        self._step, self._rule, self._steps, self._clock = step, rule, steps_per_call, clock
        self._end_s, self._taken, self._disturbed = clock.now() + budget_s, 0, 0
        self._must = 2 * rule.window - 1 + rule.least

    def run(self) -> Sample:
        first, kept = list[float](), list[float]()
        warm: int | None = None
        while warm is None and self._may_continue():
            self._take(first)
            warm = count_warm_up_iterations(first, self._rule)
        before = self._clock.load()
        interval: MeanInterval | None = None
        while warm is not None and len(kept) < self._rule.most and self._may_continue():
            self._take(kept)
            interval = mean_interval(kept) if len(kept) >= max(2, self._rule.least) else None
            if interval is not None and interval.half_width <= self._rule.precise:
                break
        after = self._clock.load()
        found = mean_interval(kept) if len(kept) >= 2 else None
        busy = _busy_share(before, after) if kept else None
        note = self._instability_note(warm, kept, found)
        return Sample(len(first), tuple(kept), self._disturbed, found, busy, note)

    def _may_continue(self) -> bool:
        return self._taken < self._must or self._clock.now() < self._end_s

    def _take(self, kept: list[float]) -> None:
        if not self._taken:
            self._step()  # creates the threads that the clock observes
        self._clock.attend()
        one = time_calls_together(self._step, self._clock)
        self._taken += 1
        report_progress("measure", self._taken, 0)
        if is_undisturbed(one, self._clock):
            kept.append(one.wall_s / self._steps)
        else:
            self._disturbed += 1

    def _instability_note(self, warm: int | None, kept: Sequence[float], found: MeanInterval | None) -> str:
        rule, less = self._rule, "Leave the machine alone, or raise the budget."
        others = f", of which {self._disturbed} were disturbed by other work" if self._disturbed else ""
        if warm is None:
            return (
                f"sampling: expected moving medians over {rule.window} iterations that stay within "
                f"{100 * rule.tolerance:g} %, got none in {self._taken} iterations{others}. {less}"
            )
        if len(kept) < rule.least or found is None:
            return (
                f"sampling: expected at least {rule.least} undisturbed iterations after the warm-up, got {len(kept)} "
                f"of {self._taken} in all{others}. {less}"
            )
        if found.half_width > rule.limit:
            return (
                f"sampling: expected a mean that is known to {100 * rule.limit:g} %, got {100 * found.half_width:.1f} "
                f"% after {len(kept)} iterations{others}. {less}"
            )
        return ""


def _busy_share(before: Load, after: Load) -> float | None:
    elapsed_s = (after.wall_s - before.wall_s) * after.processors
    return (after.own_s - before.own_s) / elapsed_s if elapsed_s > 0 else None
