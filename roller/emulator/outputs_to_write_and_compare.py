"""Outputs that a grid's blocks must write, and outputs to compare if not all can be compared."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from roller.errors import counted
from roller.expr import Stage
from roller.expr.evaluate import axis_values_at_outputs
from roller.tile import RProgram

#: Number of an output's regions to compare if not all of it is compared: corners, and some inside.
_REGIONS = 12


def block_output_extents(program: RProgram, stage: Stage) -> dict[str, int]:
    """Return the extents by axis of the part of a stage's output that one block writes; undivided axes are whole."""
    tile = program.block_tile
    return {a.name: min(tile[a.name], a.extent) if a.name in program.grid else a.extent for a in stage.spatial_axes}


def describe_unwritten(program: RProgram, stage: Stage, written: np.ndarray, blocks: int, launched: int) -> str:
    """Describe the elements that blocks left out of their tiles; return ``""`` if there are none."""
    # Also empty if the blocks wrote to more tiles than there are blocks: then these are not the blocks' tiles.
    shape, tile = stage.output.shape, block_output_extents(program, stage)
    points = np.stack(np.unravel_index(written, shape), axis=1) if shape else np.zeros((len(written), 0), np.int64)
    values = axis_values_at_outputs(stage, points)
    extents = {a.name: a.extent for a in stage.spatial_axes}
    key = np.zeros(len(points), np.int64)
    for name, extent in tile.items():
        key = key * -(-extents[name] // extent) + values[name] // extent
    tiles, first, counts = np.unique(key, return_index=True, return_counts=True)
    if len(tiles) > blocks:
        return ""
    for at, count in zip(first, counts, strict=True):
        start = {n: int(values[n][at]) // e * e for n, e in tile.items()}
        wanted = math.prod(min(e, extents[n] - start[n]) for n, e in tile.items())
        if count < wanted:
            place = " ".join(f"{n}={v}" for n, v in start.items())
            return f"output '{stage.name}': {count} of the {wanted} elements of the tile at {place} are written"
    one_each = math.prod(-(-extents[n] // e) for n, e in tile.items()) == launched
    if one_each and len(tiles) < blocks:
        return f"output '{stage.name}': {counted(blocks, 'block')} write {counted(len(tiles), 'tile')}"
    return ""


def sample_output_regions(program: RProgram, stage: Stage, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield the flat positions of block-sized parts of an output, corners first."""
    tile = block_output_extents(program, stage)
    extents = {a.name: a.extent for a in stage.spatial_axes}
    counts = [-(-extents[n] // e) for n, e in tile.items()]
    corners = itertools.islice(itertools.product(*((0, n - 1) if n > 1 else (0,) for n in counts)), _REGIONS // 2)
    inner = (tuple(int(rng.integers(0, n)) for n in counts) for _ in range(_REGIONS // 2))
    for which in dict.fromkeys((*corners, *inner)):
        yield _flat_positions_of_box(
            stage, [(k * e, min((k + 1) * e, extents[n])) for k, (n, e) in zip(which, tile.items(), strict=True)]
        )


def _flat_positions_of_box(stage: Stage, box: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return the flat storage positions of ``box``, which holds ``(start, end)`` for each spatial axis."""
    grids = np.meshgrid(*(np.arange(low, high) for low, high in box), indexing="ij", sparse=True)
    values = dict(zip((a.name for a in stage.spatial_axes), grids, strict=True))
    shape = stage.output.shape
    flat = np.zeros(tuple(high - low for low, high in box), np.int64)
    for index, extent in zip(stage.store, shape, strict=True):
        flat = flat * extent + index(values)
    return flat.ravel()


def sample_positions(parts: Sequence[np.ndarray], most: int, rng: np.random.Generator) -> np.ndarray:
    """Return up to about ``most`` positions, chosen at random and as evenly as possible from all parts."""
    if not parts:
        return np.zeros(0, np.int64)
    share = max(1, most // len(parts))
    chosen = [p if len(p) <= share else p[rng.choice(len(p), share, replace=False)] for p in parts]
    return np.unique(np.concatenate(chosen))


def choose_blocks_to_run(program: RProgram, blocks: int, most: int, rng: np.random.Generator) -> list[int]:
    """Return the indices of the blocks to run if not all can: both ends, their neighbours, corners, random blocks."""
    numbers = [0, blocks - 1, min(1, blocks - 1), max(0, blocks - 2)]  # neighbours do not write the same tile
    grid = list(program.grid.values())
    if int(np.prod(grid, dtype=np.int64)) == blocks:
        corners = itertools.islice(itertools.product(*((0, n - 1) for n in grid)), 64)
        numbers += [int(np.ravel_multi_index(c, grid)) for c in corners]
    numbers += [int(n) for n in rng.integers(0, blocks, most)]
    return list(dict.fromkeys(numbers))[:most]


def blocks_run_text(run: int, blocks: int) -> str:
    """Describe how much of a grid ran.

    Examples
    --------
    >>> blocks_run_text(8, 1024)
    '8 of 1024 blocks'
    """
    return f"{run} of {counted(blocks, 'block')}"
