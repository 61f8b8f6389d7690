"""Two alternating phases of several customers: how much of the shorter one hides behind the longer."""

from __future__ import annotations

import numpy as np

from roller.tile.geometry import Floats, Ints


def overlapped(memory_s: Floats, compute_s: Floats, blocks: Ints | Floats | int) -> Floats:
    """Return the time of two alternating phases of ``blocks`` co-resident customers.

    A closed queueing network of two stations (Buzen): with ``rho`` the shorter over the longer phase the time is
    ``longer * (1 - rho**(blocks+1)) / (1 - rho**blocks)``; the sum for one customer, the longer for many.

    Examples
    --------
    >>> float(overlapped(np.array(1.0), np.array(1.0), np.array(1)))
    2.0
    """
    longest = np.maximum(np.maximum(memory_s, compute_s), 1e-30)
    rho = np.minimum(np.minimum(memory_s, compute_s) / longest, 1.0 - 1e-9)
    return np.asarray(longest * (1.0 - rho ** (blocks + 1)) / (1.0 - rho**blocks))
