"""Cycles of a block whose arithmetic a matrix unit does: its instructions, operand reads, latencies of a step.

A group of threads multiplies its tile fragment by fragment: per step of the fragment's k it reads both operands' rows
from scratchpad once and issues one instruction per output fragment. The matrix unit works beside all other pipes; what
it must wait for is the scratchpad's bandwidth (operand reads, and copies being written), issue slots, and once per
reduction step the barrier and the latency of the first operand. Instructions of warp groups read scratchpad by
themselves, both operands for every product, and with enough stages start before those of the last step are done.
"""

from __future__ import annotations

import numpy as np

from roller.errors import SpecError
from roller.expr import instruction_mix
from roller.hardware import DeviceSpec
from roller.perf.batch import TileBatch
from roller.perf.gpu.compute import PLACE_INSTRUCTIONS, STORE_INSTRUCTIONS, Work
from roller.perf.gpu.laid_out import LaidOut
from roller.perf.gpu.matrix_copies import copy_guards
from roller.tile.access import VECTOR_BYTES
from roller.tile.geometry import Floats
from roller.tile.transactions import row_alignment_bytes

#: Bytes that one instruction of a warp reads from scratchpad (``ldmatrix.x4``; 16 bytes per thread).
READ_BYTES = 512.0
#: Instructions of the loop over fragments, per step of the fragment's k: addresses that no offset folds.
LOOP_INSTRUCTIONS = 4.0
#: Instructions of a reduction step of warp groups beside copies and products: fences, barrier, the place in the ring.
GROUP_STEP_INSTRUCTIONS = 32.0
#: Instructions of a thread per reduction step beside copies and products (places in the ring, pointers), and per vector
#: copied under conditions beyond the copy itself; machine code of products and convolutions (sm_80, NVRTC 12.9).
STEP_INSTRUCTIONS, GUARDED_INSTRUCTIONS = 26.0, 2.5
#: Barriers of a reduction step: tiles are written after all have read the last ones, and read after all have written;
#: a ring of stages needs only one.
BARRIERS, RING_BARRIERS = 2, 1
#: Neighbouring results a lane holds along n, and bytes of them from which on it stores them directly.
PAIR, DIRECT_BYTES = 2, 8
#: Neighbouring results a lane of a warp group holds after an exchange among four lanes, and instructions per result.
EXCHANGED, EXCHANGE_INSTRUCTIONS = 8, 3.0
#: Instructions per result that is spread over scratchpad, and per vector read back from there.
SPREAD_INSTRUCTIONS, READ_INSTRUCTIONS = 0.5, 2.0


def matrix_rate(batch: TileBatch, spec: DeviceSpec) -> float:
    """Return products and sums per cycle and unit of the batch's fragment.

    Raises
    ------
    SpecError
        Where the specification names the fragment but gives no rate for it.
    """
    f = batch.fragment
    assert f is not None
    rate = spec.compute.ops_per_cycle_per_unit.get(f"{f.rate}.{f.operand}")
    if rate is None:
        path = f"compute.ops_per_cycle_per_unit.{f.rate}.{f.operand}"
        raise SpecError(f"{spec.name}: {path}: expected the rate of fragment '{f.name}', got none. Add it.")
    return rate


