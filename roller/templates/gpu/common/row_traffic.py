"""Bytes that row programs move through L2 and DRAM; inputs are read once, or once per stage."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.gpu.common.row_reads_and_reductions import RowReadsAndReductions, count_reads_of_input
from roller.templates.gpu.common.warm_inputs import is_in_shared_cache
from roller.tile.geometry import Access, Floats, Ints
from roller.tile.transactions import tile_transaction_bytes, touched_bytes


def row_traffic(batch: TileBatch, spec: DeviceSpec, active: Ints, *, least: bool = False) -> tuple[Floats, Floats]:
    """Return the bytes that a launch moves through L2 and DRAM; ``least`` omits unused parts of transactions."""
    # A stage that reads a row again finds it in the unit's first-level cache if the rows of the unit's blocks fit
    # there. Otherwise, the row comes from L2, except for the share by which rows and results of all active blocks
    # exceed L2, which comes from DRAM.
    shape = RowReadsAndReductions.of(batch.geometry)
    transaction, l2_layer = spec.layer("l2").transaction_bytes, spec.layer("l2")
    fetch = spec.layer("global").fetch_bytes or spec.layer("global").transaction_bytes
    whole = np.where(batch.geometry.spatial, batch.block, batch.geometry.extents)
    rows = _bytes_of_accesses((r.access for r in shape.reads if r.passes > 1), whole)
    running = np.minimum(active, batch.blocks)
    there = (rows + _bytes_of_accesses(shape.stores, whole)) * running
    lost = np.maximum(0.0, 1.0 - l2_layer.kept_bytes / np.maximum(there, 1.0))
    far = rows * np.ceil(running / spec.units) > spec.layer("shared").kept_bytes
    l2 = dram = np.full(len(batch), float(shape.other_bytes))
    for r in shape.reads:
        a, again = r.access, count_reads_of_input(batch, r)
        moved = a.elements_loaded_per_launch(batch.block) * a.tensor.itemsize_bytes
        if not least:
            expected, _ = tile_transaction_bytes(a, batch.block, transaction)
            run_rows, run = a.runs(batch.block)
            moved = moved * expected / (run_rows * run * a.tensor.itemsize_bytes)
        l2 = l2 + moved * np.where(far | (not r.wide), again, 1)
        first = 0.0 if is_in_shared_cache(a, batch, spec) else 1.0
        dram = dram + touched_dram_bytes(a, fetch) * (first + (again - 1) * (lost * (far & r.wide)))
    for a in shape.stores:
        stored = np.full(len(batch), float(a.tensor.nbytes))
        if not least:
            moved, _ = tile_transaction_bytes(a, whole, transaction)
            stored = stored * np.maximum(1.0, moved / (a.elements(whole) * a.tensor.itemsize_bytes))
        l2, dram = l2 + stored, dram + np.minimum(stored, 2.0 * a.tensor.nbytes)
    return l2, dram


def _bytes_of_accesses(accesses: Iterable[Access], tiles: Ints) -> Floats:
    """Return the bytes that the given accesses touch in each tile, shape ``(N,)``."""
    total: Floats = np.zeros(len(tiles))
    for a in accesses:
        total = total + a.elements(tiles) * a.tensor.itemsize_bytes
    return total


def touched_dram_bytes(access: Access, fetch_bytes: int) -> float:
    """Return :func:`touched_bytes`, computed once per access."""
    if fetch_bytes not in access._memo:
        access._memo[fetch_bytes] = touched_bytes(access, fetch_bytes)
    return float(access._memo[fetch_bytes])
