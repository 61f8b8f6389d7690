"""Decides whether noisy times are far enough apart to rank kernels."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

#: Relative standard deviation of times measured between disturbances, compared with those on a quiet machine: other
#: programs change the state of caches, clocks and worker threads.
NOISE = 0.04
#: Rank correlation required of a ranking, share of random draws that must reach it, and number of draws.
TOLD, SURE, _DRAWS = 0.8, 0.9, 100


def is_ranking_reliable(seconds: Sequence[float], noise: float = NOISE) -> bool:
    """Return whether a ranking by times with this noise would be reproduced with sufficient probability.

    Examples
    --------
    >>> (is_ranking_reliable([1.0, 1.3, 1.6, 2.0, 2.5]), is_ranking_reliable([1.0, 1.001, 1.002, 1.003, 1.004]),
    ...  is_ranking_reliable([1.0]))
    (True, False, True)
    """
    if len(seconds) < 2:
        return True
    draw, logs = random.Random(0), [math.log(max(s, 1e-12)) for s in seconds]
    own = _ranks(logs)
    # Both the given times and those of a repetition vary around the true ones, so their variances add up.
    apart = math.sqrt(2) * noise
    drawn = (_rank_correlation(own, _ranks([x + draw.gauss(0.0, apart) for x in logs])) for _ in range(_DRAWS))
    return sum(c >= TOLD for c in drawn) >= SURE * _DRAWS


def _ranks(values: Sequence[float]) -> list[int]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0] * len(values)
    for rank, n in enumerate(order):
        ranks[n] = rank
    return ranks


def _rank_correlation(one: Sequence[int], other: Sequence[int]) -> float:
    """Return Spearman's correlation between two rankings without ties."""
    n = len(one)
    return 1 - 6 * sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) / (n * (n * n - 1))
