"""Price of a GPU program: phases of a block, occupancy, and waves.

Blocks of one unit hide each other's phases (memory, copies, arithmetic), like the customers of a closed queueing
network whose stations are the phases. Blocks that start together stay in step, so only ``overlap_blocks`` groups of
them alternate, and each group is a customer; in a pipeline (``stages`` > 1), each slot of a block's tiles is a
customer. A wave takes the time of this network, but at least the latency chain of one block and the issue time of its
instructions. The tail wave takes the time of its own blocks. Sources: Roller (OSDI'22), sections 3.3 and 3.4, and
Reiser's mean value analysis. The rate of a register tile follows the published V100 tables (``v100_sm_gflops.csv``): a
reduction step of ``w`` warps per scheduler with ``r`` accumulators takes ``step_latency + w * (r * fma_cycles +
step_issue)``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.phase_overlap import time_of_alternating_phases
from roller.perf.tile_batch import TileBatch
from roller.templates.gpu.common.arithmetic_cycles import BlockWork, block_work
from roller.templates.gpu.common.bank_conflicts import worst_conflicts
from roller.templates.gpu.common.combine_parts_cost import combine_parts_s
from roller.templates.gpu.common.l2_and_dram_traffic import (
    TrafficShare,
    dram_time_s,
    least_counted_l2_bytes,
    least_traffic_bytes,
    moved_bytes,
    stored_traffic_shares,
    traffic_bytes_and_instructions,
)
from roller.templates.gpu.common.load_instruction_counts import least_load_instruction_count
from roller.templates.gpu.common.occupancy import occupancy, scratchpad_bytes
from roller.templates.gpu.common.power_limit import least_time_at_power_limit_s
from roller.templates.gpu.common.shared_memory_layout import SharedMemoryLayout
from roller.templates.gpu.common.staging_instruction_counts import copies_asynchronously
from roller.tile.geometry import Floats, Ints

Terms = dict[str, Floats]
#: Intermediate values of a price, by name, for its explanation (:mod:`roller.templates.gpu.price_terms`).
Parts = dict[str, Any]

#: Terms among which the bottleneck is chosen.
BOTTLENECKS = ("compute_s", "copy_s", "dram_s", "l2_s", "latency_s", "launch_s")
#: Factor applied to a bound, so that rounding cannot lift it above the time it bounds.
_BOUND_SHARE = 1.0 - 1e-9


@dataclass(frozen=True)
class _Waves:
    """Full waves and tail wave, in this order, of each launch in a batch; arrays have shape ``(2, N)``.

    Parameters
    ----------
    per_unit
        Number of blocks per unit; a tail's blocks are spread over the units.
    active
        Number of blocks on all units.
    """

    count: Ints | Floats
    per_unit: Any  # Ints; Floats if waves are counted in fractions
    active: Ints

    @classmethod
    def of(cls, batch: TileBatch, resident: Ints, units: int) -> _Waves:
        """Return the waves of blocks, given that ``resident`` blocks (at least one) fit on a unit."""
        full, rest = np.divmod(batch.blocks, resident * units)
        tail = np.maximum(-(-rest // units), 1)
        return cls(np.stack([full, rest > 0]), np.stack([resident, tail]), np.stack([resident * units, rest]))

    @classmethod
    def fractional_waves(cls, batch: TileBatch, most: Ints, units: int) -> _Waves:
        """Return waves counted in fractions, so that no tail remains; each unit gets at least one block."""
        active = np.minimum(most * units, batch.blocks)
        none, count = np.zeros(len(batch)), batch.blocks / active
        return cls(np.stack([count, none]), np.stack([np.maximum(active / units, 1.0)] * 2), np.stack([active] * 2))

    def total(self, each: Floats) -> Floats:
        """Return the sum, over all waves, of a value given per full wave and for the tail."""
        every = self.count * each
        return np.asarray(every[0] + every[1])


def block_latency_chain_s(
    batch: TileBatch,
    spec: DeviceSpec,
    alone: Floats,
    parts: Parts,
    barriers: int | None = None,
    hops: Ints | Floats | None = None,
) -> Floats:
    """Return the time, in seconds, of one block that has its unit to itself, so that nothing hides its latencies."""
    # ``alone``: seconds of the block's work; ``barriers`` and ``hops`` replace the default numbers of barriers per step
    # and of waits for memory. In a pipeline, copies of several steps are in flight while the arithmetic runs; the block
    # waits for the first tile and the results.
    latency = spec.layer("global").latency_s or 0.0
    if barriers is None:
        barriers = 1 if batch.is_pipelined else 2
    barrier_s = parts["barriers"] = batch.steps * barriers * spec.execution.barrier_s * bool(batch.staged_loads)
    if batch.is_pipelined:
        ahead = batch.copy_steps_in_flight
        waiting = parts["waits"] = np.maximum(batch.steps - ahead, 0) * latency / ahead
        return np.asarray(2 * latency + np.maximum(alone, waiting) + barrier_s)
    if hops is None:
        hops = batch.steps + 1 if batch.staged_loads else np.minimum(batch.steps + 1, 2)
    parts["hops"] = hops
    return np.asarray(alone + hops * latency + barrier_s)


def overlap_of_thread_blocks(
    memory: Floats, pipes: tuple[Floats, ...], customers: Floats | Ints, batch: TileBatch, parts: Parts
) -> tuple[Floats | Ints, Floats]:
    """Return the number of customers, and the time, in seconds, that SIMT blocks take to pass through their phases."""
    # The threads of a pipelined block issue copies and arithmetic one after the other while memory delivers later
    # tiles; a block waits for its first tile.
    plain = time_of_alternating_phases((memory, *pipes), customers)
    if not batch.is_pipelined:
        return customers, plain
    both, in_flight = time_of_alternating_phases(pipes, customers), customers * np.minimum(batch.stages, batch.steps)
    ahead = time_of_alternating_phases((memory, both), in_flight)
    parts.update(plain=plain, both=both, in_flight=in_flight, ahead=ahead)
    return customers, np.asarray(ahead + (plain - ahead) / batch.steps)


def lone_block_cycles(work: BlockWork, batch: TileBatch, schedulers: int, parts: Parts) -> Floats:
    """Return the cycles of work for one SIMT block, whose threads either compute or copy."""
    del batch, parts
    return np.asarray(work.arithmetic(1.0, schedulers) + work.copy_cycles(1.0, schedulers))


def zero_fill_s(batch: TileBatch, spec: DeviceSpec, per_unit: Ints) -> Floats:
    """Return zero seconds: the terms for SIMT kernels were fitted to whole kernels and include the first tile."""
    del batch, spec
    return np.zeros(per_unit.shape)


@dataclass(frozen=True)
class Phases:
    """Parts of a kernel's price that its template supplies.

    Parameters
    ----------
    work
        Returns the work of each block, on its threads' own pipes, on a matrix unit, or along windows.
    alone
        Returns the cycles of work for one block that has its unit to itself.
    chain
        Returns the seconds of such a block including its latencies, given the seconds of its work alone.
    overlap
        Returns the number of customers of the queueing network, and the time, in seconds, that a unit's blocks take to
        pass through their phases.
    fill
        Returns the time, in seconds, that a unit waits for a block's first tile while the unit's other blocks compute.
    access
        Returns the time, in seconds, that a unit's load and store pipe needs for a block; ``None`` unless memory
        requests pass through the pipe one by one.
    stores
        Returns the time, in seconds, during which a wave of blocks stores its results and none of them computes, given
        the seconds that memory takes for the results; ``None`` if the other terms were fitted to whole kernels and
        include this time.
    """

    work: Callable[[TileBatch, DeviceSpec, tuple[Floats, Floats], SharedMemoryLayout | None], BlockWork] = block_work
    alone: Callable[[BlockWork, TileBatch, int, Parts], Floats] = lone_block_cycles
    chain: Callable[[TileBatch, DeviceSpec, Floats, Parts], Floats] = block_latency_chain_s
    overlap: Callable[[Floats, tuple[Floats, ...], Floats | Ints, TileBatch, Parts], tuple[Floats | Ints, Floats]] = (
        overlap_of_thread_blocks
    )
    fill: Callable[[TileBatch, DeviceSpec, Ints], Floats] = zero_fill_s
    access: Callable[[TileBatch, DeviceSpec], Floats] | None = None
    stores: Callable[[TileBatch, Ints, Floats], Floats] | None = None

    def price(
        self,
        batch: TileBatch,
        spec: DeviceSpec,
        laid: SharedMemoryLayout | None = None,
        details: list[Parts] | None = None,
    ) -> Terms:
        """Price a batch; see :func:`price`."""
        return price(batch, spec, laid, details, self)

    def arithmetic(self, batch: TileBatch, spec: DeviceSpec) -> Floats:
        """Return the time, in seconds, of each program's arithmetic alone; see :func:`arithmetic_bound_s`."""
        return arithmetic_bound_s(batch, spec, self)

    def bound(self, batch: TileBatch, spec: DeviceSpec) -> Floats:
        """Return a lower bound on each program's time, in seconds; see :func:`lower_bound_s`."""
        return lower_bound_s(batch, spec, self)


