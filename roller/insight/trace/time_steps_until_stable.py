"""Times consecutive steps in blocks of three until they are stable, and estimates the interval of their median.

Blocks correspond to the windows of the kernel clock (:mod:`roller_runtime.timing.clock`). A block is disturbed if the
step's threads, ready to run, waited for a processor for more than a twentieth of the time. (Unlike a kernel, a step may
also sleep while it waits for data.) The interval is based on order statistics, without assumptions about the
distribution: with 95 % confidence, the true median lies between the k-th smallest and the k-th largest of n times.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb

from roller.insight.trace.progress import report_progress
from roller_runtime.timing.clock import QUIET_SHARE, Clock, ClockSample, system_or_trusting_clock
from roller_runtime.timing.undisturbed_timing_windows import time_calls_together

#: Number of consecutive steps in a block.
BLOCK_STEPS = 3
#: Number of undisturbed blocks that a stable time needs, and number of blocks that are run whatever the budget is.
NEEDED, LEAST = 5, 3
#: Widths of the interval, relative to the median, up to which a time is stable, and at which no more blocks are run.
STABLE, SETTLED = 0.10, 0.02
#: Largest relative difference between consecutive steps at which the warm-up ends, and maximum number of its steps.
_WARM, _MOST_WARM = 0.05, 10
#: Maximum number of blocks, and the share of the budget that a warm-up may take.
_MOST, _WARM_SHARE = 100, 0.25


@dataclass(frozen=True)
class StepTiming:
    """Time per step, in seconds.

    Parameters
    ----------
    median_s, lower_s, upper_s
        Median of the blocks, and its 95 % confidence interval (minimum and maximum for fewer than six blocks). For
        disturbed blocks, ``lower_s`` excludes all the time that other programs took.
    is_stable
        Whether enough blocks were undisturbed and the interval is narrow.
    samples_s
        Seconds per step in the blocks of the median: the undisturbed ones if there are enough, otherwise all.
    note
        Why the time is not stable; empty if it is stable.
    """

    median_s: float
    lower_s: float
    upper_s: float
    is_stable: bool
    samples_s: tuple[float, ...]
    note: str = ""


def time_steps(
    step: Callable[[], object],
    *,
    steps_per_call: int = 1,
    budget_s: float,
    between: Callable[[], object] = lambda: None,
) -> StepTiming:
    """Return the time per step; ``between`` is called before each block and is not timed."""
    chosen = system_or_trusting_clock()
    calls = max(1, -(-BLOCK_STEPS // steps_per_call))
    start, blocks = chosen.now(), list[ClockSample]()
    last_s = time_calls_together(step, chosen).wall_s
    for _ in range(_MOST_WARM):
        now_s = time_calls_together(step, chosen).wall_s
        if abs(now_s - last_s) <= _WARM * last_s or chosen.now() - start > _WARM_SHARE * budget_s:
            break
        last_s = now_s
    try:
        while len(blocks) < LEAST or (len(blocks) < _MOST and chosen.now() - start < budget_s):
            report_progress("measure", len(blocks))
            between()
            chosen.attend()
            step()  # code that ran in between has left its own data in the caches
            blocks.append(time_calls_together(step, chosen, calls))
            quiet = _seconds_of_undisturbed_blocks(blocks, chosen)
            if len(quiet) >= NEEDED and _relative_interval_width(quiet) <= SETTLED:
                break
    finally:
        chosen.release()
    return _summarize_blocks(blocks, chosen, calls * steps_per_call)


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the median's 95 % confidence interval; the minimum and maximum for fewer than six values.

    Examples
    --------
    >>> median_interval([1.0, 2.0, 3.0]), median_interval([float(n) for n in range(1, 11)])
    ((1.0, 3.0), (2.0, 9.0))
    """
    ordered, count = sorted(values), len(values)
    outside, k = 1, 0  # of 2 ** count equally likely ways, those with at most k values below the median
    while k + 1 < count / 2 and outside + comb(count, k + 1) <= 0.025 * 2**count:
        k += 1
        outside += comb(count, k)
    return ordered[k], ordered[-1 - k]


def _seconds_of_undisturbed_blocks(blocks: Sequence[ClockSample], clock: Clock) -> list[float]:
    return [block.wall_s for block in blocks if is_undisturbed(block, clock)]


def is_undisturbed(block: ClockSample, clock: Clock) -> bool:
    """Return whether the step's threads waited for a processor for at most a twentieth of a block."""
    return clock.trusting or block.together_s <= QUIET_SHARE * block.wall_s


def _relative_interval_width(values: Sequence[float]) -> float:
    lower, upper = median_interval(values)
    return (upper - lower) / statistics.median(values)


def _summarize_blocks(blocks: Sequence[ClockSample], clock: Clock, steps: int) -> StepTiming:
    quiet = _seconds_of_undisturbed_blocks(blocks, clock)
    kept = quiet if len(quiet) >= NEEDED else [block.wall_s for block in blocks]
    width = _relative_interval_width(kept)
    note = ""
    if len(quiet) < NEEDED:
        note = (
            f"time: expected at least {NEEDED} blocks of {steps} steps without other work on the processors, got "
            f"{len(quiet)} of {len(blocks)} within the budget. Leave the machine alone, or raise budget_s "
            f"(--measure-s)."
        )
    elif width > STABLE:
        note = (
            f"time: expected steps that agree, got blocks whose median may be off by {100 * width:.0f} % (95 %). "
            f"Leave the machine alone, or raise budget_s (--measure-s)."
        )
    samples = tuple(seconds / steps for seconds in kept)
    lower, upper = median_interval(samples)
    if len(quiet) < NEEDED:
        lower = min(lower, *(block.least_s / steps for block in blocks))
    return StepTiming(statistics.median(samples), lower, upper, not note, samples, note)
