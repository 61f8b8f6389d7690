"""Candidate GPU programs for element-wise streams: direct, or transposed through the scratchpad."""

from __future__ import annotations

import itertools

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.common.options import ConstructOptions
from roller.templates.common.padding_limit import allowed_padding_mask
from roller.templates.common.scale_up import unique_rows
from roller.templates.gpu.common.occupancy import scratchpad_bytes
from roller.templates.gpu.common.thread_limits import fills_whole_teus
from roller.tile.geometry import Geometry, Ints
from roller.tile.structures import STREAMING, structure_of

#: Maximum number of threads in a block that transposes a tile.
_MOST_THREADS = 512


def stream_candidates(geometry: Geometry, spec: DeviceSpec, options: ConstructOptions) -> list[TileBatch]:
    """Return the programs for a stream, including programs that transpose tiles if an input has a different order."""
    if structure_of(geometry).reduces:
        return []
    register, block = stream_tiles(geometry, spec)
    batch = TileBatch(geometry, STREAMING.name, register, block, np.ones(len(block), np.int64), ())
    keep = fills_whole_teus(batch, spec) & allowed_padding_mask(geometry, block, options)
    batch = batch.take(np.flatnonzero(keep)[: options.pool])
    register, block = transposing_tiles(geometry, spec)
    through = TileBatch(geometry, STREAMING.name, register, block, np.ones(len(block), np.int64), geometry.load_names)
    keep = fills_whole_teus(through, spec) & allowed_padding_mask(geometry, block, options)
    keep &= scratchpad_bytes(through) <= spec.layer("shared").budget_bytes
    through = through.take(np.flatnonzero(keep))
    return [batch, through] if len(through) else [batch]


def stream_tiles(geometry: Geometry, spec: DeviceSpec) -> tuple[Ints, Ints]:
    """Return register and block tiles for streams: threads fill the axes, last first, with several vectors each."""
    rank = len(geometry.names)
    registers, blocks = [], []
    limit = spec.limits.threads_per_block or spec.teu.lanes
    sizes = [spec.teu.lanes << n for n in range((limit // spec.teu.lanes).bit_length())]  # whole TEUs up to the limit
    held = [(v, 1) for v in (1, 2, 4, 8, 16, 32)] + [(v, r) for v in (1, 2, 4, 8) for r in (2, 4) if rank > 1]
    for vector, rows in held:
        register = np.ones(rank, np.int64)
        register[-1] = vector
        if rows > 1:
            register[-2] = rows
        for threads in sizes:
            for last_cap in (threads, *sizes[:2]) if rank > 1 else (threads,):
                block = register.copy()
                left = threads
                for a in range(rank - 1, -1, -1):
                    useful = -(-int(geometry.extents[a]) // int(register[a]))
                    fit = min(left, 1 << max(0, (useful - 1).bit_length()), last_cap if a == rank - 1 else left)
                    block[a] *= fit
                    left //= fit
                block[-1] *= max(1, left)
                registers.append(register)
                blocks.append(block)
    both = unique_rows(np.concatenate([np.array(registers), np.array(blocks)], axis=1))
    return both[:, :rank], both[:, rank:]


def transposing_tiles(geometry: Geometry, spec: DeviceSpec) -> tuple[Ints, Ints]:
    """Return register and block tiles for streams that transpose inputs whose contiguous axis is not the result's."""
    # Threads copy along the input's rows into the scratchpad and store along the result's rows.
    rank = len(geometry.names)
    none = np.ones((0, rank), np.int64)
    if len(geometry.expr.stages) > 1 or not geometry.order:
        return none, none
    last = geometry.order[-1]
    others = {
        int(a)
        for x in geometry.loads
        if len(x.coefficients) and not x.gather and x.uses[last]
        for a in np.flatnonzero(np.abs(x.coefficients[-1]) == 1)
    } - {last}
    limit = spec.limits.threads_per_block or spec.teu.lanes
    sides = (16, 32, 64, 128)
    registers, blocks = [], []
    for other in sorted(others):
        for held, rows_held, wide, deep in itertools.product((1, 2, 4, 8), (1, 2, 4, 8, 16), sides, sides):
            threads = wide // held * (deep // rows_held)
            if wide < held or deep < rows_held or not spec.teu.lanes <= threads <= min(limit, _MOST_THREADS):
                continue
            register, block = np.ones(rank, np.int64), np.ones(rank, np.int64)
            register[last], register[other], block[last], block[other] = held, rows_held, wide, deep
            registers.append(register)
            blocks.append(block)
    return (np.array(registers), np.array(blocks)) if registers else (none, none)