def memory_s_with_accesses(memory_s: Floats, access_s: Floats, spec: DeviceSpec) -> Floats:
    """Return the memory time if requests pass through the units' load and store pipes."""
    # Queueing rounds the knee between the two, as between few and many TEUs (``dram_bandwidth``).
    p = spec.layer("global").saturation_exponent or 2.0
    return np.asarray((memory_s**p + access_s**p) ** (1.0 / p))


def _full_and_tail_wave_s(
    memory: Floats,
    work: BlockWork,
    waves: _Waves,
    batch: TileBatch,
    spec: DeviceSpec,
    phases: Phases,
    stores: Floats | float = 0.0,
) -> Parts:
    """Return the ``seconds`` of a full wave and of the tail, and the values from which they are computed."""
    # ``stores``: seconds of ``memory`` that follow all phases.
    parts: Parts = {"work": work, "pipes": 2 if work.side_by_side else 1}
    b, schedulers = waves.per_unit, spec.teu.schedulers_per_unit
    arithmetic, copying = (f(b, schedulers) / spec.clock_hz for f in (work.arithmetic, work.copy_cycles))
    pipes = (arithmetic, copying) if work.side_by_side else (arithmetic + copying,)
    customers = np.minimum(b, spec.execution.overlap_blocks or float("inf"))
    alone = parts["alone"] = phases.alone(work, batch, schedulers, parts) / spec.clock_hz
    chain = phases.chain(batch, spec, alone, parts)
    customers, hidden = phases.overlap(memory - stores, pipes, customers, batch, parts)
    issuing, fill = work.issue_cycles(b, schedulers) / spec.clock_hz, phases.fill(batch, spec, b)
    slowest = np.maximum(hidden, issuing)
    parts.update(arithmetic=arithmetic, copying=copying, chain=chain, customers=customers, hidden=hidden)
    if phases.stores is not None:
        parts["loads"] = memory - stores
    parts.update(issuing=issuing, fill=fill, stores=stores, slowest=slowest, filled=slowest + fill + stores)
    parts["seconds"] = np.maximum(parts["filled"], chain)
    parts["core"] = np.minimum(arithmetic + copying, parts["seconds"])
    return parts


