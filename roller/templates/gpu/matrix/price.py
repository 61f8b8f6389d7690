"""Cycles of a block whose arithmetic runs on a matrix unit: instructions, operand reads, and latencies of a step.

Per step of the fragment's k, a group of threads reads both operands' rows from the scratchpad once and issues one
instruction per output fragment. The matrix unit overlaps all other pipes; it waits for the scratchpad's bandwidth
(reads and copies), for issue slots and, once per reduction step, for the barrier and the latency of the first operand.
Warp-group instructions read both operands from the scratchpad for every product and, with enough stages, start before
the products of the previous step are done.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from roller.errors import SpecError
from roller.expr import instruction_mix
from roller.hardware import DeviceSpec
from roller.perf.phase_overlap import time_of_alternating_phases
from roller.perf.tile_batch import TileBatch
from roller.templates.gpu.common.arithmetic_cycles import PLACE_INSTRUCTIONS, STORE_INSTRUCTIONS, BlockWork
from roller.templates.gpu.common.bank_conflicts import scratchpad_banks
from roller.templates.gpu.common.matrix_operand_copies import guarded_copies_per_step
from roller.templates.gpu.common.price import Parts, Phases, block_latency_chain_s
from roller.templates.gpu.common.shared_memory_layout import SharedMemoryLayout
from roller.templates.gpu.common.stored_results import StoredResults
from roller.templates.gpu.matrix.store_method import MatrixStore
from roller.tile.geometry import Floats, Ints

#: Bytes that a lane reads from the scratchpad with one instruction (``ldmatrix.x4``, ``ds_read_b128``).
READ_BYTES = 16.0
#: Instructions of the loop over fragments, per step of the fragment's k, for addresses that no offset folds.
LOOP_INSTRUCTIONS = 4.0
#: Instructions per reduction step of warp groups in addition to copies and products: fences, barrier, ring position.
GROUP_STEP_INSTRUCTIONS = 32.0
#: Instructions of a thread per reduction step in addition to copies and products (ring positions, pointers), and per
#: conditionally copied vector, without the copy itself; from machine code of products and convolutions (sm_80, NVRTC
#: 12.9).
STEP_INSTRUCTIONS, GUARDED_INSTRUCTIONS = 26.0, 2.5
#: Number of barriers per reduction step: one after all threads have read the previous tiles, and one after all have
#: written the new tiles; a ring of stages needs only one.
BARRIERS, RING_BARRIERS = 2, 1
#: Instructions per result that lanes of a warp group exchange.
EXCHANGE_INSTRUCTIONS = 3.0
#: Instructions per result written to the scratchpad, and per vector read back from there.
SPREAD_INSTRUCTIONS, READ_INSTRUCTIONS = 0.5, 2.0


def multiply_adds_per_cycle(batch: TileBatch, spec: DeviceSpec) -> float:
    """Return the number of multiply-adds per cycle and unit with the batch's fragment."""
    f = batch.fragment
    assert f is not None
    rate = spec.compute.ops_per_cycle_per_unit.get(f"{f.rate}.{f.operand}")
    if rate is None:
        path = f"compute.ops_per_cycle_per_unit.{f.rate}.{f.operand}"
        raise SpecError(f"{spec.name}: {path}: expected the rate of fragment '{f.name}', got none. Add it.")
    return rate


def matrix_block_work(
    batch: TileBatch, spec: DeviceSpec, copies: tuple[Floats, Floats], laid: SharedMemoryLayout | None
) -> BlockWork:
    """Return the work of each block of ``"matrix"`` programs, as ``arithmetic_cycles.py`` does for SIMT kernels."""
    f, g, ex = batch.fragment, batch.geometry, spec.execution
    assert f is not None
    per_unit, lanes, schedulers = spec.compute.ops_per_cycle_per_unit, spec.teu.lanes, spec.teu.schedulers_per_unit
    names = [batch.geometry.names.index(a) for a in batch.matrix_axes]
    tile = batch.register[:, names].astype(np.float64)
    together = f.threads // lanes  # TEUs that execute one instruction
    teus = batch.threads_per_block / lanes
    groups = batch.reduction_points_per_step / f.k
    products = tile[:, 0] * tile[:, 1] * f.k
    instructions = tile[:, 0] / f.m * (tile[:, 1] / f.n) * float(f.instructions)
    read = written = loads = np.zeros(len(batch))
    conflicts = laid.conflicts if laid else {}
    for a in g.loads:
        mine = batch.elements_per_register_tile(a) * float(a.tensor.itemsize_bytes) * f.operand_copies
        if f.reads_scratchpad:  # every product reads both operands again
            mine = mine * (tile[:, 1] / f.n if a.uses[names[0]] else tile[:, 0] / f.m)
        else:
            loads = loads + np.ceil(mine / (READ_BYTES * lanes))
        read = read + mine * conflicts.get(a.tensor.name, 1.0)
        written = written + batch.elements_per_block_tile(a) * float(a.tensor.itemsize_bytes)
    wavefront = math.prod(scratchpad_banks(spec))
    slot = lanes * schedulers / per_unit["issue"]
    barriers = RING_BARRIERS if batch.is_pipelined else BARRIERS
    # Products that still run when the next step starts hide its barrier and its first reads.
    latency = barriers * ex.barrier_s + (spec.layer("shared").latency_s or 0.0)
    around = GROUP_STEP_INSTRUCTIONS / groups if f.reads_scratchpad else LOOP_INSTRUCTIONS
    step = 0.0 if f.reads_scratchpad else STEP_INSTRUCTIONS
    moved = copies[0] / np.maximum(1, batch.threads_per_block) + GUARDED_INSTRUCTIONS * guarded_copies_per_step(batch)
    return BlockWork(
        teus=teus,
        fma=products / together * schedulers / multiply_adds_per_cycle(batch, spec),
        overhead=np.zeros(len(batch)),
        issue=(instructions + loads + around) * slot,
        scratchpad=(read / together + written / groups / teus) / wavefront * lanes / per_unit["load_store"],
        copies=(moved + step) * slot,
        multiplies=np.zeros(len(batch)),
        finish=np.asarray(_count_finish_instructions(batch) * slot),
        groups=groups,
        steps=batch.steps.astype(np.float64),
        chain=latency * (np.asarray(batch.running_steps) == 0) * spec.clock_hz / groups,
        combine=np.zeros(len(batch)),
        side_by_side=True,
    )


