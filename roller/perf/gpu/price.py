"""The GPU half of the micro performance model: a block's phases, occupancy, waves.

A block goes again and again through phases: its tiles come through L2 and DRAM, its threads copy them (loads, stores,
addresses), its arithmetic reads them. Blocks of one unit hide each other's phases: a closed queueing network whose
stations are the phases. Blocks that start together share every pipe evenly and so stay in step; only
``overlap_blocks`` groups of them alternate, however many are resident, and they are the network's customers; in a
pipeline (``stages`` > 1) every slot of a block's tiles is one, and memory alternates with the rest only. A wave
needs that time, never less than the latency chain of one block, nor than its instructions need to be issued. Waves of
blocks repeat it; the tail wave is paid for the blocks it really has. Sources: Roller (OSDI'22) sections 3.3 and 3.4;
Reiser's mean value analysis; the rate of a register tile follows the published V100 tables (``v100_sm_gflops.csv``): a
reduction step of ``w`` warps per scheduler with ``r`` accumulators takes ``step_latency + w * (r * fma_cycles +
step_issue)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.batch import TileBatch
from roller.perf.gpu.compute import Work, block_work
from roller.perf.gpu.copies import asynchronous
from roller.perf.gpu.laid_out import LaidOut
from roller.perf.gpu.matrix import matrix_work
from roller.perf.gpu.occupancy import occupancy, scratchpad_bytes
from roller.perf.gpu.parts import combining_s
from roller.perf.gpu.rows import row_access_s, row_chain_s, scattered_access_s, with_accesses
from roller.perf.gpu.traffic import Moved, dram_time_s, global_traffic, least_copies, least_traffic
from roller.perf.gpu.walk import walk_hops
from roller.perf.gpu.windows import window_work
from roller.perf.phases import alternating
from roller.tile.geometry import Floats, Ints

Terms = dict[str, Floats]
#: Numbers on the way to a price, by name, for whoever explains it (:mod:`roller.perf.gpu.explained`).
Parts = dict[str, Any]

#: Share of a bound that rounding cannot lift above the time it bounds.
_BOUND_SHARE = 1.0 - 1e-9


@dataclass(frozen=True)
class _Waves:
    """Launches of a batch as full waves and the tail wave, arrays of shape ``(2, N)`` in that order.

    ``count`` waves of ``per_unit`` blocks on every unit (a tail's blocks spread over the units), ``active`` on all.
    """

    count: Ints
    per_unit: Ints
    active: Ints

    @classmethod
    def of(cls, batch: TileBatch, resident: Ints, units: int) -> _Waves:
        """Return the waves of blocks of which ``resident`` fit a unit, one at least."""
        full, rest = np.divmod(batch.blocks, resident * units)
        tail = np.maximum(-(-rest // units), 1)
        return cls(np.stack([full, rest > 0]), np.stack([resident, tail]), np.stack([resident * units, rest]))

    def total(self, each: Floats) -> Floats:
        """Return the sum over all waves of what is given per full wave and for the tail."""
        every = self.count * each
        return np.asarray(every[0] + every[1])


def _work(batch: TileBatch, spec: DeviceSpec, copies: tuple[Floats, Floats], laid: LaidOut | None) -> Work:
    """Return the work of every block: of the threads' own pipes, of a matrix unit, or of walks along windows."""
    if batch.structure == "window":
        return window_work(batch, spec, copies, laid)
    return (block_work if batch.fragment is None else matrix_work)(batch, spec, copies, laid)


def _chain_s(batch: TileBatch, spec: DeviceSpec, work: Work, parts: Parts) -> Floats:
    """Return the seconds of one block that has its unit to itself: nothing of another hides its latencies.

    With several stages as many steps less one are on their way at once, and the arithmetic runs meanwhile; the first
    tile and the results are waited for, and one barrier ends a step.
    """
    schedulers, latency = spec.teu.schedulers_per_unit, spec.layer("global").latency_s or 0.0
    alone = (work.arithmetic(1.0, schedulers) + work.copying(1.0, schedulers)) / spec.clock_hz
    parts["alone"] = alone
    if batch.structure == "rows":
        parts["waits"] = row_chain_s(batch, spec)
        return np.asarray(alone + parts["waits"])
    barriers = 0 if batch.fragment is not None else 1 if batch.pipelined else 2  # matrix: among their arithmetic
    barrier_s = parts["barriers"] = batch.steps * barriers * spec.execution.barrier_s * bool(batch.staged)
    if batch.pipelined:
        ahead = batch.steps_ahead
        waiting = parts["waits"] = np.maximum(batch.steps - ahead, 0) * latency / ahead
        return np.asarray(2 * latency + np.maximum(alone, waiting) + barrier_s)
    hops: Ints | Floats = batch.steps + 1 if batch.staged else np.minimum(batch.steps + 1, 2)
    if batch.structure == "window" and not batch.staged:
        hops = walk_hops(batch)
    parts["hops"] = hops
    return np.asarray(alone + hops * latency + barrier_s)


def _fill_s(batch: TileBatch, spec: DeviceSpec, per_unit: Ints) -> Floats:
    """Return the seconds in which a matrix unit waits for a block's first tile, others of the unit computing meanwhile.

    The SIMT terms are fitted to whole kernels, and have it in them.
    """
    customers = np.minimum(per_unit, spec.execution.overlap_blocks or float("inf"))
    return np.asarray((batch.fragment is not None) * (spec.layer("global").latency_s or 0.0) / np.maximum(customers, 1))


def _wave_s(memory: Floats, work: Work, waves: _Waves, batch: TileBatch, spec: DeviceSpec) -> Parts:
    """Return ``seconds`` of a full wave and of the tail, and what they are made of.

    That is ``arithmetic`` and ``copying`` alone, ``chain`` of one block, and numbers that only an explanation reads.
    Every stage of a block is a customer: its tile is on its way, or computed with.
    """
    parts: Parts = {"work": work, "pipes": 2 if work.side_by_side else 1}
    b, schedulers = waves.per_unit, spec.teu.schedulers_per_unit
    arithmetic, copying = (f(b, schedulers) / spec.clock_hz for f in (work.arithmetic, work.copying))
    pipes = (arithmetic, copying) if work.side_by_side else (arithmetic + copying,)
    customers = np.minimum(b, spec.execution.overlap_blocks or float("inf"))
    chain = _chain_s(batch, spec, work, parts)
    if batch.fragment is not None:
        customers = customers * np.minimum(batch.steps_ahead + 1, batch.steps)
        hidden = alternating((memory, *pipes), customers)
    else:
        hidden = _alternating_steps(memory, pipes, customers, batch, parts)
    issuing, fill = work.issuing(b, schedulers) / spec.clock_hz, _fill_s(batch, spec, b)
    slowest = np.maximum(hidden, issuing)
    parts.update(arithmetic=arithmetic, copying=copying, chain=chain, customers=customers, hidden=hidden)
    parts.update(issuing=issuing, fill=fill, slowest=slowest, filled=slowest + fill)
    parts["seconds"] = np.maximum(parts["filled"], chain)
    return parts


def _alternating_steps(
    memory: Floats, pipes: tuple[Floats, ...], customers: Floats | Ints, batch: TileBatch, parts: Parts
) -> Floats:
    """Return the time in which blocks of threads go through memory, copies and arithmetic, step by step.

    The threads of a pipelined block issue copies and arithmetic one after the other, memory brings later tiles
    meanwhile; the first tile of a block is waited for.
    """
    plain = alternating((memory, *pipes), customers)
    if not batch.pipelined:
        return plain
    both, in_flight = alternating(pipes, customers), customers * np.minimum(batch.stages, batch.steps)
    ahead = alternating((memory, both), in_flight)
    parts.update(plain=plain, both=both, in_flight=in_flight, ahead=ahead)
    return np.asarray(ahead + (plain - ahead) / batch.steps)


def arithmetic_bound_s(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return the time of the arithmetic of every program alone, copies and memory free, ``(N,)``."""
    resident, _ = occupancy(batch, spec, scratchpad_bytes(batch))
    work = _work(batch, spec, (np.zeros(len(batch)),) * 2, None)
    waves = _Waves.of(batch, np.maximum(resident, 1), spec.units)
    cycles = waves.total(work.arithmetic(waves.per_unit, spec.teu.schedulers_per_unit))
    return np.where(resident > 0, cycles / spec.clock_hz, np.inf)


def lower_bound_s(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return a time no program of the batch can beat, ``(N,)``.

    That of :func:`price` with only what tiles use moved, copies in the widest vectors without
    arithmetic for addresses, and no bank conflicts. Computed once per batch and device.
    """
    known: tuple[DeviceSpec, Floats] | None = batch._memo.get("lower_bound")
    if known is None or known[0] is not spec:
        known = batch._memo["lower_bound"] = spec, _lower_bound_s(batch, spec)
    return known[1]


def _lower_bound_s(batch: TileBatch, spec: DeviceSpec) -> Floats:
    resident, _ = occupancy(batch, spec, scratchpad_bytes(batch))
    (copies,) = batch.of_tiles(spec, ("least copies", asynchronous(batch, spec)), lambda: (least_copies(batch, spec),))
    work = _work(batch, spec, (copies, np.zeros(len(batch))), None)
    waves = _Waves.of(batch, np.maximum(resident, 1), spec.units)
    l2_bytes, dram_bytes = least_traffic(batch, spec)
    l2_s = l2_bytes / spec.layer("l2").bandwidth_bytes_per_s
    dram_s = dram_bytes / spec.layer("global").bandwidth_bytes_per_s
    memory = np.maximum(l2_s, dram_s) * (waves.active / batch.blocks)
    seconds = _wave_s(memory, work, waves, batch, spec)["seconds"]
    launches = 1 + (batch.split_k > 1)
    total = waves.total(seconds) + launches * spec.execution.launch_s + combining_s(batch, spec)
    return np.where(resident > 0, total * _BOUND_SHARE, np.inf)


def price(
    batch: TileBatch, spec: DeviceSpec, laid: LaidOut | None = None, told: list[Parts] | None = None
) -> Terms:
    """Price a batch on a GPU, as its programs are laid out, or as expected of them.

    Returns arrays by name: ``seconds`` (infinite where a block cannot run) and its terms: ``compute_s``, ``copy_s``,
    ``dram_s``, ``l2_s``, ``latency_s``, ``launch_s``, ``dram_bytes``, ``l2_bytes``, ``scratchpad_bytes``,
    ``registers``, ``blocks_per_unit``, ``blocks`` (of all units), ``threads`` (of one), ``bank_conflicts`` (of the
    worst operand; 1: none), ``waves``. To ``told`` come the numbers on the way, for whoever explains the price.
    """
    laid = laid or LaidOut.expected(batch, spec)
    pad = laid.scratchpad
    resident, registers = occupancy(batch, spec, pad)
    waves = _Waves.of(batch, np.maximum(resident, 1), spec.units)
    by_tensor: list[Moved] | None = None if told is None else []
    on_the_bus: Parts | None = None if told is None else {}
    l2_bytes, dram_bytes, copies, addresses = global_traffic(batch, spec, waves.active[0], laid.counted, by_tensor)
    work = _work(batch, spec, (copies, addresses), laid)
    share = waves.active / batch.blocks
    dram = dram_time_s(batch, spec, dram_bytes * share, waves.active, on_the_bus)
    l2 = l2_bytes * share / spec.layer("l2").bandwidth_bytes_per_s
    moved = memory = np.maximum(dram, l2)
    access: Floats | None = None
    if batch.structure in ("rows", "streaming"):
        of_block = row_access_s if batch.structure == "rows" else scattered_access_s
        access = of_block(batch, spec) * waves.per_unit
        memory = with_accesses(moved, access, spec)
    wave = _wave_s(memory, work, waves, batch, spec)
    seconds = wave["seconds"]
    named = {"compute_s": wave["arithmetic"], "copy_s": wave["copying"], "dram_s": dram, "l2_s": l2}
    named["latency_s"] = wave["chain"]
    combining = combining_s(batch, spec)
    terms: Terms = {key: waves.total(value) for key, value in named.items()}
    terms["latency_s"] = terms["latency_s"] + combining
    launches = 1 + (batch.split_k > 1)
    terms["launch_s"] = np.asarray(launches * spec.execution.launch_s, np.float64)
    terms["seconds"] = np.where(resident > 0, waves.total(seconds) + terms["launch_s"] + combining, np.inf)
    terms.update(dram_bytes=dram_bytes, l2_bytes=l2_bytes, scratchpad_bytes=pad.astype(float))
    terms.update(registers=registers.astype(float), blocks_per_unit=resident.astype(float))
    terms.update(blocks=batch.blocks.astype(float), threads=batch.threads_per_block.astype(float))
    terms["bank_conflicts"] = np.max([np.ones(len(batch)), *laid.conflicts.values()], axis=0)
    terms["waves"] = waves.count.sum(axis=0).astype(np.float64)
    if told is not None:
        wave.update(waves=waves, share=share, dram=dram, l2=l2, moved=moved, access=access, memory=memory)
        wave.update(batch=batch, spec=spec, terms=terms, combining=combining, launches=launches, laid=laid)
        told.append(wave | {"bus": on_the_bus, "by_tensor": by_tensor, "scratchpad": pad})
    return terms