def arithmetic_bound_s(batch: TileBatch, spec: DeviceSpec, phases: Phases) -> Floats:
    """Return the time, in seconds, of each program's arithmetic alone, without copies and memory, shape ``(N,)``."""
    resident, _ = occupancy(batch, spec, scratchpad_bytes(batch))
    work = phases.work(batch, spec, (np.zeros(len(batch)),) * 2, None)
    waves = _Waves.of(batch, np.maximum(resident, 1), spec.units)
    cycles = waves.total(work.arithmetic(waves.per_unit, spec.teu.schedulers_per_unit))
    seconds = np.asarray(cycles / spec.clock_hz)
    seconds = np.maximum(seconds, least_time_at_power_limit_s(batch, spec, work, seconds))
    return np.where(resident > 0, seconds, np.inf)


def lower_bound_s(batch: TileBatch, spec: DeviceSpec, phases: Phases) -> Floats:
    """Return a lower bound on each program's time, in seconds, shape ``(N,)``; computed once per batch and device."""
    known: tuple[DeviceSpec, Floats] | None = batch._memo.get("lower_bound")
    if known is None or known[0] is not spec:
        known = batch._memo["lower_bound"] = spec, _compute_lower_bound_s(batch, spec, phases)
    return known[1]


def _compute_lower_bound_s(batch: TileBatch, spec: DeviceSpec, phases: Phases) -> Floats:
    resident, _ = occupancy(batch, spec, scratchpad_bytes(batch))
    # The computation is that of :func:`price`, but only used bytes move, copies take the widest vectors without address
    # arithmetic, and no bank conflicts occur.
    (copies,) = batch.cached_arrays(
        spec, ("least copies", copies_asynchronously(batch, spec)), lambda: (least_load_instruction_count(batch, spec),)
    )
    work = phases.work(batch, spec, (copies, np.zeros(len(batch))), None)
    waves = _Waves.of(batch, np.maximum(resident, 1), spec.units)
    l2_bytes, dram_bytes = least_traffic_bytes(batch, spec)
    l2_s = l2_bytes / spec.layer("l2").bandwidth_bytes_per_s
    dram_s = dram_bytes / spec.layer("global").peak_bytes_per_s
    memory = np.maximum(l2_s, dram_s) * (waves.active / batch.blocks)
    running = _launch_lower_bound_s(batch, spec, memory, work, waves, phases, (l2_bytes, dram_bytes))
    return np.where(resident > 0, running, np.inf)


