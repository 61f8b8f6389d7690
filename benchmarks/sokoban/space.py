"""The space Sokoban enumerates: candidate sizes per axis, register tiles, and the tiles below each of them.

A size is a divisor of its axis, a power of two, or a multiple of the lanes of a TEU or, where the axis is contiguous
in some tensor, of a memory transaction; larger than the axis only as far as one tile needs to cover it. Every tile is
a per-axis multiple of the one above it: ``count * register``, where the product is a size, or the count a power of two
(a TEU's shape), a divisor of the axis's tiles, all of them, or one of these rounded up to fill whole TEUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from roller.hardware import DeviceSpec
from roller.tile.geometry import Geometry, Ints


@lru_cache(maxsize=4096)
def axis_sizes(extent: int, multiples: tuple[int, ...], limit: int) -> tuple[int, ...]:
    """Return the sizes of an axis up to ``limit``: divisors, powers of two, and multiples of ``multiples``.

    Examples
    --------
    >>> axis_sizes(12, (5,), 100)
    (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 16)
    """
    top = min(limit, 1 << (extent - 1).bit_length())
    found = {d for d in range(1, min(extent, limit) + 1) if extent % d == 0}
    found |= {1 << p for p in range(top.bit_length()) if 1 << p <= top}
    for m in multiples:
        found |= set(range(m, min(-(-extent // m) * m, limit) + 1, m))
    return tuple(sorted(found))


def axis_multiples(geometry: Geometry, axis: int, spec: DeviceSpec) -> tuple[int, ...]:
    """Return what sizes of an axis may be multiples of: TEU lanes, and a transaction where the axis is contiguous."""
    lanes = spec.teu.lanes
    transaction = spec.memory_layers[-1].transaction_bytes
    whole = {
        max(1, transaction // a.tensor.itemsize_bytes)
        for a in (*geometry.reads, geometry.store)
        if len(a.coefficients) and abs(int(a.coefficients[-1, axis])) == 1
    }
    return tuple(sorted({lanes, *whole} - {1}))


@lru_cache(maxsize=65536)
def tile_counts(extent: int, register: int, sizes: tuple[int, ...], most: int, room: int, lanes: int) -> Ints:
    """Return the register tiles a block may hold along an axis, ascending, at most ``most``.

    Sizes of the axis over the register tile; powers of two up to what covers the axis, or up to ``room``; divisors of
    the tiles of the axis, all of them, and both rounded up to multiples of powers of two up to a TEU's ``lanes``.
    """
    useful = -(-extent // register)
    top = max(1 << (useful - 1).bit_length(), room)
    whole = {d for d in range(1, min(useful, most) + 1) if useful % d == 0} | {useful}
    units = [1 << p for p in range(lanes.bit_length())]
    found = {s // register for s in sizes if s % register == 0}
    found |= {1 << p for p in range(top.bit_length())} | {-(-d // u) * u for d in whole for u in units}
    return np.array(sorted(c for c in found if c <= most), np.int64)


def bounded_products(choices: list[Ints], limit: int) -> Ints:
    """Return all combinations, one value of every choice, whose product is at most ``limit``, ``(N, len(choices))``.

    Choices are ascending. Combinations grow axis by axis, so none beyond the limit is ever built.

    Examples
    --------
    >>> bounded_products([np.array([1, 2, 4]), np.array([1, 3])], 4).tolist()
    [[1, 1], [1, 3], [2, 1], [4, 1]]
    """
    rows = np.ones((1, 0), np.int64)
    product = np.ones(1, np.int64)
    for values in choices:
        fit = np.searchsorted(values, limit // product, side="right")
        first = np.repeat(np.cumsum(fit) - fit, fit)
        picked = values[np.arange(int(fit.sum())) - first]
        rows = np.concatenate([np.repeat(rows, fit, axis=0), picked[:, None]], axis=1)
        product = np.repeat(product, fit) * picked
    return rows


def all_products(choices: list[Ints]) -> Ints:
    """Return all combinations, one value of every choice, ``(N, len(choices))``."""
    grids = np.meshgrid(*choices, indexing="ij")
    return np.stack([g.ravel() for g in grids], axis=1) if grids else np.ones((1, 0), np.int64)


@dataclass
class Tally:
    """Counts of a search as it goes.

    ``tilings`` combinations of tiles in the space (capacity of scratchpad and caches not yet asked), ``bounded`` lower
    bounds evaluated, ``priced`` programs priced in full.
    """

    tilings: int = 0
    bounded: int = 0
    priced: int = 0
