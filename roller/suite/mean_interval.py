"""Confidence intervals for the mean of consecutive times, and for the ratio of two means."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

#: Number of batches into which values are grouped, since batch means correlate far less than neighbouring values.
_BATCHES = 10
#: Minimum number of rounds for the ratio of two alternately measured times.
LEAST_ROUNDS = 10
#: Prior standard deviation of the logarithm of the time ratio between two processes with the same code. On one machine
#: with two processors the ratios of 16 models scattered by 0.9 % (``benchmarks/results/pairs.md``); the prior weighs as
#: much as 16 ratios.
PROCESS_NOISE, _NOISE_DEGREES = 0.01, 15
#: Pairs of consecutive blocks, as the times per iteration, in seconds, in either process.
Rounds: TypeAlias = Sequence[tuple[float, float]]


class MeanInterval(NamedTuple):
    """A mean and its confidence interval."""

    mean: float
    lower: float
    upper: float

    @property
    def half_width(self) -> float:
        """Half the width of the interval relative to the mean."""
        return (self.upper - self.lower) / 2 / self.mean if self.mean else math.inf


def student_probability(t: float, degrees: int) -> float:
    """Return the probability that a Student's t-distributed variable is between ``-t`` and ``t``.

    Examples
    --------
    >>> round(student_probability(2.262, 9), 4), round(student_probability(12.706, 1), 4)
    (0.95, 0.95)
    """
    angle = math.atan(t / math.sqrt(degrees))  # the finite sums of Abramowitz and Stegun, 26.7.3 and 26.7.4
    cosine, odd = math.cos(angle), degrees % 2
    term, total = 1.0, 0.0
    for n in range(degrees // 2):
        total += term
        step = 2 * n + 1 + odd
        term *= step / (step + 1) * cosine**2
    if not odd:
        return math.sin(angle) * total
    return 2 / math.pi * (angle + math.sin(angle) * cosine * total)


def student_quantile(share: float, degrees: int) -> float:
    """Return the ``t`` with ``student_probability(t, degrees) == share``, by bisection.

    Examples
    --------
    >>> [round(student_quantile(0.95, n), 3) for n in (1, 4, 9, 30)]
    [12.706, 2.776, 2.262, 2.042]
    """
    low, high = 0.0, 1.0
    while student_probability(high, degrees) < share:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_probability(middle, degrees) < share else (low, middle)
    return high


def batch_means(values: Sequence[float]) -> tuple[float, ...]:
    """Return the means of ten consecutive batches; return fewer than twenty values unchanged.

    Examples
    --------
    >>> batch_means([1.0, 2.0]), batch_means([float(n) for n in range(21)])[:2]
    ((1.0, 2.0), (1.5, 3.5))
    """
    size = len(values) // _BATCHES
    if size < 2:
        return tuple(values)
    kept = values[len(values) - size * _BATCHES :]  # drops the first values, which do not fill a batch
    return tuple(statistics.fmean(kept[n : n + size]) for n in range(0, len(kept), size))


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> MeanInterval:
    """Return the mean of at least two values, with its confidence interval estimated from batch means.

    Examples
    --------
    >>> mean, lower, upper = mean_interval([1.0, 2.0, 3.0])
    >>> mean, round(lower, 3), round(upper, 3)
    (2.0, -0.484, 4.484)
    """
    mean, means = statistics.fmean(values), batch_means(values)
    error = statistics.stdev(means) / math.sqrt(len(means))
    width = student_quantile(confidence, len(means) - 1) * error
    return MeanInterval(mean, mean - width, mean + width)


def ratio_interval(before: Sequence[float], after: Sequence[float], confidence: float = 0.95) -> MeanInterval:
    """Return the ratio of two means (after divided by before), with its interval from the logarithms of batch means.

    Examples
    --------
    >>> found = ratio_interval([1.0, 1.01, 0.99, 1.0], [1.05, 1.06, 1.04, 1.05])
    >>> round(found.mean, 3), found.lower > 1.03, found.upper < 1.07
    (1.05, True, True)
    """
    logs = [[math.log(mean) for mean in batch_means(values)] for values in (before, after)]
    ratio = math.log(statistics.fmean(after)) - math.log(statistics.fmean(before))
    parts = [statistics.variance(own) / len(own) for own in logs]
    total = sum(parts)
    if not total:
        return MeanInterval(math.exp(ratio), math.exp(ratio), math.exp(ratio))
    degrees = total**2 / sum(part**2 / (len(own) - 1) for part, own in zip(parts, logs, strict=True))
    width = student_quantile(confidence, max(1, int(degrees))) * math.sqrt(total)
    return MeanInterval(math.exp(ratio), math.exp(ratio - width), math.exp(ratio + width))


def paired_ratio(groups: Sequence[Rounds], confidence: float = 0.95) -> MeanInterval | None:
    """Return the ratio of two alternately measured times, with its interval from the logarithms of the rounds' times.

    Examples
    --------
    >>> found = paired_ratio([[(1.0 + n, 1.05 * (1.0 + n)) for n in range(12)]])
    >>> found is not None and (round(found.mean, 3), round(found.lower, 3), round(found.upper, 3))
    (1.05, 1.028, 1.073)
    >>> paired_ratio([[(1.0, 1.0)]]) is None
    True
    """
    if not groups or any(len(rounds) < LEAST_ROUNDS for rounds in groups):
        return None
    found = [_trimmed_mean([math.log(after / before) for before, after in rounds]) for rounds in groups]
    centres, count = [centre for centre, _ in found], len(groups)
    centre, within = statistics.fmean(centres), statistics.fmean(square for _, square in found)
    # Variance between pairs of processes; the prior weighs as much as the models on which it was measured.
    degrees = count - 1 + _NOISE_DEGREES
    squares = sum((own - centre) ** 2 for own in centres) + _NOISE_DEGREES * (PROCESS_NOISE**2 + within)
    width = student_quantile(confidence, degrees) * math.sqrt(squares / degrees / count)
    return MeanInterval(math.exp(centre), math.exp(centre - width), math.exp(centre + width))


def _trimmed_mean(values: Sequence[float]) -> tuple[float, float]:
    """Return the 10 % trimmed mean and its squared standard error (Yuen's method, from winsorized values)."""
    # blocks disturbed by other work that went unnoticed are outliers; correlated neighbours count as fewer values
    ordered = sorted(values)
    cut = len(ordered) // 10
    low, high = ordered[cut], ordered[len(ordered) - 1 - cut]
    clipped = [min(max(value, low), high) for value in values]
    square = statistics.variance(clipped) / len(values) / (1 - 2 * cut / len(values)) ** 2
    centre = statistics.fmean(clipped)
    total = sum((value - centre) ** 2 for value in clipped)
    alike = sum((a - centre) * (b - centre) for a, b in itertools.pairwise(clipped)) / total if total else 0.0
    alike = min(max(alike + 1 / len(values), 0.0), 0.9)  # corrects the bias of a small sample
    return statistics.fmean(ordered[cut : len(ordered) - cut]), square * (1 + alike) / (1 - alike)
