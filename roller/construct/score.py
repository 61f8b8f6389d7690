"""Data reuse score: traffic saved per byte of footprint when a tile grows along one axis."""

from __future__ import annotations

import numpy as np

from roller.tile.geometry import Floats, Geometry, Ints


def traffic_estimate_bytes(geometry: Geometry, tiles: Ints) -> Floats:
    """Q(T) for comparing tiles: data tiles times launches, borders not clipped (cheap, monotone), ``(N,)``."""
    counts = geometry.counts(tiles)
    launches = counts.astype(np.float64).prod(axis=1)
    outputs = counts[:, geometry.spatial].astype(np.float64).prod(axis=1)
    total = geometry.store.elements(tiles) * geometry.store.tensor.itemsize_bytes * outputs
    for a in geometry.loads:
        total = total + a.elements(tiles) * a.tensor.itemsize_bytes * launches
    return np.asarray(total)


def data_reuse_score(geometry: Geometry, tiles: Ints, grown: Ints) -> Floats:
    """Return ``(Q(T) - Q(T')) / (F(T') - F(T))`` per tile, larger is better (Roller section 3.3).

    Parameters
    ----------
    geometry
        Of the expression.
    tiles, grown
        ``(N, axes)`` extents before and after enlarging.

    Returns
    -------
    numpy.ndarray
        Score ``(N,)`` (dimensionless: bytes per byte); ``inf`` where the footprint does not grow and traffic falls,
        ``-inf`` where neither changes.
    """
    saved = traffic_estimate_bytes(geometry, tiles) - traffic_estimate_bytes(geometry, grown)
    cost = (geometry.footprint_bytes(grown) - geometry.footprint_bytes(tiles)).astype(np.float64)
    free = cost <= 0
    return np.where(free, np.where(saved > 0, np.inf, -np.inf), saved / np.where(free, 1.0, cost))
