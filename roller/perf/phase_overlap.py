"""Times of alternating phases through which several customers pass: how far the shorter phases are hidden."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from roller.tile.geometry import Floats, Ints


def time_of_two_overlapping_phases(memory_s: Floats, compute_s: Floats, blocks: Ints | Floats | float) -> Floats:
    """Return the time of two phases between which ``blocks`` co-resident blocks alternate; each takes one at a time.

    Examples
    --------
    >>> float(time_of_two_overlapping_phases(np.array(1.0), np.array(1.0), np.array(1)))
    2.0
    """
    # Closed queueing network of two stations (Buzen): if ``rho`` is the shorter phase over the longer, the time is
    # ``longer * (1 - rho**(blocks+1)) / (1 - rho**blocks)``: the sum of both for one customer, the longer for many.
    longest = np.maximum(np.maximum(memory_s, compute_s), 1e-30)
    rho = np.minimum(np.minimum(memory_s, compute_s) / longest, 1.0 - 1e-9)
    return np.asarray(longest * (1.0 - rho ** (blocks + 1)) / (1.0 - rho**blocks))


def time_of_alternating_phases(phases_s: Sequence[Floats], customers: Floats | Ints) -> Floats:
    """Return the time that all customers take to pass once through all phases, which each serve one at a time.

    Examples
    --------
    >>> two = (np.array(1.0), np.array(1.0))
    >>> float(time_of_alternating_phases(two, np.array(1.0))), float(time_of_alternating_phases(two, np.array(2.0)))
    (2.0, 1.5)
    """
    # Mean value analysis of a closed queueing network; ``phases_s`` are the times of all customers together. The
    # result for one customer is their sum; it is interpolated between whole numbers of customers.
    total = np.maximum(_sum(phases_s), 1e-30)
    time = total + np.zeros(np.shape(customers))
    queues = [d / total for d in phases_s]
    previous = total
    for n in range(2, int(np.ceil(np.max(customers, initial=1.0))) + 1):
        waits = [d * (1.0 + q) for d, q in zip(phases_s, queues, strict=True)]
        cycle = np.maximum(_sum(waits), 1e-30)
        queues = [n * w / cycle for w in waits]
        each = cycle / n
        time = np.where(customers > n - 1, previous + (each - previous) * np.minimum(customers - n + 1, 1.0), time)
        previous = each
    return np.asarray(time)


def _sum(values: Sequence[Floats]) -> Floats:
    total = values[0]
    for v in values[1:]:
        total = total + v
    return np.asarray(total)
