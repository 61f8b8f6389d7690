"""Intervals of a mean of times that follow each other, and of the ratio of two means."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

#: Batches that many values are summarised by: means of batches depend on each other far less than neighbours do.
_BATCHES = 10


class MeanInterval(NamedTuple):
    """A mean, and the interval that contains the true one."""

    mean: float
    lower: float
    upper: float

    @property
    def half_width(self) -> float:
        """Half the width of the interval relative to the mean."""
        return (self.upper - self.lower) / 2 / self.mean if self.mean else math.inf


def student_share(t: float, degrees: int) -> float:
    """Return the probability that a variable of Student's distribution lies between ``-t`` and ``t``.

    Notes
    -----
    The finite sums of Abramowitz and Stegun, 26.7.3 and 26.7.4.

    Examples
    --------
    >>> round(student_share(2.262, 9), 4), round(student_share(12.706, 1), 4)
    (0.95, 0.95)
    """
    angle = math.atan(t / math.sqrt(degrees))
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
    """Return the ``t`` with ``student_share(t, degrees) == share``, by bisection.

    Examples
    --------
    >>> [round(student_quantile(0.95, n), 3) for n in (1, 4, 9, 30)]
    [12.706, 2.776, 2.262, 2.042]
    """
    low, high = 0.0, 1.0
    while student_share(high, degrees) < share:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_share(middle, degrees) < share else (low, middle)
    return high


def batch_means(values: Sequence[float]) -> tuple[float, ...]:
    """Return the means of ten batches of values that follow each other; fewer than twenty values are themselves.

    What the last batch lacks is left out at the front.

    Examples
    --------
    >>> batch_means([1.0, 2.0]), batch_means([float(n) for n in range(21)])[:2]
    ((1.0, 2.0), (1.5, 3.5))
    """
    size = len(values) // _BATCHES
    if size < 2:
        return tuple(values)
    kept = values[len(values) - size * _BATCHES :]
    return tuple(statistics.fmean(kept[n : n + size]) for n in range(0, len(kept), size))


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> MeanInterval:
    """Return the mean of at least two values with its interval, from the means of batches.

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
    """Return the ratio of two means (after over before) with its interval, from the logarithms of batch means.

    Parameters
    ----------
    before, after
        At least two positive values each; their variances may differ (Welch's interval).

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
