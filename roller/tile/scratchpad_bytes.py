"""Scratchpad space for staged tiles, within and beyond the limit of static allocation, for one program or arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from roller.tile.access import VECTOR_BYTES, Ints

#: Maximum number of scratchpad bytes that a kernel may declare statically; more must be allocated dynamically.
STATIC_SHARED_BYTES = 48 * 1024


def round_up_to_vectors(elements: Any, itemsize_bytes: int) -> Any:
    """Return ``elements`` rounded up to whole vectors."""
    vector = VECTOR_BYTES // itemsize_bytes
    return -(-elements // vector) * vector


def staged_tile_bytes(tiles: Sequence[Ints], is_one_pool: bool) -> Ints:
    """Return the number of scratchpad bytes for all tiles of a block, shape ``(N,)``."""
    # Beyond the static limit, tiles of one dtype (``is_one_pool``) share one buffer, each aligned to vectors.
    total = sum(tiles, np.zeros(1, np.int64))
    pool = sum((round_up_to_vectors(n, 1) for n in tiles), np.zeros(1, np.int64))
    return np.where(is_one_pool & (total > STATIC_SHARED_BYTES), pool, total)
