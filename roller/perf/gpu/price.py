"""The GPU half of the micro performance model: a block's phases, occupancy, waves.

A block goes again and again through phases: its tiles come through L2 and DRAM, its threads copy them (loads, stores,
addresses), its arithmetic reads them. Blocks of one unit hide each other's phases: a closed queueing network whose
stations are the phases. Blocks that start together share every pipe evenly and so stay in step; only
``overlap_blocks`` groups of them alternate, however many are resident, and they are the network's customers. A wave
needs that time, never less than the latency chain of one block, nor than its instructions need to be issued. Waves of
blocks repeat it; the tail wave is paid for the blocks it really has. Sources: Roller (OSDI'22) sections 3.3 and 3.4;
Reiser's mean value analysis; the rate of a register tile follows the published V100 tables (``v100_sm_gflops.csv``): a
reduction step of ``w`` warps per scheduler with ``r`` accumulators takes ``step_latency + w * (r * fma_cycles +
step_issue)``.
"""

from __future__ import annotations

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.batch import TileBatch
from roller.perf.gpu.compute import block_work
from roller.perf.gpu.laid_out import LaidOut
from roller.perf.gpu.occupancy import occupancy, scratchpad_bytes
from roller.perf.gpu.traffic import dram_bandwidth, global_traffic, loads_in_flight
from roller.perf.phases import alternating
from roller.tile.geometry import Floats

Terms = dict[str, Floats]


def lower_bound_s(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return a time no program of the batch can beat: its arithmetic alone, copies and memory free, ``(N,)``."""
    resident, _ = occupancy(batch, spec, scratchpad_bytes(batch))
    occ = np.maximum(resident, 1)
    work = block_work(batch, spec, (np.zeros(len(batch)),) * 2, None)
    schedulers = spec.teu.schedulers_per_unit
    blocks = batch.blocks
    full = blocks // (occ * spec.units)
    rest = blocks - full * occ * spec.units
    cycles = full * work.arithmetic(occ, schedulers)
    cycles = cycles + (rest > 0) * work.arithmetic(np.maximum(-(-rest // spec.units), 1), schedulers)
    return np.where(resident > 0, cycles / spec.clock_hz, np.inf)


def price(batch: TileBatch, spec: DeviceSpec, laid: LaidOut | None = None) -> Terms:
    """Price a batch on a GPU, as its programs are laid out, or as expected of them.

    Returns arrays by name: ``seconds`` (infinite where a block cannot run) and its terms: ``compute_s``, ``copy_s``,
    ``dram_s``, ``l2_s``, ``latency_s``, ``launch_s``, ``dram_bytes``, ``l2_bytes``, ``scratchpad_bytes``,
    ``registers``, ``blocks_per_unit``, ``bank_conflicts`` (of the worst operand; 1: none), ``waves``.
    """
    laid = laid or LaidOut.expected(batch, spec)
    pad = laid.scratchpad
    resident, registers = occupancy(batch, spec, pad)
    occ = np.maximum(resident, 1)
    units = spec.units
    l2_bytes, dram_bytes, copies, addresses = global_traffic(batch, spec, occ * units, laid.counted)
    blocks = batch.blocks
    full = blocks // (occ * units)
    rest = blocks - full * occ * units
    tail = -(-rest // units)
    terms: Terms = {}
    total = np.zeros(len(batch))
    flight = loads_in_flight(batch)
    work = block_work(batch, spec, (copies, addresses), laid)
    schedulers = spec.teu.schedulers_per_unit
    alone = (work.arithmetic(1.0, schedulers) + work.copying(1.0, schedulers)) / spec.clock_hz
    out_of_step = spec.execution.overlap_blocks or float("inf")
    hops = batch.steps + 1 if batch.staged else np.minimum(batch.steps + 1, 2)
    barrier_s = 2 * spec.execution.barrier_s * bool(batch.staged)
    chain = alone + hops * (spec.layer("global").latency_s or 0.0) + batch.steps * barrier_s
    teus = -(-batch.threads_per_block // spec.teu.lanes) * flight
    for count, b, active in ((full, occ, occ * units), (rest > 0, np.maximum(tail, 1), rest)):
        share = active / blocks
        dram = dram_bytes * share / dram_bandwidth(spec, teus * active)
        l2 = l2_bytes * share / spec.layer("l2").bandwidth_bytes_per_s
        memory = np.maximum(dram, l2)
        arithmetic, copying = (f(b, schedulers) / spec.clock_hz for f in (work.arithmetic, work.copying))
        phases = (memory, arithmetic, copying) if work.side_by_side else (memory, arithmetic + copying)
        slowest = np.maximum(
            alternating(phases, np.minimum(b, out_of_step)), work.issuing(b, schedulers) / spec.clock_hz
        )
        total = total + count * np.maximum(slowest, chain)
        named = {"compute_s": arithmetic, "copy_s": copying, "dram_s": dram, "l2_s": l2, "latency_s": chain}
        for key, value in named.items():
            terms[key] = terms[key] + count * value if key in terms else count * value
    launches = 1 + (batch.split_k > 1)
    terms["launch_s"] = np.asarray(launches * spec.execution.launch_s, np.float64)
    terms["seconds"] = np.where(resident > 0, total + terms["launch_s"], np.inf)
    terms.update(dram_bytes=dram_bytes, l2_bytes=l2_bytes, scratchpad_bytes=pad.astype(float))
    terms.update(registers=registers.astype(float), blocks_per_unit=resident.astype(float))
    terms["bank_conflicts"] = np.max([np.ones(len(batch)), *laid.conflicts.values()], axis=0)
    terms["waves"] = (full + (rest > 0)).astype(np.float64)
    return terms
