"""Whether times that were measured beside other programs tell which of several kernels is faster."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

#: Times that were measured between disturbances are apart from the quiet ones by so much (one sigma, relative): other
#: programs leave caches, clocks and worker threads behind as these would not be otherwise.
NOISE = 0.04
#: Rank correlation that a ranking must have to be told, the share of draws that must reach it, and how many are drawn.
TOLD, SURE, _DRAWS = 0.8, 0.9, 100


def is_told(seconds: Sequence[float], noise: float = NOISE) -> bool:
    """Whether a ranking by times with this noise agrees with a second one, surely enough.

    Examples
    --------
    >>> is_told([1.0, 1.3, 1.6, 2.0, 2.5]), is_told([1.0, 1.001, 1.002, 1.003, 1.004]), is_told([1.0])
    (True, False, True)
    """
    if len(seconds) < 2:
        return True
    draw, logs = random.Random(0), [math.log(max(s, 1e-12)) for s in seconds]
    own = _ranks(logs)
    # Both the times at hand and those they would be held against are draws around the truth: the variances add up.
    apart = math.sqrt(2) * noise
    drawn = (_correlation(own, _ranks([x + draw.gauss(0.0, apart) for x in logs])) for _ in range(_DRAWS))
    return sum(c >= TOLD for c in drawn) >= SURE * _DRAWS


def _ranks(values: Sequence[float]) -> list[int]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0] * len(values)
    for rank, n in enumerate(order):
        ranks[n] = rank
    return ranks


def _correlation(one: Sequence[int], other: Sequence[int]) -> float:
    """Return Spearman's correlation of two rankings without ties."""
    n = len(one)
    return 1 - 6 * sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) / (n * (n * n - 1))
