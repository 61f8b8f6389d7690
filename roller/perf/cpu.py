"""The CPU half of the micro performance model: micro-kernel cycles, cache traffic, packing, cores.

The same terms as on a GPU under other names: the vector unit is the TEU, cores are the units, a task
(the ``l2`` tile) is the block, the micro-kernel is the register tile. Per reduction point a micro-kernel
needs the largest of its FMA, load, issue and dependence cycles; per task its panels come through the
caches; packing is traffic. Tiles at the end of an axis overlap their neighbour instead of padding, so
work is counted in whole register tiles. Out-of-order cores overlap arithmetic with cache traffic, hence
``max``; packing and the wake-up of the workers come before it and are added.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from roller.expr import instruction_mix
from roller.hardware import DeviceSpec
from roller.perf.batch import TileBatch
from roller.perf.phases import overlapped
from roller.tile.geometry import Access, Floats, Ints

#: Cycles a micro-kernel needs around its loop, and a copied row around its elements: instructions of our templates.
KERNEL_CYCLES, ROW_CYCLES = 10.0, 8.0
#: Share of the gather time that vectors of a panel row take: loaded whole, or collected through a gathered index.
WHOLE_ROWS, GATHERED_ROWS = 0.25, 0.6

Terms = dict[str, Floats]


def lane_count(spec: DeviceSpec, itemsize_bytes: int) -> int:
    """Return elements of one vector register."""
    return max(1, spec.teu.lanes * 4 // itemsize_bytes)


def lane_distance(access: Access, axis: int) -> int:
    """Return the distance in memory (elements) between neighbouring lanes along ``axis``; 0 is a broadcast."""
    if not access.uses[axis]:
        return 0
    pitch, step = 1, 0
    for d in range(len(access.tensor.shape) - 1, -1, -1):
        for t in access.index[d].terms:
            if access.axis_names[axis] == t.axis:
                # A quasi-affine axis is contiguous where its fastest part walks the last dimension.
                step = pitch * abs(t.coef) if not step else min(step, pitch * abs(t.coef))
        pitch *= access.tensor.shape[d]
    return step


def vector_operations(batch: TileBatch, lanes: int) -> Ints:
    """Return vector registers of accumulators of one micro-kernel, ``(N,)``."""
    v = batch.vector_axis
    register = np.where(batch.geometry.spatial, effective_register(batch, lanes), 1)
    outputs: Ints = register.prod(axis=1)
    return outputs if v is None else outputs // register[:, v] * -(-register[:, v] // lanes)


def effective_register(batch: TileBatch, lanes: int) -> Ints:
    """Return register tiles as the template uses them: inside their axis, whole vectors, all of equal size.

    56 columns by a tile of 48 are two tiles of 32: the last tile overlaps its neighbour instead of being padded.
    """
    g, v = batch.geometry, batch.vector_axis
    tile = np.minimum(batch.register, g.extents)
    unit = np.ones_like(tile)
    if v is not None:
        unit[:, v] = np.minimum(lanes, 1 << np.log2(tile[:, v]).astype(np.int64))
        tile[:, v] = tile[:, v] // unit[:, v] * unit[:, v]
    even = -(-g.extents // -(-g.extents // tile))
    return np.asarray(-(-even // unit) * unit)


def price(batch: TileBatch, spec: DeviceSpec) -> Terms:
    """Price a batch on a CPU; returns ``seconds`` and its terms as arrays ``(N,)``."""
    return _tiled(batch, spec) if batch.structure == "tiled" else _streamed(batch, spec)


def _imbalance(batch: TileBatch, spec: DeviceSpec) -> tuple[Floats, Ints]:
    """Return cores' idle factor for whole tasks, and the number of tasks."""
    tiles = -(-batch.geometry.extents // effective_register(batch, lane_count(spec, 4)))
    per_task = np.maximum(1, batch.block // batch.register)
    tasks = np.where(batch.geometry.spatial, -(-tiles // per_task), 1).prod(axis=1)
    return -(-tasks // spec.units) * spec.units / tasks, tasks


def operand_vectors(batch: TileBatch, lanes: int) -> Ints:
    """Return vector registers that hold one row of the vector operand while the rows pass, ``(N,)``."""
    v = batch.vector_axis
    if v is None:
        return np.ones(len(batch), np.int64)
    return np.asarray(-(-effective_register(batch, lanes)[:, v] // lanes))


def _micro_kernel_cycles(batch: TileBatch, spec: DeviceSpec, lanes: int) -> tuple[Floats, Floats]:
    """Return cycles per reduction point and cycles of the write-back of one micro-kernel."""
    g, anchor = batch.geometry, batch.geometry.expr.anchor
    rate = spec.compute.ops_per_cycle_per_unit
    v = batch.vector_axis
    register = np.where(g.spatial, effective_register(batch, lane_count(spec, 4)), 1)
    vectors = vector_operations(batch, lanes).astype(np.float64)
    width = spec.teu.lanes
    fma = sum(vectors * n * width / rate[c] for c, n in instruction_mix(anchor.body, anchor.combiner).items())
    loads = gathers = np.zeros(len(batch))
    for a in g.loads:
        elements = a.elements(register).astype(np.float64)
        if v is None or not a.uses[v]:
            loads = loads + elements
        elif _lanes_together(a, v, a.tensor.name in batch.staged):
            loads = loads + elements / np.minimum(lanes, np.maximum(1, register[:, v]))
        else:
            gathers = gathers + elements
    load = (loads + 2 * gathers) * width / rate["load_store"]
    issue = (vectors + loads + 2 * gathers) * width / rate["issue"]
    latency = spec.execution.step_latency_s * spec.clock_hz
    cycles = np.maximum(np.maximum(fma, load), np.maximum(issue, latency)) + spec.execution.step_issue_s * spec.clock_hz
    cycles = cycles + _page_misses(batch, spec) + _set_conflicts(batch, spec, register)
    outputs = register.prod(axis=1).astype(np.float64)
    contiguous = v is not None and lane_distance(g.store, v) == 1
    epilogue = sum(
        vectors * n * width / rate[c]
        for s in g.expr.stages
        if s is not anchor
        for c, n in instruction_mix(s.body, None).items()
    )
    scatter = (spec.execution.element_scatter_s or 0.0) * spec.clock_hz
    write = vectors * 2 if contiguous or v is None else outputs * scatter + vectors
    return cycles, write + epilogue + KERNEL_CYCLES + _partial_lines(batch, spec, register)


def _lanes_together(access: Access, v: int, staged: bool) -> bool:
    """Whether neighbouring lanes are neighbours in memory as the micro-kernel reads them.

    Panels are packed with the lanes innermost. A box keeps the tensor's layout (its last dimension
    de-interleaved), so only an axis that walks the last dimension gives vectors.
    """
    if lane_distance(access, v) == 1:
        return True
    if not _halo(access):
        return staged
    return staged and bool(access.coefficients[-1, v])


def _partial_lines(batch: TileBatch, spec: DeviceSpec, register: Ints) -> Floats:
    """Return cycles a micro-kernel's stores wait for lines they fill only in part.

    A line that is not written whole is fetched first, from the layer that holds the output.
    """
    g = batch.geometry
    line = spec.layer("l1").line_bytes or spec.layer("l1").transaction_bytes
    rows, run = g.store.runs(np.where(g.spatial, register, g.extents))
    size = g.store.tensor.itemsize_bytes
    layer = spec.layer("l2" if g.store.tensor.nbytes <= _room(spec, "l2") else "l3")
    partial = np.where(run * size % line == 0, 0.0, np.where(run * size < line, 1.0, 2.0))
    # Several misses are in flight at once; what is left of one is its share of the latency.
    return np.asarray(
        rows * partial * (layer.latency_s or 0.0) * spec.clock_hz / (spec.execution.misses_in_flight or 1)
    )


def _page_misses(batch: TileBatch, spec: DeviceSpec) -> float:
    """Return cycles per reduction point lost to first-level TLB misses of operands read in place.

    An operand whose innermost reduction axis steps a page or more touches one page per reduction point; with more
    points than the TLB holds, every pass misses again.
    """
    l1, g = spec.layer("l1"), batch.geometry
    page = l1.page_bytes
    reductions = np.flatnonzero(~g.spatial)
    if not l1.tlb_entries or not page or not len(reductions):
        return 0.0
    inner = int(reductions[-1])
    points = int(g.extents[inner])
    total = 0.0
    for a in g.loads:
        if a.tensor.name in batch.staged:
            continue
        share = min(1.0, lane_distance(a, inner) * a.tensor.itemsize_bytes / page)
        if points * share > l1.tlb_entries:
            total += (l1.tlb_miss_s or 0.0) * spec.clock_hz * share
    return total


def _set_conflicts(batch: TileBatch, spec: DeviceSpec, register: Ints) -> Floats:
    """Return cycles per reduction point lost where broadcast rows read in place meet in the same cache sets.

    Rows ``pitch`` bytes apart start in ``page / gcd(pitch, page)`` places of a way; where more of them share a place
    than two thirds of the ways, they evict each other and every line comes from L2 again.
    """
    g, l1 = batch.geometry, spec.layer("l1")
    total = np.zeros(len(batch))
    page, line = l1.page_bytes, l1.line_bytes
    if not page or not line or batch.vector_axis is None:
        return total
    ways = l1.capacity_bytes // page
    miss = (spec.layer("l2").latency_s or 0.0) * spec.clock_hz / (spec.execution.misses_in_flight or 1)
    for a in g.loads:
        if a.tensor.name in batch.staged or a.uses[batch.vector_axis]:
            continue
        for axis in np.flatnonzero(a.uses & g.spatial):
            pitch = lane_distance(a, int(axis)) * a.tensor.itemsize_bytes
            places = page // math.gcd(pitch, page) if pitch >= line else page // line
            rows = register[:, axis]
            crowded = -(-rows // places) > 2 * ways // 3
            total = total + np.where(crowded, rows * miss * a.tensor.itemsize_bytes / line, 0.0)
    return total


def _halo(access: Access) -> bool:
    """Whether staging copies the box of the tensor (strides or windows) instead of gathering a panel."""
    windows = (np.count_nonzero(access.coefficients, axis=1) > 1).any()
    return not access.gather and bool(windows or (np.abs(access.coefficients) > 1).any())


def _room(spec: DeviceSpec, name: str) -> int:
    """Return bytes of a cache that reused data can hold while streams pass through it."""
    layer = spec.layer(name)
    return layer.usable_bytes or layer.capacity_bytes


def _tiled(batch: TileBatch, spec: DeviceSpec) -> Terms:
    g = batch.geometry
    size = g.store.tensor.itemsize_bytes
    lanes = lane_count(spec, 4)
    register = np.where(g.spatial, effective_register(batch, lane_count(spec, 4)), 1)
    tiles = np.where(g.spatial, -(-g.extents // register), 1)
    kernels = tiles.astype(np.float64).prod(axis=1)
    points = float(g.extents[~g.spatial].prod())
    cycles, write = _micro_kernel_cycles(batch, spec, lanes)
    imbalance, tasks = _imbalance(batch, spec)
    compute = kernels * (points * cycles + write) / (spec.clock_hz * spec.units) * imbalance
    l2, l3 = _cache_traffic(batch, spec, register, tiles, kernels)
    pack = _packing(batch, spec, register, tiles, tasks)
    dram_bytes = _dram_bytes(batch, spec)
    terms: Terms = {
        "compute_s": compute,
        "l2_s": l2 / spec.layer("l2").bandwidth_bytes_per_s * imbalance,
        "l3_s": l3 / spec.layer("l3").bandwidth_bytes_per_s * imbalance,
        "dram_s": np.broadcast_to(dram_bytes / spec.layer("dram").bandwidth_bytes_per_s, compute.shape),
        "pack_s": pack,
        "launch_s": np.full(len(batch), spec.execution.launch_s),
    }
    memory = np.maximum.reduce([terms["l2_s"], terms["l3_s"], terms["dram_s"]])
    slowest = overlapped(memory, compute, spec.execution.misses_in_flight or 1)
    usable = spec.limits.usable_vector_registers or 0  # the schema requires it of a CPU
    accumulators = vector_operations(batch, lanes)
    every = accumulators + operand_vectors(batch, lanes) + 1  # one more holds the broadcast
    fits = (accumulators <= usable) & (every < (spec.limits.vector_registers or usable))
    terms["seconds"] = np.where(fits, slowest + pack + terms["launch_s"], np.inf)
    terms["dram_bytes"] = np.broadcast_to(dram_bytes, compute.shape).astype(float)
    terms["tasks"] = tasks.astype(float)
    terms["vectors"] = vector_operations(batch, lanes) * size / size
    return terms


def _cache_traffic(
    batch: TileBatch, spec: DeviceSpec, register: Ints, tiles: Ints, kernels: Floats
) -> tuple[Floats, Floats]:
    """Return bytes from L2 into L1 and from L3 into L2 over all micro-kernels.

    The packed panel of the vector axis stays in L1 while the other tiles of the task pass, if it fits;
    a task's panels stay in L2 if they fit, else they stream from L3 once per pass.
    """
    g, v = batch.geometry, batch.vector_axis
    whole = np.where(g.spatial, register, g.extents)
    per_task = np.maximum(1, np.minimum(batch.block // batch.register, tiles))
    l1, l2 = _room(spec, "l1"), _room(spec, "l2")
    to_l1 = to_l2 = np.zeros(len(batch))
    others = per_task.prod(axis=1) / (per_task[:, v] if v is not None else 1)
    task = np.where(g.spatial, np.minimum(per_task * register, g.extents), g.extents)
    held = sum((a.elements(task) * float(a.tensor.itemsize_bytes) for a in g.loads), np.zeros(len(batch)))
    for a in g.loads:
        panel = a.elements(whole) * float(a.tensor.itemsize_bytes)
        stays = v is not None and a.uses[v]
        fits = panel <= l1 * (1.0 if a.tensor.name in batch.staged else _set_share(a, spec))
        passes = np.where(fits & bool(stays), kernels / others, kernels)
        to_l1 = to_l1 + passes * panel
        mine = a.elements(task) * float(a.tensor.itemsize_bytes)
        all_tasks = kernels / per_task.prod(axis=1)
        once = all_tasks * mine
        again = per_task[:, v] if v is not None and not stays else 1
        sweep = np.where(held <= l2, once, np.minimum(passes * panel, once * again))
        to_l2 = to_l2 + sweep
    return to_l1, to_l2


def _set_share(access: Access, spec: DeviceSpec) -> float:
    """Return the share of L1 that rows of a tile read in place can use: equal row pitches meet in the same sets.

    Rows ``pitch`` bytes apart start in ``page / gcd(pitch, page)`` different places of a way of ``page`` bytes (one way
    of an L1 indexed by the page offset).
    """
    shape, size = access.tensor.shape, access.tensor.itemsize_bytes
    line, page = spec.layer("l1").line_bytes, spec.layer("l1").page_bytes
    if len(shape) < 2 or not line or not page:
        return 1.0
    places = page // math.gcd(shape[-1] * size, page)
    return min(1.0, places * 2 * line / page)


def _packing(batch: TileBatch, spec: DeviceSpec, register: Ints, tiles: Ints, tasks: Ints) -> Floats:
    """Return seconds spent packing staged operands: the copy's instructions and its passes through a cache."""
    g, v = batch.geometry, batch.vector_axis
    total = np.zeros(len(batch))
    if not batch.staged:
        return total
    per_task = np.maximum(1, np.minimum(batch.block // batch.register, tiles))
    task = np.where(g.spatial, np.minimum(per_task * register, g.extents), g.extents)
    for a in g.loads:
        if a.tensor.name not in batch.staged:
            continue
        step = 0 if v is None else lane_distance(a, v)
        if _halo(a):
            box = a.elements(task) * float(a.tensor.itemsize_bytes)
            elements, cost = (
                a.elements(task) * tasks.astype(np.float64),
                np.full(len(batch), (spec.execution.element_copy_s or 0.0) * spec.clock_hz),
            )
            rows, _ = a.runs(task)
            cost = cost + rows * ROW_CYCLES / np.maximum(1, a.elements(task))
            # The box is written once and read at least once from the layer that holds it.
            total = total + 2.0 * box * tasks / _holding_bandwidth(box, spec)
        else:
            covered = np.where(a.uses & g.spatial, tiles * register, np.where(a.uses, g.extents, 1))
            elements = covered.astype(np.float64).prod(axis=1)
            inner = register[:, v] if v is not None and a.uses[v] and step == 1 else np.ones(len(batch))
            gather = (spec.execution.element_gather_s or 0.0) * spec.clock_hz
            cost = gather * np.where(inner >= spec.teu.lanes, GATHERED_ROWS if a.gather else WHOLE_ROWS, 1.0)
            panel = np.broadcast_to(elements * float(a.tensor.itemsize_bytes), (len(batch),))
            total = total + 2.0 * panel / _holding_bandwidth(panel, spec)
        total = total + elements * cost / (spec.clock_hz * spec.units)
    return total


def _holding_bandwidth(size_bytes: Any, spec: DeviceSpec) -> Floats:
    """Return bytes per second of the fastest layer that holds ``size_bytes``."""
    l1, l2, l3 = (spec.layer(n) for n in ("l1", "l2", "l3"))
    slower = np.where(
        size_bytes <= _room(spec, "l3"),
        l3.bandwidth_bytes_per_s,
        spec.layer("dram").bandwidth_bytes_per_s,
    )
    inner = np.where(size_bytes <= _room(spec, "l2"), l2.bandwidth_bytes_per_s, slower)
    return np.where(size_bytes <= _room(spec, "l1"), l1.bandwidth_bytes_per_s, inner)


def _dram_bytes(batch: TileBatch, spec: DeviceSpec) -> float:
    """Return bytes that must cross the memory bus: everything, unless it all stays in the last-level cache."""
    g = batch.geometry
    inputs = sum(a.tensor.nbytes for a in g.reads)
    outputs = sum(t.nbytes for t in g.expr.output_tensors)
    if inputs + outputs <= _room(spec, "l3"):
        return 0.0
    return float(inputs + 2 * outputs)  # write-allocate reads a line before it is written


def _streamed(batch: TileBatch, spec: DeviceSpec) -> Terms:
    """Element-wise passes and row reductions: vector arithmetic against the memory bus."""
    g = batch.geometry
    rate = spec.compute.ops_per_cycle_per_unit
    lanes = spec.teu.lanes
    v = batch.vector_axis
    imbalance, tasks = _imbalance(batch, spec)
    cycles = np.zeros(len(batch))
    for s in g.expr.stages:
        per_point = sum(n * lanes / rate[c] for c, n in instruction_mix(s.body, s.combiner).items())
        strided = [a for a in g.loads if v is not None and lane_distance(a, v) > 1]
        loads = max(1, len(s.loads)) * lanes / rate["load_store"]
        vectors = s.points / lanes
        filled = lanes if v is None else np.clip(np.minimum(batch.register[:, v], g.extents[v]), 1, lanes)
        used = lanes / filled
        scattered = float(lanes) if strided else 1.0
        cycles = cycles + vectors * used * np.maximum(per_point, loads * scattered)
    unroll = np.maximum(1, batch.register.prod(axis=1) / lanes)
    overhead = sum(s.points for s in g.expr.stages) / lanes / unroll * spec.execution.step_issue_s * spec.clock_hz
    if v is None:
        cycles = cycles * lanes
    compute = (cycles + overhead) / (spec.clock_hz * spec.units) * imbalance
    moved = sum(a.tensor.nbytes for a in g.reads) + 2 * sum(t.nbytes for t in g.expr.output_tensors)
    cached = moved <= _room(spec, "l3")
    layer = spec.layer("l3" if cached else "dram")
    memory = np.broadcast_to(np.float64(moved / layer.bandwidth_bytes_per_s), compute.shape) * imbalance
    per_task = tasks * spec.execution.barrier_s / spec.units
    terms: Terms = {
        "compute_s": compute,
        ("l3_s" if cached else "dram_s"): memory,
        "launch_s": np.full(len(batch), spec.execution.launch_s),
    }
    terms["seconds"] = np.maximum(compute, memory) + per_task + terms["launch_s"]
    terms["tasks"] = tasks.astype(float)
    return terms
