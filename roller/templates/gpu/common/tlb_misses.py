"""Extra DRAM traffic of waves that read more pages than the device's last-level TLB covers.

Operand rows that run along the reduction lie ``K`` elements apart, and all blocks of a wave read their rows at the same
time: a wave of 4000 rows of 20000 float32 numbers has 320 MB of pages open. Blocks that miss the TLB fall behind. By
then, the shared cache has evicted the data that other blocks have loaded, and the tile comes from memory again in whole
bursts. The share of a tile that is lost in this way equals the share of the open pages that the TLB does not cover.
Sources of TLB entries: Jia et al., "Dissecting the NVIDIA Volta GPU architecture via microbenchmarking" (2018), "...
Turing T4 GPU ..." (2019).
"""

from __future__ import annotations

import functools

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.tile.geometry import Access, Floats, Ints
from roller.tile.transactions import tile_transaction_bytes


def rows_run_along_reduction(access: Access, batch: TileBatch) -> bool:
    """Return whether an operand's rows run along a reduction axis, so that a step reads only part of each row."""
    if access.gather or not access.coefficients.shape[0]:
        return False
    along = np.flatnonzero(access.coefficients[-1])
    return len(along) == 1 and not batch.geometry.spatial[along[0]]


def tlb_miss_traffic(batch: TileBatch, spec: DeviceSpec, waves: tuple[Ints, ...]) -> dict[int, tuple[Floats, Floats]]:
    """Return, by read position, the share of an operand's tiles that is loaded again, and all tiles' bytes."""
    # ``waves`` holds the tile that a wave covers for each order of blocks; the tile with fewer pages counts.
    far, g = spec.layer("global"), batch.geometry
    if not far.tlb_entries or not far.page_bytes or batch.traits.spreads_reductions:
        return {}
    rows = [n for n, a in enumerate(g.reads) if rows_run_along_reduction(a, batch)]
    reach = float(far.tlb_entries * far.page_bytes)
    if sum(g.reads[n].tensor.nbytes for n in rows) <= reach:
        return {}
    each = [[_concurrent_row_span_bytes(g.reads[n], w) for n in rows] for w in waves]
    opened = np.minimum.reduce([np.add.reduce(x) for x in each])
    lost = np.where(batch.steps > 1, 1.0 - np.minimum(reach / np.maximum(opened, 1.0), 1.0), 0.0)
    if not lost.any():
        return {}
    burst = far.fetch_bytes or far.transaction_bytes
    loads = {n: functools.partial(_bytes_in_bursts, g.reads[n], batch.block, burst) for n in rows}
    return {n: (lost, batch.cached_arrays(spec, ("bursts", n, burst), load)[0]) for n, load in loads.items()}


def _concurrent_row_span_bytes(access: Access, wave: Ints) -> Floats:
    """Return the bytes between the first and the last row that a wave reads at a time."""
    whole = np.where(access.coefficients[-1] != 0, access.axis_extents, wave)
    return np.asarray(np.minimum(access.elements(whole) * access.tensor.itemsize_bytes, float(access.tensor.nbytes)))


def _bytes_in_bursts(access: Access, block: Ints, burst_bytes: int) -> tuple[Floats]:
    """Return the bytes of all tiles of a launch if each tile is loaded from memory separately."""
    moved, _ = tile_transaction_bytes(access, block, burst_bytes)
    rows, run = access.runs(block)
    return (np.asarray(access.elements_loaded_per_launch(block) * moved / (rows * run)),)
