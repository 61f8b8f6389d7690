"""Cycles of a CPU micro-kernel: arithmetic, loads, issue, and the cost of operands that are read in place."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.phase_overlap import time_of_two_overlapping_phases
from roller.perf.tile_batch import TileBatch
from roller.templates.cpu.common.cache_traffic import cache_traffic_bytes
from roller.templates.cpu.common.conversion_costs import (
    BROADCAST_CONVERSIONS,
    count_load_conversions,
    kernel_conversion_cycles,
    store_conversion_cycles,
)
from roller.templates.cpu.common.lanes_and_cache_room import (
    arithmetic_cycles,
    lane_distance,
    relative_partial_vector_cost,
    usable_cache_bytes,
)
from roller.templates.cpu.common.packing_costs import packing_s, task_dram_bytes
from roller.templates.cpu.common.task_scheduling_costs import (
    Parts,
    Terms,
    combine_reduction_parts_s,
    imbalance,
    start_parallel_loops_s,
)
from roller.templates.cpu.decisions import BOX, IN_PLACE, PANEL, Mask, decisions_for_device, vector_elements
from roller.templates.cpu.narrow_floats import computed_itemsize_bytes, rows_are_converted
from roller.tile.geometry import Access, Floats, Ints

#: Number of cycles that a micro-kernel takes in addition to its loop, in our templates' code.
KERNEL_CYCLES = 10.0


def micro_kernel_cycles(batch: TileBatch, spec: DeviceSpec) -> tuple[Floats, Floats]:
    """Return the cycles of one micro-kernel per reduction point, and the cycles of its write-back."""
    g, d = batch.geometry, decisions_for_device(batch, spec)
    rate, v, lanes = spec.compute.ops_per_cycle_per_unit, batch.vector_axis, vector_elements(batch, spec)
    register, vectors = d.tile, d.vectors.astype(np.float64)
    width, anchor, share = spec.teu.lanes, g.expr.anchor, relative_partial_vector_cost(d.lanes, spec, lanes)
    fma = arithmetic_cycles(anchor, vectors * share, spec, lanes, count_load_conversions(g.expr, anchor))
    loads = gathers = scattered = np.zeros(len(batch))
    unrolled = np.where(d.unrolled, g.extents, 1)
    steps = unrolled.prod(axis=1).astype(np.float64)
    split = 1.0 if spec.execution.split_load_slots is None else spec.execution.split_load_slots
    for a in g.loads:
        elements = _elements_loaded_per_step(a, v, register, unrolled, steps)
        convert = kernel_conversion_cycles(a, batch, spec)
        if v is None or not a.uses[v]:
            loads = loads + elements
            fma = fma + elements * convert * BROADCAST_CONVERSIONS
        elif _lanes_are_adjacent(a, batch, spec):
            vectors_read = elements / np.minimum(lanes, np.maximum(1, register[:, v]))
            loads = loads + vectors_read * (1.0 + split * _line_crossing_share(a, batch, spec))
            fma = fma + vectors_read * convert
        else:
            # If the collected vectors do not fit the registers, vectors common to several steps are collected again.
            held = vectors + elements * steps / lanes
            kept = held < (spec.limits.vector_registers or np.inf)
            gathers = gathers + np.where(kept, elements, elements + a.points(register))
            fma = fma + elements * convert
            scattered = scattered + _scattered_line_cycles(a, batch, spec)
    load = (loads * share + gathers) * width / rate["load_store"]
    issue = (vectors + loads + 2 * gathers) * width / rate["issue"]
    latency = spec.execution.step_latency_s * spec.clock_hz
    issue = issue + spec.execution.step_issue_s * spec.clock_hz / steps
    # Misses of pages and lines overlap each other and the arithmetic, so they limit the rate.
    misses = _tlb_miss_cycles(batch, spec) + _set_conflict_cycles(batch, spec)
    misses = misses / (spec.execution.misses_in_flight or 1)
    bounds = (load, issue, misses, np.full(len(batch), latency))
    return functools.reduce(np.maximum, bounds, fma) + scattered, write_back_cycles(batch, spec)


def write_back_cycles(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return how many cycles one micro-kernel takes for its write-back and epilogue, including its fixed cost."""
    g, d = batch.geometry, decisions_for_device(batch, spec)
    vectors, outputs = d.vectors.astype(np.float64), d.tile.prod(axis=1).astype(np.float64)
    epilogue = epilogue_cycles(batch, spec)
    scatter = (spec.execution.element_scatter_s or 0.0) * spec.clock_hz
    write = np.where(d.stores_vectors, vectors * 2, outputs * scatter + vectors)
    return np.asarray(write + epilogue + vectors * store_conversion_cycles(g.expr, spec) + KERNEL_CYCLES)


