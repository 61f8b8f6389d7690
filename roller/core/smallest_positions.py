"""Selection of the smallest values, in the same order on every processor."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def smallest_positions(values: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Return the ascending positions of the ``count`` smallest values, the first of equal ones, in linear time.

    >>> smallest_positions(np.array([3.0, 1.0, 2.0, 1.0, 2.0]), 3).tolist()
    [1, 2, 3]
    """
    if count >= len(values):
        return np.arange(len(values))
    if count < 1:
        return np.arange(0)
    # Not np.argpartition: which of equal values it takes differs between processors.
    limit = np.partition(values, count - 1)[count - 1]
    chosen = values < limit
    chosen[np.flatnonzero(values == limit)[: count - int(chosen.sum())]] = True
    return np.flatnonzero(chosen)