def _launch_lower_bound_s(
    batch: TileBatch, spec: DeviceSpec, memory: Floats, work: BlockWork, waves: _Waves, phases: Phases,
    moved: tuple[Floats, Floats], least: BlockWork | None = None,
) -> Floats:  # fmt: skip
    """Return a lower bound on the seconds of launches whose waves take ``memory`` seconds of memory and do ``work``."""
    wave = _full_and_tail_wave_s(memory, least or work, waves, batch, spec, phases)
    power = least_time_at_power_limit_s(batch, spec, work, waves.total(wave["core"]), moved)
    running = np.maximum(waves.total(wave["seconds"]), power)
    launches = 1 + (batch.split_k > 1)
    return np.asarray((running + launches * spec.execution.launch_s + combine_parts_s(batch, spec)) * _BOUND_SHARE)


def least_s_with_resident_blocks(
    batch: TileBatch, spec: DeviceSpec, resident: Ints, copies: tuple[Floats, Floats], phases: Phases, *,
    most: bool = False, counted: Mapping[int, Floats] = MappingProxyType({}),
) -> Floats:  # fmt: skip
    """Return a lower bound on the seconds over all layouts with ``resident`` blocks per unit, shape ``(N,)``."""
    # The computation is that of :func:`price` without bank conflicts and, if nothing is ``counted``, without unused
    # bytes through L2. If ``most`` is set, waves and TEUs are counted in fractions, so that the bound also holds for
    # fewer blocks than ``resident``.
    least = least_counted_l2_bytes(batch, spec)
    waves = _Waves.fractional_waves(batch, resident, spec.units) if most else _Waves.of(batch, resident, spec.units)
    least.update({n: np.where(np.isnan(x), least[n], x) for n, x in counted.items()})
    l2_bytes, dram_bytes = moved_bytes(batch, spec, waves.active[0], least)
    share = waves.active / batch.blocks
    dram = dram_time_s(batch, spec, dram_bytes * share, waves.active, dram_bytes)
    memory = np.maximum(dram, l2_bytes * share / spec.layer("l2").bandwidth_bytes_per_s)
    work = phases.work(batch, spec, copies, None)
    moved = l2_bytes, dram_bytes
    return _launch_lower_bound_s(batch, spec, memory, work, waves, phases, moved, work.spread() if most else work)


