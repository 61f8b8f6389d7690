"""Candidate GPU programs for row reductions.

A row program has threads along a row (lanes), threads across rows, and a register tile per thread. If the register tile
holds all columns of a row, inputs that several stages read are kept (:mod:`roller.tile.row_stages_and_shared_loads`);
with smaller tiles, a thread processes the row in steps and reads it again. Both kinds are candidates.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.common.options import ConstructOptions
from roller.templates.common.padding_limit import allowed_padding_mask
from roller.templates.common.scale_up import unique_rows
from roller.templates.gpu.common.occupancy import scratchpad_bytes
from roller.templates.gpu.common.row_access_widths import alignment_shifts, narrowest_element_bytes
from roller.templates.gpu.common.row_reads_and_reductions import RowReadsAndReductions
from roller.templates.gpu.common.thread_limits import fills_whole_teus
from roller.tile.access import VECTOR_BYTES
from roller.tile.geometry import Geometry, Ints
from roller.tile.row_stages_and_shared_loads import most_contiguous_axis, row_stages
from roller.tile.structures import ROWS, structure_of

#: Numbers of vectors per step along the contiguous axis, and of elements along the other axis, that a thread holds.
_VECTORS, _OTHERS = (1, 2, 4, 8), (1, 2, 4, 8, 16)
#: Numbers of rows per thread if columns are contiguous.
_THREAD_ROWS = (1, 2, 4)
#: Numbers of threads per block if the reduction is split over blocks.
_SPLIT_THREADS = (64, 128, 256, 512)
#: Maximum number of blocks per unit for which a reduction is split.
_SPLIT_BLOCKS = 8
#: Maximum number of elements of all reduction axes except the contiguous one that a thread may hold.
_WHOLE_REST = 64
#: Numbers of elements of the last of these axes that a thread may hold otherwise.
_REST = (4, 8)


def row_candidates(geometry: Geometry, spec: DeviceSpec, options: ConstructOptions) -> list[TileBatch]:
    """Return the row programs: plain, split over blocks, and with rows held in the scratchpad."""
    if not structure_of(geometry).spreads_reductions:
        return []
    register, block = row_tiles(geometry, spec)
    batch = TileBatch(geometry, ROWS.name, register, block, np.ones(len(block), np.int64), ())
    keep = fills_whole_teus(batch, spec) & allowed_padding_mask(geometry, block, options)
    batch = batch.take(np.flatnonzero(keep)[: options.pool])
    held = programs_with_staged_rows(batch, spec)
    return [programs_with_split_rows(batch, spec, options), *([] if held is None else [held])]


def row_tiles(geometry: Geometry, spec: DeviceSpec) -> tuple[Ints, Ints]:
    """Return register and block tiles for row reductions, with threads along the row, across rows, or both."""
    column, row = _lane_and_row_axes(geometry)
    rank, limit = len(geometry.names), spec.limits.threads_per_block or spec.teu.lanes
    extent = int(geometry.extents[column])
    others = int(geometry.extents[row]) if row is not None else 1
    widest = VECTOR_BYTES // narrowest_element_bytes(geometry)
    vectors = [v for v in (1, 2, 4, 8, 16) if v <= widest]
    along = geometry.names[column] == most_contiguous_axis(geometry.expr.anchor, geometry.expr.tensors)
    steps = sorted({v * n for v in vectors for n in _VECTORS} if along else _OTHERS)
    thread_rows = _THREAD_ROWS if along else vectors
    found: list[tuple[int, int, int, int]] = []
    for lanes in _powers_of_two(min(limit, _next_power_of_two(extent))):
        whole = {-(-extent // (lanes * v)) * v for v in (vectors if along else (1,))}
        whole |= {-(-s.positions(extent) // (lanes * s.width)) * s.width for s in alignment_shifts(geometry)}
        for threads in _powers_of_two(limit // lanes):
            if threads >= 2 * others and lanes * threads > spec.teu.lanes:
                break
            for held in thread_rows:
                if held > 1 and threads * held >= 2 * others:
                    continue
                found += [(k, lanes, held, threads) for k in {*steps, *whole} if k * lanes < 2 * extent + k]
    table = np.array(found, np.int64)
    register, block = np.ones((len(table), rank), np.int64), np.ones((len(table), rank), np.int64)
    register[:, column], block[:, column] = table[:, 0], table[:, 0] * table[:, 1]
    if row is not None:
        register[:, row], block[:, row] = table[:, 2], table[:, 2] * table[:, 3]
    elif (table[:, 3] > 1).any():  # no axis of rows: one block of threads along the columns
        keep = (table[:, 3] == 1) & (table[:, 2] == 1)
        register, block = register[keep], block[keep]
    both = np.concatenate([register, block], axis=1)
    return _tiles_with_other_reductions(geometry, column, unique_rows(both))


def _lane_and_row_axes(geometry: Geometry) -> tuple[int, int | None]:
    """Return the reduction axis over which lanes are spread, and the spatial axis of the rows (or ``None``)."""
    fast = most_contiguous_axis(geometry.expr.anchor, geometry.expr.tensors)
    reductions, spatial = np.flatnonzero(~geometry.spatial), np.flatnonzero(geometry.spatial)
    position = geometry.names.index(fast)
    column = position if position in reductions else int(reductions[-1])
    row = position if position in spatial else (geometry.order[-1] if geometry.order else None)
    return column, row


def _tiles_with_other_reductions(geometry: Geometry, column: int, both: Ints) -> tuple[Ints, Ints]:
    """Return register and block tiles: those in ``both``, and variants with part or all of the other reductions."""
    rank = len(geometry.names)
    rest = [int(a) for a in np.flatnonzero(~geometry.spatial) if a != column]
    choices = [{rest[-1]: n} for n in _REST if rest and n < geometry.extents[rest[-1]]]
    if rest and int(np.prod(geometry.extents[rest])) <= _WHOLE_REST:
        choices.append({a: int(geometry.extents[a]) for a in rest})
    found = [both]
    for choice in choices:
        wide = both.copy()
        for a, n in choice.items():
            wide[:, a] = wide[:, rank + a] = n
        found.append(wide)
    every = np.concatenate(found)
    return every[:, :rank], every[:, rank:]


def programs_with_split_rows(batch: TileBatch, spec: DeviceSpec, options: ConstructOptions) -> TileBatch:
    """Return the programs, and variants with their reduction split over blocks if rows yield too few blocks."""
    stages = row_stages(batch.geometry.expr)
    alone = stages[0].stage.combiner is not None and not any(s.columns for s in stages[1:])
    if not options.split_k or not alone or not len(batch):
        return batch
    longest = batch.counts[:, ~batch.geometry.spatial].max(axis=1)
    few = (batch.blocks < spec.units) & np.isin(batch.threads_per_block, _SPLIT_THREADS)
    found = [batch]
    parts = 2
    while parts <= int(longest.max()):
        fills = (batch.blocks * parts <= _SPLIT_BLOCKS * spec.units) & (2 * batch.blocks * parts > spec.units)
        some = np.flatnonzero(few & fills & (longest >= parts))
        if len(some):
            chosen = batch.take(some)
            found.append(replace(chosen, split_k=chosen.split_k * parts))
        parts *= 2
    return replace(
        batch,
        register=np.concatenate([b.register for b in found]),
        block=np.concatenate([b.block for b in found]),
        split_k=np.concatenate([b.split_k for b in found]),
    )


def programs_with_staged_rows(batch: TileBatch, spec: DeviceSpec) -> TileBatch | None:
    """Return the programs with several steps that hold their rows in the scratchpad, or ``None`` if there are none."""
    shape = RowReadsAndReductions.of(batch.geometry)
    names = tuple(dict.fromkeys(r.access.tensor.name for r in shape.reads if r.keepable and r.passes > 1))
    if not names:
        return None
    held = replace(batch, staged=names)
    fits = (batch.steps > 1) & (batch.split_k == 1) & (scratchpad_bytes(held) <= spec.layer("shared").budget_bytes)
    return held.take(np.flatnonzero(fits)) if fits.any() else None


def _powers_of_two(most: int) -> list[int]:
    return [1 << n for n in range(max(1, most).bit_length())]


def _next_power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()
