"""Cost of a split reduction's second kernel, beyond its launch and the bytes of the parts."""

from __future__ import annotations

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.tile.combining_kernel_sizes import (
    COMBINING_THREADS,
    UNROLLED_PARTS,
    parts_loaded_at_once,
    threads_per_combined_result,
)
from roller.tile.geometry import Floats

#: Cycles of an addition that waits for the previous one.
ADD_CYCLES = 4.0


def combine_parts_s(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return the latency chain, in seconds, of the kernel that adds the parts, shape ``(N,)``; zero without one."""
    # A thread waits for memory once per group of parts and adds them one by one; threads that share a result exchange
    # their sums through the scratchpad, and one of them adds the sums. For rows, this is part of their own blocks'
    # chain.
    parts = np.asarray(batch.split_k)
    if batch.traits.spreads_reductions or (parts == 1).all():
        return np.zeros(len(batch))
    distinct, which = np.unique(parts, return_inverse=True)
    return np.array([_latency_of_adding_parts_s(batch, spec, int(n)) for n in distinct])[which]


def _latency_of_adding_parts_s(batch: TileBatch, spec: DeviceSpec, parts: int) -> float:
    if parts == 1:
        return 0.0
    latency, add = spec.layer("global").latency_s or 0.0, ADD_CYCLES / spec.clock_hz
    if parts <= UNROLLED_PARTS:
        return latency + parts * add
    g = batch.geometry
    last = int(g.extents[g.order[-1]]) if g.order else 1
    lanes = threads_per_combined_result(parts, min(COMBINING_THREADS, 1 << (last - 1).bit_length()))
    loads = -(-parts // lanes)
    rounds = -(-loads // parts_loaded_at_once(parts, lanes))
    meeting = (2 * spec.execution.barrier_s + spec.execution.step_latency_s + lanes * add) * (lanes > 1)
    return rounds * latency + loads * add + meeting
