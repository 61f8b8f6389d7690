"""Loads and registers of one thread of a ``window`` program: input rows, outputs in flight, and weights."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np

from roller.errors import TileError
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.gpu.common.staged_copy_counts import StagedCopy, tile_extents
from roller.templates.gpu.common.staging_instruction_counts import count_staging_copy_instructions
from roller.tile.access import VECTOR_BYTES
from roller.tile.geometry import Access, Floats, Ints
from roller.tile.sliding_windows import Slide, halo_layout, row_box, slide_of

#: Number of rows in flight for a thread that reads in place: the compiler loads about one row ahead of the row that it
#: adds (order of loads and FMAs in machine code, NVRTC 12.9, sm_80, 3x3 and 7x7 windows).
ROWS_AHEAD = 2.0


@dataclass(frozen=True)
class WindowWalk:
    """How the threads of a batch's programs move along input rows, as arrays of shape ``(N,)``.

    Parameters
    ----------
    rows
        Number of input rows of a thread's strip of outputs.
    loads, width
        Number of load instructions per row, and of elements per load.
    row, live, weights
        Numbers of elements held of one row, of accumulators in flight, and of weights kept.
    copy_width, extent
        Number of elements per vector in the copy of a staged tile, and per row of the tile.
    """

    rows: Ints
    loads: Ints
    width: Ints
    row: Ints
    live: Ints
    weights: Ints
    copy_width: Ints
    extent: Ints

    def count_thread_registers(self, batch: TileBatch) -> Ints:
        """Return the number of 32-bit registers for accumulators in flight, one row, and the weights."""
        g = batch.geometry
        acc = max(1, g.store.tensor.itemsize_bytes // 4)
        return np.asarray(self.live * acc + self.row + self.weights)


def window_slide_of_batch(batch: TileBatch) -> Slide:
    """Return the slide of a batch's expression; raise an error if it has none."""
    memo = batch.geometry.expr._memo
    if "slide" not in memo:
        memo["slide"] = slide_of(batch.geometry.expr.anchor)
    found: Slide | None = memo["slide"]
    if found is None:
        raise TileError(
            f"{batch.geometry.expr.name}: structure 'window' needs a reduction over windows of one operand."
        )
    return found


def window_walk(batch: TileBatch) -> WindowWalk:
    """Return the walk of each program, computed once per batch and per kind of program."""
    if "walk" not in batch._memo:
        g, staged = batch.geometry, bool(batch.staged)
        columns = [g.names.index(a) for a in window_slide_of_batch(batch).source.index[-1].axes]
        kinds = np.concatenate([batch.register, batch.block[:, columns]], axis=1) if staged else batch.register
        codes = np.zeros(len(batch), np.int64)  # sorting one number per row is faster than sorting whole rows
        for column in kinds.T:
            codes = codes * (int(column.max(initial=0)) + 1) + column
        _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
        known = g.expr._memo.setdefault("walks", {})
        found = []
        for row in kinds[first].tolist():
            key = (staged, *row)
            if key not in known:
                register = dict(zip(g.names, row, strict=False))
                block = dict(zip((g.names[c] for c in columns), row[len(g.names) :], strict=staged))
                known[key] = _walk_fields_of_tile(batch, register, block, staged)
            found.append(known[key])
        batch._memo["walk"] = np.array(found, np.int64).reshape(-1, len(fields(WindowWalk)))[inverse.reshape(-1)]
    return WindowWalk(*batch._memo["walk"].T)


def _walk_fields_of_tile(
    batch: TileBatch, tile: dict[str, int], block: dict[str, int], staged: bool
) -> tuple[int, ...]:
    """Return the fields of :class:`WindowWalk` for one register tile and the block's extents in the last dimension."""
    g, s = batch.geometry, window_slide_of_batch(batch)
    known = g.expr._memo.setdefault("walked", {})
    held = tuple(tile.values())
    if held not in known:
        known[held] = row_box(s, tile), s.row_count(tile[s.axis])
    fragment, rows = known[held]
    tensor = g.expr.tensors[s.source.tensor]
    chunks, width, copy_width, extent = fragment.extents[-1], 1, 1, 0
    if staged:
        lines = halo_layout(s, tensor.shape, tensor.itemsize_bytes, tile, block, fragment)
        chunks, width, copy_width, extent = lines.chunks, lines.width, lines.copy, lines.extent
    elif len(s.source.index[-1].terms) == 1:
        widest = max(1, VECTOR_BYTES // tensor.itemsize_bytes)
        width = math.gcd(widest, tile[s.source.index[-1].terms[0].axis], tensor.shape[-1])
        chunks //= width
    above = math.prod(fragment.extents[:-1])
    inner = math.prod(tile[n] for n, over in zip(g.names, g.spatial, strict=True) if over and n != s.axis)
    weights = sum(math.prod(tile[a] for a in {t.axis for i in ld.index for t in i.terms}) for ld in s.others)
    live = s.live(tile[s.axis]) * inner
    return rows, above * chunks, width, above * chunks * width, live, weights, copy_width, extent


def count_window_copy_instructions(access: Access, batch: TileBatch, spec: DeviceSpec) -> tuple[Floats, Floats]:
    """Return the number of copy instructions for a window program's operand, and the number of those for addresses."""
    if access.tensor.name not in batch.staged:
        return np.zeros(len(batch)), np.zeros(len(batch))
    extents = tile_extents(access, batch, ())
    copy = StagedCopy.in_vectors(window_walk(batch).copy_width, extents, batch.threads_per_block)
    return count_staging_copy_instructions(access, batch, copy, spec)


def memory_waits_along_walk(batch: TileBatch) -> Floats:
    """Return how many times a thread that reads in place waits for memory: once per group of rows in flight."""
    return np.asarray(1.0 + window_walk(batch).rows / ROWS_AHEAD)


def words_in_flight_along_walk(batch: TileBatch) -> Floats:
    """Return the number of 4-byte words in flight for a thread that reads in place: its share of the rows in flight."""
    access = next(a for a in batch.geometry.loads if a.tensor.name == window_slide_of_batch(batch).source.tensor)
    words = batch.elements_per_block_tile(access) * (access.tensor.itemsize_bytes / 4)
    return np.asarray(
        np.minimum(ROWS_AHEAD, window_walk(batch).rows) * words / (batch.threads_per_block * window_walk(batch).rows)
    )


def l1_reload_factor(access: Access, batch: TileBatch, capacity_bytes: float, resident: Floats) -> Floats:
    """Return the bytes that blocks load of an operand read in place, relative to loading each element once."""
    # The ``resident`` blocks share ``capacity_bytes`` of the first-level cache; threads reload the shared elements of
    # tiles that do not fit.
    if batch.staged or access.tensor.name != window_slide_of_batch(batch).source.tensor:
        return np.ones(len(batch))
    w = window_walk(batch)
    once = batch.elements_per_block_tile(access)
    again = np.maximum(1.0, batch.threads_per_block * (w.rows * w.row) / once)
    kept = np.clip(capacity_bytes / (once * access.tensor.itemsize_bytes * np.maximum(resident, 1.0)), 0.0, 1.0)
    return np.asarray(kept + (1.0 - kept) * again)
