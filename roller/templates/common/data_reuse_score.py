"""Data reuse score: traffic saved per byte of footprint when a tile grows along one axis."""

from __future__ import annotations

import numpy as np

from roller.tile.geometry import Floats, Geometry, Ints, product_of_columns


def traffic_and_footprint(geometry: Geometry, tiles: Ints) -> tuple[Floats, Floats]:
    """Return the traffic Q(T) and the footprint F(T) in bytes, each of shape ``(N,)``."""
    # Tiles are not clipped at borders, which is cheaper and keeps both monotone.
    counts = geometry.counts(tiles).astype(np.float64)
    outputs = product_of_columns(counts, geometry.spatial_axes)
    launches = outputs * product_of_columns(counts, geometry.reduced_axes)
    stored = geometry.store.elements(tiles) * float(geometry.store.tensor.itemsize_bytes)
    loaded = np.zeros(len(tiles))
    for a in geometry.loads:
        loaded += a.elements(tiles) * float(a.tensor.itemsize_bytes)
    return stored * outputs + loaded * launches, stored + loaded


def reuse_score(before: tuple[Floats, Floats], after: tuple[Floats, Floats]) -> Floats:
    """Return ``(Q(T) - Q(T')) / (F(T') - F(T))`` per tile; larger is better (Roller, section 3.3)."""
    saved, cost = before[0] - after[0], after[1] - before[1]
    free = cost <= 0
    return np.where(free, np.where(saved > 0, np.inf, -np.inf), saved / np.where(free, 1.0, cost))