def price(
    batch: TileBatch, spec: DeviceSpec, laid: SharedMemoryLayout | None, details: list[Parts] | None, phases: Phases
) -> Terms:
    """Price a batch on a GPU with the layouts of its programs or, before layout, with the expected layout.

    Return arrays keyed by name: ``seconds`` (infinite if a block cannot run) and its terms: ``compute_s``, ``copy_s``,
    ``dram_s``, ``l2_s``, ``latency_s``, ``launch_s``, ``clock_hz``, ``dram_bytes``, ``l2_bytes``, ``scratchpad_bytes``,
    ``registers``, ``blocks_per_unit``, ``blocks`` (of all units), ``threads`` (of one), ``bank_conflicts`` (of the
    worst operand; 1: none), and ``waves``. ``details`` collects intermediate values for the explanation.
    """
    laid = laid or SharedMemoryLayout.expected(batch, spec)
    pad = laid.scratchpad
    resident, registers = occupancy(batch, spec, pad, laid.padding)
    waves = _Waves.of(batch, np.maximum(resident, 1), spec.units)
    by_tensor: list[TrafficShare] | None = None if details is None else []
    on_the_bus: Parts | None = None if details is None else {}
    moved_and_copied = traffic_bytes_and_instructions(
        batch, spec, waves.active[0], laid.counted, laid.padding, by_tensor
    )
    l2_bytes, dram_bytes, copies, addresses = moved_and_copied
    work = phases.work(batch, spec, (copies, addresses), laid)
    share = waves.active / batch.blocks
    dram = dram_time_s(batch, spec, dram_bytes * share, waves.active, dram_bytes, on_the_bus)
    l2 = l2_bytes * share / spec.layer("l2").bandwidth_bytes_per_s
    moved = memory = np.maximum(dram, l2)
    access: Floats | None = None
    if phases.access is not None:
        access = phases.access(batch, spec) * waves.per_unit
        memory = memory_s_with_accesses(moved, access, spec)
    stores: Floats | float = 0.0
    if phases.stores is not None:
        through, written = stored_traffic_shares(batch, spec, l2_bytes, dram_bytes)
        stores = phases.stores(batch, waves.per_unit, np.maximum(l2 * through, dram * written))
    wave = _full_and_tail_wave_s(memory, work, waves, batch, spec, phases, stores)
    every, core = waves.total(wave["seconds"]), waves.total(wave["core"])
    power = least_time_at_power_limit_s(batch, spec, work, core, (l2_bytes, dram_bytes))
    running = np.maximum(every, power)
    named = {"compute_s": wave["arithmetic"], "copy_s": wave["copying"], "dram_s": dram, "l2_s": l2}
    named["latency_s"] = wave["chain"]
    combining = combine_parts_s(batch, spec)
    terms: Terms = {key: waves.total(value) for key, value in named.items()}
    terms["compute_s"] = np.where(power > every, np.maximum(terms["compute_s"], power), terms["compute_s"])
    terms["latency_s"] = terms["latency_s"] + combining
    launches = 1 + (batch.split_k > 1)
    terms["launch_s"] = np.asarray(launches * spec.execution.launch_s, np.float64)
    terms["seconds"] = np.where(resident > 0, running + terms["launch_s"] + combining, np.inf)
    terms["clock_hz"] = np.where(power > every, spec.clock_hz * every / running, spec.clock_hz)
    terms.update(dram_bytes=dram_bytes, l2_bytes=l2_bytes, scratchpad_bytes=pad.astype(float))
    terms.update(registers=registers.astype(float), blocks_per_unit=resident.astype(float))
    terms.update(blocks=batch.blocks.astype(float), threads=batch.threads_per_block.astype(float))
    terms["bank_conflicts"] = worst_conflicts(laid.conflicts, len(batch))
    terms["waves"] = waves.count.sum(axis=0).astype(np.float64)
    if details is not None:
        wave.update(every=every, core_total=core, power=power, running=running)
        wave.update(waves=waves, share=share, dram=dram, l2=l2, moved=moved, access=access, memory=memory)
        wave.update(batch=batch, spec=spec, terms=terms, combining=combining, launches=launches, laid=laid)
        details.append(wave | {"bus": on_the_bus, "by_tensor": by_tensor, "scratchpad": pad})
    return terms