def _count_finish_instructions(batch: TileBatch) -> Floats:
    """Return the number of a thread's instructions outside the reduction: position, epilogue, conversion, stores."""
    f, g = batch.fragment, batch.geometry
    assert f is not None
    epilogue = float(sum(sum(instruction_mix(x.body, None).values()) for x in g.expr.stages if x is not g.expr.anchor))
    results = batch.accumulators_per_thread / f.threads
    each = np.zeros(len(batch))
    for split, columns, mine in _programs_stored_alike(batch):
        way = choose_matrix_store(batch, split=split, columns=columns)
        moved = EXCHANGE_INSTRUCTIONS * way.exchanged
        if not (way.direct or way.exchanged):
            moved = SPREAD_INSTRUCTIONS + READ_INSTRUCTIONS / way.width
        each[mine] = 1.0 + STORE_INSTRUCTIONS / way.width + moved + epilogue
    return np.asarray(PLACE_INSTRUCTIONS + results * each)


def _programs_stored_alike(batch: TileBatch) -> Iterator[tuple[bool, int, NDArray[np.bool_]]]:
    """Yield sets of programs that store results alike: whether they store parts, columns per group, and a mask."""
    columns = batch.register[:, batch.geometry.names.index(batch.matrix_axes[1])]
    for split in (False, True):
        for n in sorted(set(columns[(batch.split_k > 1) == split].tolist())):
            yield split, n, ((batch.split_k > 1) == split) & (columns == n)


def choose_matrix_store(batch: TileBatch, *, split: bool, columns: int) -> MatrixStore:
    """Return how programs with ``columns`` along n per group store their results, or parts of them."""
    g, axis = batch.geometry, batch.matrix_axes[1]
    results, extent = StoredResults.of_program(g.expr, split=split), int(g.extents[g.names.index(axis)])
    assert batch.fragment is not None
    return MatrixStore.of(batch.fragment, results, axis, extent, columns)


def _lone_block_cycles(work: BlockWork, batch: TileBatch, schedulers: int, parts: Parts) -> Floats:
    """Return the cycles of work for one block that has its unit to itself."""
    # Products that still run when the next step starts overlap its copies; only the stores wait for the products.
    arithmetic, copying = work.arithmetic(1.0, schedulers), work.copy_cycles(1.0, schedulers)
    stored = np.maximum(arithmetic + work.store_cycles(1.0, schedulers), copying)
    parts["beside"] = beside = np.asarray(batch.running_steps) > 0
    return np.where(beside, stored, arithmetic + copying)


def _block_latency_chain_s(batch: TileBatch, spec: DeviceSpec, alone: Floats, parts: Parts) -> Floats:
    """Return the time, in seconds, of one block that has its unit to itself; its arithmetic includes barriers."""
    return block_latency_chain_s(batch, spec, alone, parts, barriers=0)


def _overlap_of_phases(
    memory: Floats, pipes: tuple[Floats, ...], customers: Floats | Ints, batch: TileBatch, parts: Parts
) -> tuple[Floats | Ints, Floats]:
    """Return the number of customers (one per stage of a block), and the time, in seconds, of their phases."""
    del parts
    customers = customers * np.minimum(batch.copy_steps_in_flight + 1, batch.steps)
    return customers, time_of_alternating_phases((memory, *pipes), customers)


def _first_tile_wait_s(batch: TileBatch, spec: DeviceSpec, per_unit: Ints) -> Floats:
    """Return the time, in seconds, that a matrix unit waits for a block's first tile while other blocks compute."""
    del batch
    customers = np.minimum(per_unit, spec.execution.overlap_blocks or float("inf"))
    return np.asarray((spec.layer("global").latency_s or 0.0) / np.maximum(customers, 1))


def _stores_s(batch: TileBatch, per_unit: Ints, stored_s: Floats) -> Floats:
    """Return the time, in seconds, during which a wave of blocks stores its results and no block computes."""
    # Blocks of a wave start together and have equally many steps, so they also store together. Meanwhile, only products
    # that run independently of their threads continue: the products of the unit's other blocks.
    assert batch.fragment is not None
    return np.where(per_unit > 1, 0.0, stored_s) if batch.fragment.reads_scratchpad else stored_s


PHASES = Phases(
    matrix_block_work,
    _lone_block_cycles,
    _block_latency_chain_s,
    _overlap_of_phases,
    _first_tile_wait_s,
    stores=_stores_s,
)
