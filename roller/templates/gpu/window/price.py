"""Cycles of a block of a window program: a thread loads every row once, in place or from the scratchpad.

Counts are from machine code (NVRTC 12.9, sm_80) of depthwise convolutions and poolings with 3x3 to 7x7 windows: a
guarded load in place takes one to two instructions for bounds and selection, and a load from the scratchpad takes none.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.gpu.common.arithmetic_cycles import BlockWork, block_work, register_tile_cycles
from roller.templates.gpu.common.price import Parts, Phases, block_latency_chain_s
from roller.templates.gpu.common.shared_memory_layout import SharedMemoryLayout
from roller.templates.gpu.common.window_thread_walks import memory_waits_along_walk, window_slide_of_batch, window_walk
from roller.tile.geometry import Floats

#: Number of instructions in addition to a guarded load in place, an unguarded load in place, and a load from the
#: scratchpad.
GUARD_INSTRUCTIONS, PLAIN_INSTRUCTIONS, STAGED_INSTRUCTIONS = 1.5, 0.3, 0.1
#: Bytes of a run of lanes from the start of its last lane on.
VECTOR_START = 4.0


def window_block_work(
    batch: TileBatch, spec: DeviceSpec, copies: tuple[Floats, Floats], laid: SharedMemoryLayout | None
) -> BlockWork:
    """Return the work of each block of a batch of window programs; for the arguments, see :func:`block_work`."""
    base = block_work(replace(batch, staged=()), spec, copies, None)
    cycles, instructions = register_tile_cycles(batch, spec, True)
    w, s = window_walk(batch), window_slide_of_batch(batch)
    per_unit = spec.compute.ops_per_cycle_per_unit
    rate = per_unit["issue"] / spec.teu.lanes / spec.teu.schedulers_per_unit
    loads = (w.rows * w.loads).astype(np.float64)
    beside = STAGED_INSTRUCTIONS if batch.staged else GUARD_INSTRUCTIONS if s.source.guard else PLAIN_INSTRUCTIONS
    size = batch.geometry.expr.tensors[s.source.tensor].itemsize_bytes
    conflicts = laid.conflicts.get(s.source.tensor, 1.0) if laid and batch.staged else 1.0
    wavefronts = loads * (
        np.maximum(1.0, w.width * size / 4) * conflicts if batch.staged else _cache_lines_per_load(batch, spec)
    )
    # If integer instructions have no pipes of their own, bounds take the slots of additions in the FMA pipes.
    slot = 0.0 if "integer" in per_unit else spec.teu.lanes * spec.teu.schedulers_per_unit / per_unit["add"]
    return replace(
        base,
        fma=cycles,
        overhead=loads * beside * slot,
        issue=(instructions + loads * (1.0 + beside) + w.weights) / rate,
        scratchpad=(wavefronts + w.weights) * spec.teu.lanes / per_unit["load_store"],
    )


def _cache_lines_per_load(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return the number of cache lines that one TEU's load in place touches: runs of lanes along the last dimension."""
    access = next(a for a in batch.geometry.loads if a.tensor.name == window_slide_of_batch(batch).source.tensor)
    line = spec.layer("l2").line_bytes or spec.layer("l2").transaction_bytes
    lanes = batch.lanes(spec.teu.lanes)
    steps = np.where(batch.geometry.spatial, access.coefficients[-1], 0)
    along = np.where(steps > 0, lanes, 1).prod(axis=1)
    run = ((lanes - 1) * steps * batch.register).sum(axis=1) * access.tensor.itemsize_bytes + VECTOR_START
    return np.asarray(np.maximum(1.0, spec.teu.lanes / along) * np.maximum(1.0, run / line))


def _block_latency_chain_s(batch: TileBatch, spec: DeviceSpec, alone: Floats, parts: Parts) -> Floats:
    """Return the time, in seconds, of a block that has its unit to itself; in place, it waits for rows in turn."""
    return block_latency_chain_s(
        batch, spec, alone, parts, hops=None if batch.staged else memory_waits_along_walk(batch)
    )


PHASES = Phases(work=window_block_work, chain=_block_latency_chain_s)
