"""The GPU half of the micro performance model: a block's phases, occupancy, waves.

A block alternates a memory phase (global memory through L2 into scratchpad or registers) and a compute
phase (operands from scratchpad, arithmetic). Phases of one block follow each other and ``b`` co-resident
blocks overlap: a closed queueing network of two stations and ``b`` customers. With memory time ``M``,
compute time ``C`` and ``rho = min / max`` a unit needs ``max(M, C) * (1 - rho**(b+1)) / (1 - rho**b)``: the sum
for one block, the larger for many; and never less than the latency chain of one block. Waves of blocks
repeat that; the tail wave is paid for the blocks it really has. Sources: Roller (OSDI'22) sections 3.3
and 3.4; Buzen's throughput of a balanced central-server model; the rate of a register tile follows the
published V100 tables (``v100_sm_gflops.csv``): a reduction step of ``w`` warps per scheduler with ``r``
accumulators takes ``step_latency + w * (r * fma_cycles + step_issue)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from roller.expr import DTYPE_BYTES, Cast, Load, instruction_mix, walk
from roller.hardware import DeviceSpec
from roller.perf.batch import TileBatch
from roller.perf.phases import overlapped
from roller.tile.geometry import Access, Floats, Ints
from roller.tile.layout import row_axis
from roller.tile.transactions import tile_transaction_bytes, touched_bytes

#: Registers a thread of our templates needs beside accumulators and operand fragments (addresses, loop counters).
BASE_REGISTERS = 24
#: Instructions per copied vector (load, store, pointer step) of our templates.
COPY_INSTRUCTIONS = 3.0
#: Extra instructions per copied vector: for each dimension its position is split over (a division and a
#: remainder by constants), for each guarded bound, for each quasi-affine term that no loop hoists.
SPLIT_INSTRUCTIONS, GUARD_INSTRUCTIONS, GATHER_INSTRUCTIONS = 4.0, 2.0, 2.0
#: Independent loads a thread of our templates keeps in flight at most (unrolled copies).
LOADS_IN_FLIGHT = 8.0
#: Share of the shared cache one tensor may fill and still be there for the next wave.
CACHE_SHARE = 0.5

Terms = dict[str, Floats]


def register_words(batch: TileBatch) -> Ints:
    """Return 32-bit registers per thread for accumulators and operand fragments, ``(N,)``."""
    acc = max(1, batch.geometry.store.tensor.itemsize_bytes // 4)
    words = batch.register_outputs * acc
    for a in batch.geometry.loads:
        words = words + a.elements(batch.register) * max(1, a.tensor.itemsize_bytes // 4)
    return words


def allocated_registers(batch: TileBatch) -> Ints:
    """Return 32-bit registers per thread the compiler needs, allocation granularity excluded, ``(N,)``.

    Accumulators, fragments, and :data:`BASE_REGISTERS`. Where rows of a staged tile run along the innermost
    reduction axis, a vector read brings several points of the step at once, and the fragment holds them all.
    """
    g = batch.geometry
    words = batch.register_outputs * max(1, g.store.tensor.itemsize_bytes // 4)
    reductions = np.flatnonzero(~g.spatial)
    for a in g.loads:
        mine = a.elements(batch.register) * max(1, a.tensor.itemsize_bytes // 4)
        if batch.staged and len(reductions) and _row_axis(batch, a) == g.names[reductions[-1]]:
            step = batch.block[:, reductions[-1]] * a.tensor.itemsize_bytes // 4
            ahead = np.where(step % 4 == 0, 4, np.where(step % 2 == 0, 2, 1))
            mine = mine * np.maximum(1, ahead // np.maximum(1, batch.register_points))
        words = words + mine
    return words + BASE_REGISTERS


def _row_axis(batch: TileBatch, access: Access) -> str | None:
    if "row_axis" not in access._memo:
        anchor = batch.geometry.expr.anchor
        load = next(x for x in anchor.loads if x.tensor == access.tensor.name and x.index == access.index)
        access._memo["row_axis"] = row_axis(anchor, load, access.tensor)
    name: str | None = access._memo["row_axis"]
    return name


def row_elements(access: Access, tiles: Ints) -> tuple[Ints, Ints]:
    """Return rows and elements per row of a data tile as it lies in scratchpad (last dimension last)."""
    total = access.elements(tiles)
    if access.gather or access.coefficients.shape[0] == 0:
        return np.ones_like(total), total
    last = np.maximum(1, access.extents(tiles)[:, -1])
    return total // last, last


def scratchpad_bytes(batch: TileBatch, padding: Mapping[str, Ints] | None = None) -> Ints:
    """Return bytes of scratchpad one block allocates, storage padding included, ``(N,)``."""
    total = np.zeros(len(batch), np.int64)
    if not batch.staged:
        return total
    for a in batch.geometry.loads:
        elements = a.allocated_elements(batch.block)
        if padding and a.tensor.name in padding:
            elements = elements + elements // _row_extent(batch, a) * padding[a.tensor.name]
        total = total + elements * a.tensor.itemsize_bytes
    return total


def _row_extent(batch: TileBatch, access: Access) -> Ints:
    """Elements of one row of a staged tile, storage padding excluded, ``(N,)``."""
    axis = _row_axis(batch, access)
    if axis is not None:
        return batch.block[:, batch.geometry.names.index(axis)]
    steps = np.abs(access.coefficients[-1]) if access.coefficients.shape[0] else 0
    return np.asarray(1 + ((batch.block - 1) * steps).sum(axis=1))


def occupancy(batch: TileBatch, spec: DeviceSpec, scratchpad: Ints) -> tuple[Ints, Ints]:
    """Return blocks co-resident on one unit (0 where the block cannot run) and registers per thread."""
    lim = spec.limits
    threads = batch.threads_per_block
    teus = -(-threads // spec.teu.lanes)
    unit = max(1, (lim.register_allocation_unit or 1) // spec.teu.lanes)  # allocated per TEU
    registers = -(-allocated_registers(batch) // unit) * unit
    assert lim.registers_per_unit and lim.threads_per_unit and lim.blocks_per_unit  # the schema requires them of a GPU
    blocks = np.minimum(lim.blocks_per_unit, lim.threads_per_unit // (teus * spec.teu.lanes))
    # The register file is split evenly among the schedulers, and a TEU's registers lie in one part.
    parts = spec.teu.schedulers_per_unit
    blocks = np.minimum(blocks, lim.registers_per_unit // parts // (registers * spec.teu.lanes) * parts // teus)
    shared = spec.layer("shared")
    blocks = np.where(scratchpad > 0, np.minimum(blocks, shared.capacity_bytes // np.maximum(scratchpad, 1)), blocks)
    assert lim.threads_per_block and lim.usable_registers_per_thread  # likewise
    budget = shared.usable_bytes or shared.capacity_bytes
    fits = (threads <= lim.threads_per_block) & (scratchpad <= budget)
    fits &= register_words(batch) <= lim.usable_registers_per_thread
    fits &= registers <= (lim.registers_per_thread or lim.usable_registers_per_thread)
    return np.where(fits, blocks, 0).astype(np.int64), registers


def _global_traffic(batch: TileBatch, spec: DeviceSpec, resident: Ints) -> tuple[Floats, Floats, Floats]:
    """Return bytes through L2, bytes from and to DRAM, and vectors copied per block and step."""
    g, block = batch.geometry, batch.block
    transaction = spec.layer("l2").transaction_bytes
    fetch = spec.layer("global").fetch_bytes or spec.layer("global").transaction_bytes
    l2 = dram = np.zeros(len(batch))
    vectors = np.zeros(len(batch))
    share = _wave_shares(batch, resident)
    capacity = spec.layer("l2").capacity_bytes * CACHE_SHARE
    for a in g.reads:
        moved, alignment = tile_transaction_bytes(a, block, transaction)
        elements = a.elements(block)
        rows, run = a.runs(block)
        waste = moved / (rows * run * a.tensor.itemsize_bytes)
        total = a.loaded_elements(block) * a.tensor.itemsize_bytes * waste
        touched = _touched(a, fetch)
        l2 = l2 + total
        # Blocks side by side in a wave share the transactions at their borders; gaps of strided rows are in `touched`.
        again = a.loaded_elements(block) * a.tensor.itemsize_bytes * share[a.tensor.name]
        dram = dram + (touched if a.tensor.nbytes <= capacity else np.maximum(touched, again))
        width = np.clip(np.minimum(alignment, 16) // a.tensor.itemsize_bytes, 1, None)
        cost = COPY_INSTRUCTIONS + _address_instructions(a, block)
        if any(a is x for x in g.loads):  # an epilogue's operands come once per tile, with the store
            vectors = vectors + elements / np.where(a.gather | (a.bounds > 0), 1, width) * cost
    moved, _ = tile_transaction_bytes(g.store, block, transaction)
    stored = g.store.tensor.nbytes * np.maximum(1.0, moved / (g.store.elements(block) * g.store.tensor.itemsize_bytes))
    partial_bytes = (
        g.store.tensor.elements * DTYPE_BYTES[g.expr.anchor.acc_dtype]
    )  # parts stay in the accumulator's type
    partial = np.where(batch.split_k > 1, 2.0 * batch.split_k, 0.0) * partial_bytes
    return l2 + stored + partial, dram + np.minimum(stored, 2.0 * g.store.tensor.nbytes) + partial, vectors


def _address_instructions(access: Access, block: Ints) -> Floats:
    """Return instructions that find one element or vector of a data tile, beyond the copy itself."""
    guards = GUARD_INSTRUCTIONS * access.bounds
    if access.gather:
        quasi = sum(not t.is_affine for i in access.index for t in i.terms)
        return np.full(len(block), guards + GATHER_INSTRUCTIONS * quasi)
    if not access.coefficients.shape[0]:
        return np.full(len(block), guards)
    wide = (access.extents(block) > 1).sum(axis=1)
    return np.asarray(guards + SPLIT_INSTRUCTIONS * np.maximum(0, wide - 1))


def _touched(access: Access, fetch_bytes: int) -> float:
    """Return :func:`touched_bytes`, computed once per access."""
    if fetch_bytes not in access._memo:
        access._memo[fetch_bytes] = touched_bytes(access, fetch_bytes)
    return float(access._memo[fetch_bytes])


def _wave_shares(batch: TileBatch, resident: Ints) -> dict[str, Floats]:
    """Return, per tensor, distinct data tiles over blocks of one wave.

    Blocks run along the output's contiguous axis first.
    """
    g = batch.geometry
    left = np.minimum(resident, batch.blocks)
    in_wave = np.ones_like(batch.block)
    for a in reversed(g.order):
        in_wave[:, a] = np.minimum(batch.counts[:, a], left)
        left = -(-left // in_wave[:, a])
    every = in_wave.prod(axis=1)
    return {x.tensor.name: np.where(x.uses, in_wave, 1).prod(axis=1) / every for x in g.reads}


def _operand_wavefronts(batch: TileBatch, spec: DeviceSpec) -> tuple[Floats, Floats]:
    """Return scratchpad wavefronts and load instructions of one warp for one register tile."""
    shared = spec.layer("shared")
    words_per_wavefront = (shared.banks or spec.teu.lanes) * (shared.bank_width_bytes or 4) // 4
    warp = batch.register * batch.lanes(spec.teu.lanes)
    step_tile = np.where(batch.geometry.spatial, batch.register, batch.block)
    wavefronts = instructions = np.zeros(len(batch))
    for a in batch.geometry.loads:
        words = a.elements(batch.register) * a.tensor.itemsize_bytes / 4
        # A thread's elements along the tensor's last dimension, over the unrolled step, are read as vectors.
        run = row_elements(a, step_tile)[1] * a.tensor.itemsize_bytes // 4
        width = np.where(run % 4 == 0, 4, np.where(run % 2 == 0, 2, 1))
        if a.coefficients.shape[0] and np.count_nonzero(a.coefficients[-1]) > 1:
            width = np.ones_like(width)  # a window starts anywhere: no vector alignment
        count = words / width
        unique = a.elements(warp) * a.tensor.itemsize_bytes / 4
        wavefronts = wavefronts + np.maximum(count, unique / words_per_wavefront)
        instructions = instructions + count
    return wavefronts, instructions


@dataclass(frozen=True)
class _Work:
    """What one block does per reduction step, in cycles of a scheduler or of the scratchpad pipeline.

    ``fma`` and ``overhead`` are cycles per TEU and register group (FMA pipe; operand loads and loop), ``issue`` its
    issue slots, ``scratchpad`` its wavefronts, ``copies`` and ``finish`` issue slots per TEU and step, and once at
    the end; ``groups`` register groups per step; ``chain`` latency of one group, ``combine`` of the final exchange.
    """

    teus: Floats
    fma: Floats
    overhead: Floats
    issue: Floats
    scratchpad: Floats
    copies: Floats
    finish: Floats
    groups: Floats
    steps: Floats
    chain: float
    combine: Floats

    def cycles(self, blocks: Ints | float, schedulers: int) -> Floats:
        """Return cycles one unit needs for the arithmetic of ``blocks`` co-resident blocks."""
        teus = self.teus * blocks
        share = teus / schedulers
        busy = self.chain + np.maximum(1.0, share) * self.fma + share * self.overhead
        group = np.maximum(np.maximum(busy, share * self.issue), teus * self.scratchpad)
        return np.asarray(self.steps * (self.groups * group + share * self.copies) + self.combine + share * self.finish)


def _work(batch: TileBatch, spec: DeviceSpec, vectors: Floats) -> _Work:
    """Return the work of every block of a batch; ``vectors`` are copy instructions per block and step."""
    g, ex = batch.geometry, spec.execution
    per_unit = spec.compute.ops_per_cycle_per_unit
    schedulers, lanes = spec.teu.schedulers_per_unit, spec.teu.lanes
    anchor = g.expr.anchor
    mix = dict(instruction_mix(anchor.body, anchor.combiner))
    converted = {n.arg.tensor for n in walk(anchor.body) if isinstance(n, Cast) and isinstance(n.arg, Load)}
    if batch.staged and "convert" in mix:
        mix["convert"] -= len(converted)  # operands are converted once per fragment, not once per point
    cycles = sum(n * lanes * schedulers / _rate(per_unit, c, anchor.acc_dtype) for c, n in mix.items())
    count = (batch.register_outputs * batch.register_points).astype(np.float64)
    conversions = zero = np.zeros(len(batch))
    for a in g.loads if batch.staged else ():
        if a.tensor.name in converted:
            each = lanes * schedulers / _rate(per_unit, "convert", a.tensor.dtype)
            conversions = conversions + a.elements(batch.register) * each
    wavefronts, loads = _operand_wavefronts(batch, spec) if batch.staged else (zero, zero)
    rate = per_unit["issue"] / lanes / schedulers  # instructions per cycle and scheduler
    latency = ex.step_latency_s * spec.clock_hz
    inner, combine = batch.step_points / batch.register_points, zero
    if batch.structure == "rows":  # reduction points are spread over threads, then combined lane by lane
        per_thread = batch.threads[:, ~g.spatial].prod(axis=1)
        inner = inner / per_thread
        combine = np.ceil(np.log2(np.maximum(per_thread, 1))) * (latency + 2 / rate) * batch.register_outputs
    return _Work(
        teus=(-(-batch.threads_per_block // lanes)).astype(np.float64),
        fma=count * cycles + conversions,
        # The measured issue time is that of a step with up to four vector loads; more of them take more slots.
        overhead=ex.step_issue_s * spec.clock_hz * np.maximum(1.0, loads / 4),
        issue=(count * sum(mix.values()) + loads) / rate,
        scratchpad=wavefronts * lanes / per_unit["load_store"],
        copies=vectors / np.maximum(1, batch.threads_per_block) / rate,
        finish=np.asarray(batch.register_outputs * (COPY_INSTRUCTIONS + _epilogue_instructions(batch)) / rate),
        groups=inner,
        steps=batch.steps.astype(np.float64),
        chain=latency,
        combine=combine,
    )


def _rate(per_unit: Mapping[str, float], instruction_class: str, dtype: str) -> float:
    return per_unit.get(f"{instruction_class}.{dtype}", per_unit.get(instruction_class, per_unit["fma"]))


def _epilogue_instructions(batch: TileBatch) -> float:
    expr = batch.geometry.expr
    return float(sum(sum(instruction_mix(s.body, None).values()) for s in expr.stages if s is not expr.anchor))


def dram_bandwidth(spec: DeviceSpec, warps: Floats | Ints) -> Floats:
    """Return DRAM bytes per second that ``warps`` resident warps of the device draw together.

    ``((warps * per_teu) ** -p + peak ** -p) ** (-1 / p)``: few warps are bound by latency, many by the bus,
    and queueing rounds the knee (``v100_glbmem_small.csv``).
    """
    layer = spec.layer("global")
    peak = layer.bandwidth_bytes_per_s
    if not layer.bandwidth_per_teu_bytes_per_s:
        return np.full(np.shape(warps), peak)
    p = layer.saturation_exponent or 2.0
    linear = np.maximum(warps, 1e-9) * layer.bandwidth_per_teu_bytes_per_s
    return np.asarray(((linear / peak) ** -p + 1.0) ** (-1.0 / p) * peak)


def compute_rate_per_unit(spec: DeviceSpec, register_elements: Floats, warps: Floats) -> Floats:
    """Return floating-point operations per second of one unit for a matmul register tile.

    ``register_elements`` accumulators per thread, ``warps`` resident on the unit: the compute term alone, as
    the published table measures it.
    """
    schedulers = spec.teu.schedulers_per_unit
    cycles = spec.teu.lanes * schedulers / spec.compute.ops_per_cycle_per_unit["fma"]
    busy = np.maximum(1.0, warps / schedulers) * register_elements * cycles
    step = spec.execution.step_latency_s * spec.clock_hz + busy
    step = step + warps / schedulers * spec.execution.step_issue_s * spec.clock_hz
    return 2.0 * register_elements * spec.teu.lanes * warps * spec.clock_hz / step


def _loads_in_flight(batch: TileBatch) -> Floats:
    """Return 4-byte loads a thread issues before it must wait: the copies of one step are independent.

    The published bandwidth table is for one load per thread; more in flight saturate DRAM with fewer warps.
    """
    words = np.zeros(len(batch))
    for a in batch.geometry.reads:
        words = words + a.elements(batch.block) * (a.tensor.itemsize_bytes / 4)
    return np.asarray(np.clip(words / batch.threads_per_block, 1.0, LOADS_IN_FLIGHT))


def lower_bound_s(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return a time no program of the batch can beat: its arithmetic alone, copies and memory free, ``(N,)``."""
    resident, _ = occupancy(batch, spec, scratchpad_bytes(batch))
    occ = np.maximum(resident, 1)
    work = _work(batch, spec, np.zeros(len(batch)))
    schedulers = spec.teu.schedulers_per_unit
    blocks = batch.blocks
    full = blocks // (occ * spec.units)
    rest = blocks - full * occ * spec.units
    cycles = full * work.cycles(occ, schedulers)
    cycles = cycles + (rest > 0) * work.cycles(np.maximum(-(-rest // spec.units), 1), schedulers)
    return np.where(resident > 0, cycles / spec.clock_hz, np.inf)


def price(batch: TileBatch, spec: DeviceSpec, scratchpad: Ints | None = None) -> Terms:
    """Price a batch on a GPU.

    Returns arrays by name: ``seconds`` (infinite where a block cannot run) and its terms: ``compute_s``, ``dram_s``,
    ``l2_s``, ``latency_s``, ``launch_s``, ``dram_bytes``, ``l2_bytes``, ``scratchpad_bytes``, ``registers``,
    ``blocks_per_unit``, ``waves``.
    """
    pad = scratchpad_bytes(batch) if scratchpad is None else scratchpad
    resident, registers = occupancy(batch, spec, pad)
    occ = np.maximum(resident, 1)
    units = spec.units
    l2_bytes, dram_bytes, vectors = _global_traffic(batch, spec, occ * units)
    blocks = batch.blocks
    full = blocks // (occ * units)
    rest = blocks - full * occ * units
    tail = -(-rest // units)
    terms: Terms = {}
    total = np.zeros(len(batch))
    flight = _loads_in_flight(batch)
    work = _work(batch, spec, vectors)
    alone = work.cycles(1.0, spec.teu.schedulers_per_unit) / spec.clock_hz
    hops = batch.steps + 1 if batch.staged else np.minimum(batch.steps + 1, 2)
    barrier_s = 2 * spec.execution.barrier_s * bool(batch.staged)
    chain = alone + hops * (spec.layer("global").latency_s or 0.0) + batch.steps * barrier_s
    teus = -(-batch.threads_per_block // spec.teu.lanes) * flight
    for count, b, active in ((full, occ, occ * units), (rest > 0, np.maximum(tail, 1), rest)):
        share = active / blocks
        dram = dram_bytes * share / dram_bandwidth(spec, teus * active)
        l2 = l2_bytes * share / spec.layer("l2").bandwidth_bytes_per_s
        memory = np.maximum(dram, l2)
        compute = work.cycles(b, spec.teu.schedulers_per_unit) / spec.clock_hz
        total = total + count * np.maximum(overlapped(memory, compute, b), chain)
        for key, value in (("compute_s", compute), ("dram_s", dram), ("l2_s", l2), ("latency_s", chain)):
            terms[key] = terms[key] + count * value if key in terms else count * value
    launches = 1 + (batch.split_k > 1)
    terms["launch_s"] = np.asarray(launches * spec.execution.launch_s, np.float64)
    terms["seconds"] = np.where(resident > 0, total + terms["launch_s"], np.inf)
    terms.update(dram_bytes=dram_bytes, l2_bytes=l2_bytes, scratchpad_bytes=pad.astype(float))
    terms.update(registers=registers.astype(float), blocks_per_unit=resident.astype(float))
    terms["waves"] = (full + (rest > 0)).astype(np.float64)
    return terms
