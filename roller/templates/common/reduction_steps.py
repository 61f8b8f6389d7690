"""Enumeration of reduction steps: larger steps save almost no traffic, so they are not scored by data reuse."""

from __future__ import annotations

import itertools

import numpy as np

from roller.tile.geometry import Geometry, Ints

#: Maximum number of points per reduction step.
MAX_STEP_POINTS = 128


def reduction_steps(geometry: Geometry, register_step: Ints, limit: int) -> Ints:
    """Return at most ``limit`` distinct reduction steps, multiples of ``register_step``, shape ``(M, axes)``."""
    axes = np.flatnonzero(~geometry.spatial)
    window = geometry.window_axes
    options: list[list[int]] = []
    for a in axes:
        extent, base = int(geometry.extents[a]), int(register_step[a])
        if window[a]:  # whole, or as in the register tile: their halo is shared
            options.append(sorted({base, extent if extent % base == 0 else base}))
            continue
        sizes = {base * (1 << p) for p in range(8) if base * (1 << p) <= extent}
        divisors = {d for d in range(2, 65) if extent % d == 0 and d % base == 0}
        sizes |= {d for d in divisors if d >= 8 and not any(d == s for s in sizes)}
        if extent <= MAX_STEP_POINTS and extent % base == 0:
            sizes.add(extent)
        options.append(sorted(sizes or {base}))
    steps = []
    for combination in itertools.product(*options):
        points = int(np.prod(combination))
        if points <= MAX_STEP_POINTS:
            steps.append(combination)
    # Prefer steps of about 16 points: smaller steps only add barriers.
    steps.sort(key=lambda c: (abs(np.log2(np.prod(c)) - 4.0), c))
    out = np.ones((max(1, min(limit, len(steps))), len(geometry.names)), np.int64)
    for row, combination in zip(out, steps, strict=False):
        row[axes] = combination
    return out
