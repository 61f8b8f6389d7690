"""Candidate tasks (groups of register tiles), and candidate axes for vectors and for micro-kernel rows."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.tile.geometry import Geometry, Ints
from roller.tile.structures import Structure

#: Candidate numbers of register tiles per task along an axis, in addition to all of them.
_PER_TASK = (1, 2, 4, 8, 16, 32, 64)
#: Candidate numbers of register tiles per task of a streaming or row kernel.
_STREAMED = (1, 2, 4, 16, 64, 256, 1024, 4096)
#: Maximum number of task shapes per micro-kernel.
_TASKS = 48


def candidate_vector_axes(geometry: Geometry, structure: Structure) -> list[int]:
    """Return the axes along which vectors may run: any spatial axis for a tiled reduction, else the contiguous ones."""
    spatial = [int(v) for v in np.flatnonzero(geometry.spatial)]
    if structure.reuses:
        return [v for v in spatial if geometry.extents[v] > 1] or spatial[-1:]
    if not structure.reduces:
        return [geometry.order[-1]]
    reductions = [int(a) for a in np.flatnonzero(~geometry.spatial)]
    return list(dict.fromkeys([*reductions[-1:], *geometry.order[-1:]]))


def candidate_vector_counts(geometry: Geometry, v: int, lanes: int) -> list[int]:
    """Return the candidate numbers of vectors per register tile along axis ``v``: 1, 2 and 4, up to full coverage."""
    return [n for n in (1, 2, 4) if n == 1 or n * lanes < 2 * int(geometry.extents[v])]


def candidate_row_axes(geometry: Geometry, v: int) -> list[int]:
    """Return the axes worth several micro-kernel rows: an operand is reused along them, or they share a dimension."""
    # Adjacent windows share no element, yet several rows of them are predicted to be faster.
    out = []
    for a in np.flatnonzero(geometry.spatial):
        shared = any(not x.uses[a] for x in geometry.loads)
        boxes = any(x.shared_axis_mask[a] for x in geometry.loads)
        if a != v and (shared or boxes):
            out.append(int(a))
    return out


def batch_of_register_tiles(
    g: Geometry, structure: Structure, register: Ints, block: Ints, staged: tuple[str, ...], v: int
) -> TileBatch:
    """Return a batch whose panel (l1 tile) is the register tile extended over the task's reduction step."""
    panel = np.where(g.spatial, register, block)
    return TileBatch(g, structure.name, register, block, np.ones(len(block), np.int64), staged, panel, v)


def register_tiles_per_axis(geometry: Geometry, register: Ints) -> Ints:
    """Return the number of register tiles along each spatial axis, and 1 along the others."""
    return np.where(geometry.spatial, -(-geometry.extents // register), 1)


def candidate_task_shapes(tiles: Ints, spec: DeviceSpec) -> Ints:
    """Return candidate numbers of register tiles per task and axis, shape ``(N, axes)``: few, a core's share, all."""
    choices = [_tiles_per_task_choices(int(n), spec.units) for n in tiles]
    places = _spread_grid_positions(tuple(len(c) for c in choices))
    return np.stack([c[i] for c, i in zip(choices, places, strict=True)], axis=1)


@functools.cache
def _spread_grid_positions(lengths: tuple[int, ...]) -> tuple[Ints, ...]:
    """Return evenly spread positions in a grid of choices, including the last: one task, which wakes no worker."""
    every = math.prod(lengths)
    kept = dict.fromkeys([*range(0, every, -(-every // _TASKS)), every - 1])
    return np.unravel_index(np.array(list(kept)), lengths)


@functools.cache
def _tiles_per_task_choices(tiles: int, units: int) -> Ints:
    """Return the candidate numbers of tiles per task along an axis of ``tiles`` tiles."""
    return np.array(sorted({min(p, tiles) for p in _PER_TASK} | {tiles, -(-tiles // units)}), np.int64)


def candidate_task_sizes(geometry: Geometry, register: Ints, spec: DeviceSpec) -> list[int]:
    """Return candidate numbers of register tiles per task: a few sizes, a share per core, and all tiles."""
    tiles = int(register_tiles_per_axis(geometry, register).prod())
    return [*(n for n in _STREAMED if n < tiles), -(-tiles // spec.units), tiles]


def grow_task_block(geometry: Geometry, register: Ints, block: Ints, order: Iterable[int], count: int) -> Ints:
    """Return ``block`` grown to about ``count`` register tiles, axis by axis, with each axis split evenly."""
    grown, left = block.copy(), count
    for a in order:
        tiles = -(-int(geometry.extents[a]) // int(register[a]))
        take = min(left, tiles)
        take = -(-tiles // -(-tiles // take))
        grown[a] *= take
        left = max(1, left // take)
    return grown
