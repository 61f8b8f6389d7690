"""Reduction steps: a reduction axis saves almost no traffic, so its step is a branch, not a score."""

from __future__ import annotations

import itertools

import numpy as np

from roller.tile.geometry import Geometry, Ints

#: Points of one step considered at most.
MAX_STEP_POINTS = 128


def reduction_steps(geometry: Geometry, register_step: Ints, limit: int) -> Ints:
    """Return distinct steps over the reduction axes, ``(M, axes)`` with spatial extents 1.

    Window axes are taken whole or not at all (their halo is shared); other reduction axes double from 4
    (or their extent) up. ``register_step`` is the register tile's reduction extents: steps are multiples of it.
    """
    axes = np.flatnonzero(~geometry.spatial)
    window = geometry.window_axes
    options: list[list[int]] = []
    for a in axes:
        extent, base = int(geometry.extents[a]), int(register_step[a])
        if window[a]:
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
    # Prefer steps of useful size: many tiny steps only cost barriers.
    steps.sort(key=lambda c: (abs(np.log2(np.prod(c)) - 4.0), c))
    out = np.ones((max(1, min(limit, len(steps))), len(geometry.names)), np.int64)
    for row, combination in zip(out, steps, strict=False):
        row[axes] = combination
    return out
