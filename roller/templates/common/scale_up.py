"""Scale-up: grows aligned tiles layer by layer along the axis with the best data reuse score.

All tiles of a layer grow together: a state is one row of an array, each round enlarges every state along its best axes,
and every visited state is a candidate.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from roller.templates.common.data_reuse_score import reuse_score, traffic_and_footprint
from roller.templates.common.growth_trace import GrowthTrace
from roller.tile.geometry import Geometry, Ints, product_of_columns

#: Maximum extent of a register tile along one axis.
REGISTER_EXTENT = 32


def _splitmix64(number: int) -> int:
    """Return 64 pseudo-random bits (the finalizer of SplitMix64), because ``numpy.random`` is slow to import."""
    bits = (1 << 64) - 1
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 & bits
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB & bits
    return number ^ (number >> 31)


#: Odd 64-bit multipliers of the row hash, fixed so that all runs give the same results.
_MULTIPLIERS = np.array([_splitmix64(n * 0x9E3779B97F4A7C15 % (1 << 64)) | 1 for n in range(1, 65)], np.uint64)


def unique_rows(rows: Ints) -> Ints:
    """Return the distinct rows in order of first appearance."""
    if not len(rows):
        return rows
    # A 64-bit mix of the columns: sorting one integer per row is several times faster than sorting rows, and
    # two of ten thousand rows collide with a probability of about 1e-12.
    mixed = rows.astype(np.uint64) @ _MULTIPLIERS[: rows.shape[1]]
    order = np.argsort(mixed)
    starts = np.flatnonzero(np.diff(mixed[order], prepend=~mixed[order[:1]]))
    first: Ints = np.minimum.reduceat(order, starts)
    return rows[np.sort(first)]


def aligned_extents(extent: int, limit: int) -> tuple[int, ...]:
    """Return the extents that a register tile may take along an axis: powers of two and divisors up to ``limit``."""
    top = min(limit, 1 << (extent - 1).bit_length())
    sizes = {1 << p for p in range(top.bit_length()) if 1 << p <= top}
    sizes |= {d for d in range(1, min(limit, extent) + 1) if extent % d == 0}
    return tuple(sorted(sizes))


def grow_tiles(
    geometry: Geometry,
    start: Ints,
    next_extent: Callable[[Ints, int], Ints],
    feasible: Callable[[Ints], np.ndarray],
    *,
    branch: int,
    rounds: int,
    cap: int,
    seen: GrowthTrace | None = None,
) -> Ints:
    """Enlarge every state along its ``branch`` best axes, at most ``rounds`` times; return all states visited."""
    visited = [start]
    states = start
    axes = np.flatnonzero(geometry.spatial)
    for _ in range(rounds):
        both = np.repeat(states[None], 1 + len(axes), axis=0)  # the states, and one copy per axis, priced together
        grew = np.empty((len(axes), len(states)), bool)
        for n, a in enumerate(axes):
            both[1 + n, :, a] = next_extent(states, int(a))
            grew[n] = both[1 + n, :, a] > states[:, a]
        traffic, footprint = (
            x.reshape(both.shape[:2]) for x in traffic_and_footprint(geometry, both.reshape(-1, both.shape[2]))
        )
        score = reuse_score((traffic[0], footprint[0]), (traffic[1:], footprint[1:]))
        if seen is not None:
            seen.note(states, both[1:], score, grew)
        chosen = best_children(both[1:], score, grew, branch)
        if not len(chosen):
            break
        states = unique_rows(chosen[feasible(chosen)])[:cap]
        if not len(states):
            break
        visited.append(states)
    return unique_rows(np.concatenate(visited))


def best_children(table: Ints, score: np.ndarray, grew: np.ndarray, branch: int) -> Ints:
    """Return each state's children along its ``branch`` best axes; ``table`` has shape ``(axes, states, row)``."""
    rank = np.where(grew, score, -np.inf)
    order = np.argsort(-rank, axis=0, kind="stable")[:branch]
    branches, states = np.nonzero(np.take_along_axis(rank, order, axis=0) > -np.inf)
    return np.asarray(table[order[branches, states], states])


