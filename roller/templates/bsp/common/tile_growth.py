"""Growth of a unit's tile by data reuse on bulk-synchronous devices, then the choice of reduction steps and parts.

A tile starts as one vector of one worker (or one pass of the matrix unit) and grows along the axes that save the most
exchange per byte of scratchpad. Every state on the way is a program: small tiles fill all units, and large tiles
exchange less.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from roller.core.matrix_instruction_fragment import Fragment
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.bsp.common.tile_and_superstep_counts import fits_scratchpad
from roller.templates.common.options import ConstructOptions
from roller.templates.common.scale_up import grow_tiles, unique_rows
from roller.tile.geometry import Geometry, Ints
from roller.tile.structures import MATRIX, structure_of
from roller.tile.tensor_boxes import axes_tiles_must_span

#: Maximum number of equal parts of an axis in addition to powers of two; number of axes along which a state grows;
#: maximum number of rounds of growth; maximum number of states kept per round.
_PARTS, _BRANCH, _ROUNDS, _KEPT = 12, 3, 24, 128
#: Number of reduction steps tried per tile, largest first: smaller steps only synchronize more often.
_STEPS = 3
#: Numbers of units over which a reduction may be split.
_SPLITS = (2, 4, 8, 16, 32)


@dataclass(frozen=True)
class TileGrain:
    """Unit of tile sizes: a vector along ``axis``, or a pass of a matrix unit along its axes."""

    step: Ints
    axis: int | None
    fragment: Fragment | None = None
    matrix_axes: tuple[str, ...] = ()


def grow_programs(g: Geometry, grain: TileGrain, spec: DeviceSpec, options: ConstructOptions) -> list[TileBatch]:
    """Return the programs whose tiles grow from a grain."""
    whole = whole_axis_mask(g)
    start = np.where(whole, -(-g.extents // grain.step) * grain.step, grain.step)
    sizes = [_candidate_extents(int(e), int(s)) for e, s in zip(g.extents, grain.step, strict=True)]

    def next_larger_extent(tiles: Ints, axis: int) -> Ints:
        place = np.searchsorted(sizes[axis], tiles[:, axis], side="right")
        return np.asarray(sizes[axis][np.minimum(place, len(sizes[axis]) - 1)])

    def feasible(tiles: Ints) -> np.ndarray:
        return fits_scratchpad(_batch_of_tiles(g, grain, tiles), spec)

    tiles = grow_tiles(g, start[None], next_larger_extent, feasible, branch=_BRANCH, rounds=_ROUNDS, cap=_KEPT)
    stepped = _batch_of_tiles(
        g, grain, unique_rows(np.concatenate(list(_tiles_with_reduction_steps(g, grain, tiles, whole, spec))))
    )
    found = [stepped, *(_split_reductions(stepped, spec) if options.split_k and not whole[~g.spatial].all() else ())]
    return [_drop_excess_programs(b, options) for b in found]


def whole_axis_mask(g: Geometry) -> np.ndarray:
    """Return the mask of the axes that every tile takes whole."""
    return np.array([n in axes_tiles_must_span(g.expr) for n in g.names], bool)


def growable_program_mask(batch: TileBatch, step: Ints) -> np.ndarray:
    """Return the mask of programs that growth can make: one grain per register tile, and no more parts than steps."""
    g = batch.geometry
    whole = (batch.block >= g.extents)[:, whole_axis_mask(g)].all(axis=1)
    parted = batch.split_k <= batch.counts[:, ~g.spatial].prod(axis=1)
    return np.asarray(whole & parted & (batch.register == step).all(axis=1))


def _candidate_extents(extent: int, step: int) -> Ints:
    """Return the extents that a tile may take along an axis: equal parts of the axis, in whole steps."""
    parts = {*range(1, _PARTS + 1), *(1 << p for p in range(extent.bit_length() + 1))}
    parts |= {p for p in range(1, 65) if extent % p == 0}
    return np.array(sorted({_round_up(_round_up(extent, p) // p, step) for p in parts} | {step}), np.int64)


def _tiles_with_reduction_steps(
    g: Geometry, grain: TileGrain, tiles: Ints, whole: np.ndarray, spec: DeviceSpec
) -> Iterator[Ints]:
    """Yield tiles with the largest reduction steps that fit, halving the longest reduction axis each time."""
    step = np.where(g.spatial | whole, 0, -(-g.extents // grain.step) * grain.step)
    left, tried = np.arange(len(tiles)), np.zeros(len(tiles), np.int64)
    while True:
        made = np.where(step > 0, step, tiles[left])
        good = fits_scratchpad(_batch_of_tiles(g, grain, made), spec)
        yield made[good]
        tried[left[good]] += 1
        left = left[tried[left] < _STEPS]
        wide = step // grain.step
        if not len(left) or wide.max() <= 1:
            return
        a = int(np.argmax(wide))
        step[a] = -(-int(wide[a]) // 2) * int(grain.step[a])


def _split_reductions(batch: TileBatch, spec: DeviceSpec) -> list[TileBatch]:
    """Return the programs that leave units idle, with their reduction split over several units."""
    out = []
    for parts in _SPLITS:
        rows = np.flatnonzero((batch.steps >= parts) & (batch.blocks * parts <= 2 * spec.units))
        if len(rows):
            out.append(replace(batch.take(rows), split_k=np.full(len(rows), parts, np.int64)))
    return out


def _batch_of_tiles(g: Geometry, grain: TileGrain, tiles: Ints) -> TileBatch:
    """Return tiles as programs whose workers take one grain at a time."""
    structure = structure_of(g) if grain.fragment is None else MATRIX
    register = np.broadcast_to(grain.step, tiles.shape).copy()
    ones = np.ones(len(tiles), np.int64)
    return TileBatch(g, structure.name, register, tiles, ones, (), None, grain.axis, fragment=grain.fragment,
                     matrix_axes=grain.matrix_axes)  # fmt: skip


def _drop_excess_programs(batch: TileBatch, options: ConstructOptions) -> TileBatch:
    """Drop programs that pad more than the options and the expression allow; keep at most ``options.pool``."""
    waste = (-batch.geometry.extents % batch.block) / batch.geometry.extents
    padded = batch.geometry.expr.allow_padding
    rows = np.flatnonzero((waste <= (options.epsilon if padded else 0)).all(axis=1))
    if len(rows) > options.pool:
        rows = rows[np.linspace(0, len(rows) - 1, options.pool).astype(np.int64)]
    return batch.take(rows)


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
