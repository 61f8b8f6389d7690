"""Two alternating phases of several customers: how much of the shorter one hides behind the longer."""

from __future__ import annotations

from collections.abc import Sequence

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


def overlapped_phases(phases_s: Sequence[Floats], groups: Floats | float) -> Floats:
    """Return the time of several phases that ``groups`` (one or two, or between) customers alternate in.

    Mean value analysis of a closed network, exact for one and for two customers: with the phases' sum ``S`` one
    customer after the other needs ``S``, two need ``(S + sum(D**2) / S) / 2`` each; never less than the longest phase.

    Examples
    --------
    >>> two = (np.array(1.0), np.array(1.0))
    >>> float(overlapped_phases(two, 1.0)), float(overlapped_phases(two, 2.0))
    (2.0, 1.5)
    """
    total = np.maximum(sum(phases_s, np.zeros(())), 1e-30)
    both = 0.5 * (total + sum((d * d for d in phases_s), np.zeros(())) / total)
    return np.asarray(both + (total - both) * np.clip(2.0 - groups, 0.0, 1.0))
