"""How the threads that share a row (lanes) combine their accumulators, for both the price and the kernels.

Neighbours in a warp exchange by shuffles; several warps of a row exchange once in the scratchpad. Lanes that are not
neighbours, or whose number is neither a power of two nor a multiple of a warp, store all accumulators there, and the
first lane adds them.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from roller.tile.access import VECTOR_BYTES
from roller.tile.geometry import Ints

#: Number of lanes that shuffle with each other in the templates (``emit/tir_statements.py``), independent of the TEU.
SHUFFLE_LANES = 32
#: Size in bytes of the narrowest accumulators that are shuffled.
_SHUFFLED_BYTES = 4


class LaneExchange(IntEnum):
    """How lanes combine their accumulators."""

    ALONE = 0
    SHUFFLES = 1
    WARPS = 2
    SCRATCHPAD = 3


def choose_lane_exchange(lanes: Ints | int, rows: Ints | int, itemsize_bytes: int, *, along: bool) -> Ints:
    """Return how lanes combine, shape ``(N,)``; ``along``: whether rows are contiguous in memory."""
    count, others = np.asarray(lanes), np.asarray(rows)
    shuffled = (along | (others == 1)) & (count * others % SHUFFLE_LANES == 0) & (itemsize_bytes >= _SHUFFLED_BYTES)
    within = shuffled & (count & (count - 1) == 0) & (count <= SHUFFLE_LANES)
    warps = shuffled & (count % SHUFFLE_LANES == 0)
    found = np.where(within, LaneExchange.SHUFFLES, np.where(warps, LaneExchange.WARPS, LaneExchange.SCRATCHPAD))
    return np.asarray(np.where(count == 1, LaneExchange.ALONE, found))


def accumulators_per_access(size: Ints | int, itemsize_bytes: int) -> Ints:
    """Return the number of a thread's ``size`` accumulators that one scratchpad access moves, shape ``(N,)``."""
    held = np.asarray(size)
    return np.asarray(np.minimum(held & -held, min(4, VECTOR_BYTES // itemsize_bytes)))


def count_threads_storing_accumulators(way: Ints, lanes: Ints, rows: Ints) -> Ints:
    """Return the number of threads in a block that store their accumulators in the scratchpad, shape ``(N,)``."""
    each = np.where(
        way == LaneExchange.WARPS, lanes // SHUFFLE_LANES, np.where(way == LaneExchange.SCRATCHPAD, lanes, 0)
    )
    return np.asarray(rows * each)