def construct_register_tiles(
    geometry: Geometry,
    fits: Callable[[Ints], np.ndarray],
    keep_per_size: int,
    start: Ints,
    seen: GrowthTrace | None = None,
) -> Ints:
    """Return the register tiles with the most products per operand, at most ``keep_per_size`` of each size."""
    # ``start`` is the first tile: 1 along spatial axes and, along reduction axes, the extents of all tiles.
    sizes = [aligned_extents(int(e), REGISTER_EXTENT) for e in geometry.extents]
    tables = []
    for options in sizes:
        table = np.arange(REGISTER_EXTENT * 2 + 1)
        for low, high in itertools.pairwise(options):
            table[low] = high
        table[options[-1] :] = np.arange(options[-1], len(table))
        tables.append(table)
    tiles = grow_tiles(
        geometry, start[None], lambda t, a: tables[a][t[:, a]], fits, branch=3, rounds=9, cap=96, seen=seen
    )
    outputs = product_of_columns(tiles, geometry.spatial_axes)
    operands = sum((a.elements(tiles) for a in geometry.loads), np.zeros(len(tiles), np.int64))
    padded = product_of_columns(-(-geometry.extents // tiles) * tiles / geometry.extents, geometry.spatial_axes)
    quality = product_of_columns(tiles, range(tiles.shape[1])) / operands / padded
    kept = []
    magnitude = np.ceil(np.log2(outputs)).astype(int)
    for size in sorted(set(magnitude.tolist())):
        mine = np.flatnonzero(magnitude == size)
        kept.append(mine[np.argsort(-quality[mine], kind="stable")[:keep_per_size]])
    return tiles[np.sort(np.concatenate(kept))]


def round_up_to_whole_teus(threads: Ints, spatial: np.ndarray, lanes: int, limit: int) -> Ints:
    """Return, for each axis, ``threads`` with that axis rounded up to fill whole TEUs (rule 1), and row indices."""
    rows = np.arange(len(threads))[:, None]
    axes = np.flatnonzero(spatial)
    every = product_of_columns(threads, axes)
    found = []
    for a in axes:
        unit = lanes // np.gcd(lanes, every // threads[:, a])
        rounded = threads.copy()
        rounded[:, a] = -(-threads[:, a] // unit) * unit
        fits = product_of_columns(rounded, axes) <= limit
        found.append(np.concatenate([rounded, rows], axis=1)[fits])
    return unique_rows(np.concatenate(found))


def factorisations_of_lanes(counts: Ints, spatial: np.ndarray, lanes: int) -> Ints:
    """Return every useful factorization of a TEU's lanes over the spatial axes, shape ``(M, axes)``."""
    axes = np.flatnonzero(spatial)
    bits = lanes.bit_length() - 1
    # A factor larger than the number of threads that an axis can use would only pad, so factors are capped at the next
    # power of two. The last axis is padded if all axes together can use fewer than ``lanes`` threads.
    room = [min(bits, (n - 1).bit_length()) for n in counts[axes].tolist()]
    room[-1] = max(room[-1], bits - sum(room[:-1]))
    splits = _power_of_two_factorisations(tuple(room), bits)
    seeds = np.ones((len(splits), len(counts)), np.int64)
    seeds[:, axes] = splits
    return seeds


@lru_cache(maxsize=1024)
def _power_of_two_factorisations(room: tuple[int, ...], bits: int) -> Ints:
    """Return all combinations of powers of two, at most ``2 ** room[axis]`` each, whose product is ``2 ** bits``."""
    ways = [s for s in itertools.product(*(range(r + 1) for r in room)) if sum(s) == bits]
    return np.left_shift(1, np.array(ways, np.int64))