def matrix_work(batch: TileBatch, spec: DeviceSpec, copies: tuple[Floats, Floats], laid: LaidOut | None) -> Work:
    """Return the work of every block of ``"matrix"`` programs; as :func:`roller.perf.gpu.compute.block_work`."""
    f, g, ex = batch.fragment, batch.geometry, spec.execution
    assert f is not None
    per_unit, lanes, schedulers = spec.compute.ops_per_cycle_per_unit, spec.teu.lanes, spec.teu.schedulers_per_unit
    names = [batch.geometry.names.index(a) for a in batch.matrix_axes]
    tile = batch.register[:, names].astype(np.float64)
    together = f.threads // lanes  # TEUs that execute one instruction
    teus = batch.threads_per_block / lanes
    groups = batch.step_points / f.k
    products = tile[:, 0] * tile[:, 1] * f.k
    instructions = tile[:, 0] / f.m * (tile[:, 1] / f.n) * float(f.instructions)
    read = written = loads = np.zeros(len(batch))
    conflicts = laid.conflicts if laid else {}
    for a in g.loads:
        mine = batch.register_elements(a) * float(a.tensor.itemsize_bytes) * f.operand_copies
        if f.reads_scratchpad:  # every product reads both operands anew
            mine = mine * (tile[:, 1] / f.n if a.uses[names[0]] else tile[:, 0] / f.m)
        else:
            loads = loads + np.ceil(mine / READ_BYTES)
        read = read + mine * conflicts.get(a.tensor.name, 1.0)
        written = written + batch.block_elements(a) * float(a.tensor.itemsize_bytes)
    wavefront = (spec.layer("shared").banks or lanes) * (spec.layer("shared").bank_width_bytes or 4)
    slot = lanes * schedulers / per_unit["issue"]
    barriers = RING_BARRIERS if batch.pipelined else BARRIERS
    # Products that still run as the next step starts hide its barrier and its first reads.
    latency = barriers * ex.barrier_s + (spec.layer("shared").latency_s or 0.0)
    around = GROUP_STEP_INSTRUCTIONS / groups if f.reads_scratchpad else LOOP_INSTRUCTIONS
    step = 0.0 if f.reads_scratchpad else STEP_INSTRUCTIONS
    moved = copies[0] / np.maximum(1, batch.threads_per_block) + GUARDED_INSTRUCTIONS * copy_guards(batch)
    return Work(
        teus=teus,
        fma=products / together * schedulers / matrix_rate(batch, spec),
        overhead=np.zeros(len(batch)),
        issue=(instructions + loads + around) * slot,
        scratchpad=(read / together + written / groups / teus) / wavefront * lanes / per_unit["load_store"],
        copies=(moved + step) * slot,
        multiplies=np.zeros(len(batch)),
        finish=np.asarray(_finish_instructions(batch) * slot),
        groups=groups,
        steps=batch.steps.astype(np.float64),
        chain=latency * (np.asarray(batch.running_steps) == 0) * spec.clock_hz / groups,
        combine=np.zeros(len(batch)),
        side_by_side=True,
    )


def _finish_instructions(batch: TileBatch) -> Floats:
    """Return instructions of one thread outside the reduction: its place; epilogue, conversion, store of results."""
    f, g = batch.fragment, batch.geometry
    assert f is not None
    epilogue = float(sum(sum(instruction_mix(x.body, None).values()) for x in g.expr.stages if x is not g.expr.anchor))
    results, size = batch.register_outputs / f.threads, g.store.tensor.itemsize_bytes
    width = np.ones(len(batch))
    if g.order and g.names[g.order[-1]] == batch.matrix_axes[1]:
        aligned = row_alignment_bytes(g.store, batch.block, VECTOR_BYTES)
        run = batch.register[:, g.order[-1]] * size
        width = np.maximum(1, np.minimum(aligned, run & -run) // size).astype(np.float64)
    if f.reads_scratchpad:
        wide = (width >= EXCHANGED) & (PAIR * size < DIRECT_BYTES)
        stored = STORE_INSTRUCTIONS / np.where(wide, EXCHANGED, np.minimum(width, PAIR))
        return np.asarray(PLACE_INSTRUCTIONS + results * (1.0 + stored + wide * EXCHANGE_INSTRUCTIONS + epilogue))
    direct = (width >= PAIR) & (PAIR * size >= DIRECT_BYTES) & f.knows_lanes
    stored = STORE_INSTRUCTIONS / np.where(direct, PAIR, width)
    spread = np.where(direct, 0.0, SPREAD_INSTRUCTIONS + READ_INSTRUCTIONS / width)
    return np.asarray(PLACE_INSTRUCTIONS + results * (1.0 + stored + spread + epilogue))