def epilogue_cycles(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return how many cycles one micro-kernel's epilogue takes on vectors."""
    g, lanes, vectors = (
        batch.geometry,
        vector_elements(batch, spec),
        decisions_for_device(batch, spec).vectors.astype(np.float64),
    )
    cycles = (arithmetic_cycles(s, vectors, spec, lanes) for s in g.expr.stages if s is not g.expr.anchor)
    return sum(cycles, np.zeros(len(batch)))


def _elements_loaded_per_step(access: Access, v: int | None, register: Ints, unrolled: Ints, steps: Floats) -> Floats:
    """Return the number of elements loaded per reduction point; steps of an unrolled window reuse common elements."""
    # Steps along the vectors reuse nothing: vectors that overlap in part are different vectors.
    apart = np.ones(register.shape[1], bool)
    for a in np.flatnonzero((unrolled > 1).any(axis=0)):
        moves = access.coefficients != 0
        together = v is not None and (moves[:, a] & moves[:, v]).any()
        apart[a] = access.gather or together
    shared = access.points(np.where(apart, register, np.maximum(register, unrolled)))
    return np.asarray(shared * np.where(access.uses & apart, unrolled, 1).prod(axis=1) / steps)


def _scattered_line_cycles(access: Access, batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return how many cycles per reduction point distant lanes wait for lines from L2."""
    # Every lane reads a separate line. The next reduction points and the next tiles find it in L1 only if the lines of
    # a whole pass over the reduction fit.
    g, l1, size = batch.geometry, spec.layer("l1"), access.tensor.itemsize_bytes
    line = l1.line_bytes or l1.transaction_bytes
    d = decisions_for_device(batch, spec)
    rows, run = access.runs(d.tile)
    all_rows, all_run = access.runs(np.where(g.spatial, d.tile, d.chunk))
    held = all_rows * np.ceil(all_run * size / line) * line
    lines = rows * np.ceil(run * size / line)
    taps = int(access.axis_extents[access.shared_axis_mask & ~g.spatial].prod())  # blocks of the other axes are inside
    wait_s = (spec.layer("l2").latency_s or 0.0) / (spec.execution.misses_in_flight or 1)
    return np.where(held > usable_cache_bytes(spec, "l1"), lines / taps * wait_s * spec.clock_hz, 0.0)


def _line_crossing_share(access: Access, batch: TileBatch, spec: DeviceSpec) -> float:
    """Return the share of vector loads that touch two cache lines and therefore wait for a second line."""
    # Panels are aligned to lines; tensors read in place have any alignment, and a box is read at every offset of the
    # window.
    if decisions_for_device(batch, spec).staging(access) == PANEL:
        return 0.0
    line = spec.layer("l1").line_bytes or spec.layer("l1").transaction_bytes
    return min(1.0, spec.teu.lanes * 4 / line)


def _lanes_are_adjacent(access: Access, batch: TileBatch, spec: DeviceSpec) -> bool:
    """Return whether adjacent lanes are adjacent in the memory that the micro-kernel reads."""
    # Panels are packed with the lanes innermost. A box keeps the tensor's layout, with its last dimension sorted by
    # phase if lanes have a stride.
    d, v = decisions_for_device(batch, spec), batch.vector_axis
    how = d.staging(access)
    return how == PANEL or (v is not None and lane_distance(access, v) == 1) or (how == BOX and d.phases(access) > 1)


def partial_line_cycles(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return how many cycles a micro-kernel's stores wait for lines that they fill only in part."""
    # A partly written line is fetched first. Adjacent micro-kernels and tasks write the rest of it: they find it in the
    # cache that holds a task's results, and only the first one waits for the tensor's layer.
    g, register = batch.geometry, decisions_for_device(batch, spec).tile
    line = spec.layer("l1").line_bytes or spec.layer("l1").transaction_bytes
    size = g.store.tensor.itemsize_bytes
    rows, run = g.store.runs(np.where(g.spatial, register, g.extents))
    partial = np.where(run * size % line == 0, 0.0, np.where(run * size < line, 1.0, 2.0))
    task = np.where(g.spatial, np.minimum(np.maximum(batch.block, register), g.extents), g.extents)
    task_rows, task_run = g.store.runs(task)
    held = task_rows * (-(-task_run * size // line) * line)
    tensor = spec.layer("l2" if g.store.tensor.nbytes <= usable_cache_bytes(spec, "l2") else "l3")
    first = np.where(
        held <= usable_cache_bytes(spec, "l2"), np.minimum(1.0, run * size / line), 1.0
    )  # a line's first touches
    near = np.where(held <= usable_cache_bytes(spec, "l1"), 0.0, spec.layer("l2").latency_s or 0.0)
    wait_s = first * (tensor.latency_s or 0.0) + (1.0 - first) * near
    # Several misses are in flight at once, so each costs its share of the latency.
    return np.asarray(rows * partial * wait_s * spec.clock_hz / (spec.execution.misses_in_flight or 1))


def chunk_resume_cycles(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return how many cycles a register tile takes to store and reload results between chunks of the reduction."""
    d = decisions_for_device(batch, spec)
    return np.asarray((d.chunk_count - 1) * (2.0 * d.vectors + KERNEL_CYCLES))


def _tlb_miss_cycles(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return how many cycles per reduction point first-level TLB misses cost for operands that are read in place."""
    # An operand whose innermost reduction axis has a stride of a page or more touches one page per reduction point; if
    # these exceed the TLB, every pass misses again. The pages of a chunk that fits the TLB serve neighbouring tiles.
    l1, g = spec.layer("l1"), batch.geometry
    page = l1.page_bytes
    reductions = np.flatnonzero(~g.spatial)
    if not l1.tlb_entries or not page or not len(reductions):
        return np.zeros(len(batch))
    inner = int(reductions[-1])
    d = decisions_for_device(batch, spec)
    points = d.chunk[:, inner]
    total = np.zeros(len(batch))
    for a in g.loads:
        if d.staging(a) != IN_PLACE:
            continue
        share = min(1.0, lane_distance(a, inner) * a.tensor.itemsize_bytes / page)
        width = (
            batch.register[:, batch.vector_axis] * a.tensor.itemsize_bytes if batch.vector_axis is not None else page
        )
        again = np.where(points < g.extents[inner], np.minimum(1.0, width / page), 0.0)
        rows = np.ones(len(batch), np.int64)  # rows a page or more apart need a page each
        for axis in np.flatnonzero(a.uses & g.spatial):
            if axis != batch.vector_axis and lane_distance(a, int(axis)) * a.tensor.itemsize_bytes >= page:
                rows = rows * np.minimum(batch.register[:, axis], g.extents[axis])
        missed = np.where(points * share * rows > l1.tlb_entries, 1.0, again)
        total = total + missed * rows * (l1.tlb_miss_s or 0.0) * spec.clock_hz * share
    return total


def _set_conflict_cycles(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return how many cycles per reduction point are lost to broadcast rows whose pitch maps them to few cache sets."""
    # Rows ``pitch`` bytes apart start at ``page / gcd(pitch, page)`` offsets of a way. If more rows than two thirds of
    # the ways have one offset, they evict each other, and every line comes from L2 again.
    g, l1, d = batch.geometry, spec.layer("l1"), decisions_for_device(batch, spec)
    total = np.zeros(len(batch))
    page, line = l1.page_bytes, l1.line_bytes
    if not page or not line or batch.vector_axis is None:
        return total
    ways = l1.capacity_bytes // page
    miss = (spec.layer("l2").latency_s or 0.0) * spec.clock_hz
    for a in g.loads:
        converted = d.staging(a) == BOX and rows_are_converted(a, batch.vector_axis, batch.constants)
        if a.uses[batch.vector_axis] or not (converted or d.staging(a) == IN_PLACE):
            continue
        size = computed_itemsize_bytes(a) if converted else a.tensor.itemsize_bytes
        for axis in np.flatnonzero(a.uses & g.spatial):
            pitch = lane_distance(a, int(axis)) * size
            places = page // math.gcd(pitch, page) if pitch >= line else page // line
            rows = d.tile[:, axis]
            crowded = -(-rows // places) > 2 * ways // 3
            total = total + np.where(crowded, rows * miss * size / line, 0.0)
    return total


def fits_vector_registers(batch: TileBatch, spec: DeviceSpec) -> Mask:
    """Return the mask of programs whose sums and operand vectors stay in vector registers, shape ``(N,)``."""
    d = decisions_for_device(batch, spec)
    usable = spec.limits.usable_vector_registers or 0  # the schema requires it for CPUs
    every = d.vectors + d.operand_vectors + 1  # one more holds the broadcast
    return np.asarray((d.vectors <= usable) & (every < (spec.limits.vector_registers or usable)))


def price(
    batch: TileBatch, spec: DeviceSpec, parts: Parts,
    micro_kernel: Callable[[TileBatch, DeviceSpec], tuple[Floats, Floats]] = micro_kernel_cycles,
    fits: Callable[[TileBatch, DeviceSpec], Mask] | None = None,
) -> Terms:  # fmt: skip
    """Price a batch: return ``seconds`` and its terms as arrays of shape ``(N,)``."""
    # ``micro_kernel`` returns the numbers of cycles that one micro-kernel takes per reduction point and for its
    # write-back; ``fits`` returns the mask of programs that fit the registers.
    g, d = batch.geometry, decisions_for_device(batch, spec)
    kernels = d.tiles.astype(np.float64).prod(axis=1)
    live = d.live.prod(axis=1)
    points = float(g.extents[~g.spatial].prod()) * live
    cycles, write = micro_kernel(batch, spec)
    write = write + chunk_resume_cycles(batch, spec)
    idle, tasks = imbalance(batch, spec)
    lines = partial_line_cycles(batch, spec)
    compute = kernels * (points * cycles + write) / (spec.clock_hz * spec.units) * idle
    store = kernels * lines / (spec.clock_hz * spec.units) * idle
    l2, l3, streamed = (live * moved for moved in cache_traffic_bytes(batch, spec, kernels))
    pack = packing_s(batch, spec, tasks) * np.where(tasks > 1, 1, spec.units)
    dram_bytes = task_dram_bytes(batch, spec)
    terms: Terms = {
        "compute_s": compute,
        "store_s": store,
        "l2_s": l2 / spec.layer("l2").bandwidth_bytes_per_s * idle,
        "l3_s": l3 / spec.layer("l3").bandwidth_bytes_per_s * idle,
        "dram_s": dram_bytes / spec.layer("dram").bandwidth_bytes_per_s,
        "pack_s": pack,
        "stream_s": streamed / spec.layer("l3").bandwidth_bytes_per_s * idle,
        "launch_s": start_parallel_loops_s(tasks, 1 + _parallel_packing_count(batch, spec), spec),
    }
    memory = np.maximum.reduce([terms["l2_s"], terms["l3_s"], terms["dram_s"]])
    slowest = time_of_two_overlapping_phases(memory, compute + store, spec.execution.misses_in_flight or 1)
    parts.update(kernels=kernels, points=points, cycles=cycles, write=write, lines=lines, imbalance=idle)
    parts.update(l2_bytes=l2, l3_bytes=l3, stream_bytes=streamed, memory=memory, slowest=slowest)
    terms["combine_s"] = combine_reduction_parts_s(batch, spec)
    terms["seconds"] = np.where(
        (fits or fits_vector_registers)(batch, spec),
        slowest + pack + terms["stream_s"] + terms["combine_s"] + terms["launch_s"],
        np.inf,
    )
    terms["dram_bytes"] = dram_bytes
    terms["tasks"] = tasks.astype(float)
    terms["vectors"] = d.vectors.astype(float)
    return terms


def _parallel_packing_count(batch: TileBatch, spec: DeviceSpec) -> Ints:
    """Return the number of operands that a call packs before its tasks, each in a parallel loop, shape ``(N,)``."""
    d = decisions_for_device(batch, spec)
    called = ((d.packers(a) > 1).astype(np.int64) for a in d.staged(PANEL) if a.tensor.name not in batch.constants)
    return sum(called, np.zeros(len(batch), np.int64))
