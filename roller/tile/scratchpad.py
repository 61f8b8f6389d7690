"""Bytes of staged tiles in the scratchpad: slots of a pipeline, and tiles that are too many for static allocation.

Counts may be those of one program or arrays of many: the price and the templates both ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from roller.tile.access import VECTOR_BYTES, Ints

#: Scratchpad a kernel may declare statically (bytes); more must be dynamic.
STATIC_SHARED_BYTES = 48 * 1024


def whole_vectors(elements: Any, itemsize_bytes: int) -> Any:
    """Return ``elements`` and what follows them up to where a vector may start again."""
    vector = VECTOR_BYTES // itemsize_bytes
    return -(-elements // vector) * vector


def placed_bytes(tiles: Sequence[Ints], is_one_pool: bool) -> Ints:
    """Return the bytes of all tiles of a block, ``(N,)``.

    Where static scratchpad does not hold them and their elements are alike (``is_one_pool``), they lie one behind the
    other in one buffer, each where vectors may start.
    """
    total = sum(tiles, np.zeros(1, np.int64))
    pool = sum((whole_vectors(n, 1) for n in tiles), np.zeros(1, np.int64))
    return np.where(is_one_pool & (total > STATIC_SHARED_BYTES), pool, total)
