"""The same rows on every processor: numpy's partitions order equal values as the vector instructions at hand do."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def cheapest(values: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Return the positions of the ``count`` least values in ascending order; of equal values the first ones count.

    Linear in the number of values. ``np.argpartition`` leaves open which of equal values are taken, and its answer
    differs between processors, and so did the programs that were constructed from it.

    Examples
    --------
    >>> cheapest(np.array([3.0, 1.0, 2.0, 1.0, 2.0]), 3).tolist()
    [1, 2, 3]
    """
    if count >= len(values):
        return np.arange(len(values))
    if count < 1:
        return np.arange(0)
    limit = np.partition(values, count - 1)[count - 1]
    chosen = values < limit
    chosen[np.flatnonzero(values == limit)[: count - int(chosen.sum())]] = True
    return np.flatnonzero(chosen)
