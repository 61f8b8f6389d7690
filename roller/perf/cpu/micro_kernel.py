"""Cycles of a CPU micro-kernel: arithmetic, loads, issue, and what operands read in place cost it."""

from __future__ import annotations

import functools
import math

import numpy as np

from roller.expr import instruction_mix
from roller.hardware import DeviceSpec
from roller.perf.batch import TileBatch
from roller.perf.cpu.lanes import (
    UNROLL_LIMIT,
    UNROLLED_BROADCASTS,
    chunk_count,
    chunk_extents,
    copies_box,
    effective_register,
    lane_count,
    lane_distance,
    rate_of,
    room,
    vector_operations,
)
from roller.tile.geometry import Access, Floats, Ints

#: Cycles a micro-kernel needs around its loop: instructions of our templates.
KERNEL_CYCLES = 10.0


def micro_kernel_cycles(batch: TileBatch, spec: DeviceSpec, lanes: int) -> tuple[Floats, Floats]:
    """Return cycles per reduction point and cycles of the write-back of one micro-kernel."""
    g, anchor = batch.geometry, batch.geometry.expr.anchor
    rate = spec.compute.ops_per_cycle_per_unit
    v = batch.vector_axis
    register = np.where(g.spatial, effective_register(batch, lane_count(spec, 4)), 1)
    vectors = vector_operations(batch, lanes).astype(np.float64)
    width = spec.teu.lanes
    mix, dtype = instruction_mix(anchor.body, anchor.combiner), anchor.acc_dtype
    fma = sum(vectors * n * width / rate_of(spec, c, dtype) for c, n in mix.items())
    loads = gathers = scattered = np.zeros(len(batch))
    unrolled, steps = _unrolled(batch, vectors)
    split = 1.0 if spec.execution.split_load_slots is None else spec.execution.split_load_slots
    for a in g.loads:
        elements = _elements_per_step(a, v, register, unrolled, steps)
        if v is None or not a.uses[v]:
            loads = loads + elements
        elif _lanes_together(a, v, a.tensor.name in batch.staged):
            vectors_read = elements / np.minimum(lanes, np.maximum(1, register[:, v]))
            loads = loads + vectors_read * (1.0 + split * _split_share(a, batch, spec))
        else:
            # Where the collected vectors do not fit the registers, those that steps share are collected again.
            alone = np.where(g.spatial, register, 1)
            held = vectors + elements * steps / lanes
            kept = held < (spec.limits.vector_registers or np.inf)
            gathers = gathers + np.where(kept, elements, elements + a.points(alone))
            scattered = scattered + _scattered_lines(a, batch, spec, register)
    load = (loads + gathers) * width / rate["load_store"]
    issue = (vectors + loads + 2 * gathers) * width / rate["issue"]
    latency = spec.execution.step_latency_s * spec.clock_hz
    issue = issue + spec.execution.step_issue_s * spec.clock_hz / steps
    # Out of order, misses to pages and lines overlap one another and the arithmetic: they bound the rate.
    misses = _page_misses(batch, spec) + _set_conflicts(batch, spec, register)
    misses = misses / (spec.execution.misses_in_flight or 1)
    bounds = (load, issue, misses, np.full(len(batch), latency))
    cycles = functools.reduce(np.maximum, bounds, np.asarray(fma)) + scattered
    outputs = register.prod(axis=1).astype(np.float64)
    contiguous = v is not None and lane_distance(g.store, v) == 1
    epilogue = sum(
        vectors * n * width / rate_of(spec, c, dtype)
        for s in g.expr.stages
        if s is not anchor
        for c, n in instruction_mix(s.body, None).items()
    )
    scatter = (spec.execution.element_scatter_s or 0.0) * spec.clock_hz
    write = vectors * 2 if contiguous or v is None else outputs * scatter + vectors
    return cycles, write + epilogue + KERNEL_CYCLES


def _unrolled(batch: TileBatch, vectors: Floats) -> tuple[Ints, Floats]:
    """Return the extents of the reduction axes unrolled into the micro-kernel (1 elsewhere), and their product.

    The same rule as the template's: from the innermost axis on, as long as the limits hold.
    """
    g, v = batch.geometry, batch.vector_axis
    windows = {x for ld in g.expr.anchor.loads for i in ld.index if len(i.axes) > 1 for x in i.axes}
    order = sorted((int(a) for a in np.flatnonzero(~g.spatial)), key=lambda a: g.names[a] not in windows)
    extents = np.ones((len(batch), len(g.names)), np.int64)
    budget, inner, sizes = vectors.copy(), np.ones(len(batch), bool), np.where(g.spatial, batch.register, 1)
    for n, a in enumerate(reversed(order)):
        budget, sizes[:, a] = budget * g.extents[a], g.extents[a]
        inner = inner & (budget <= UNROLL_LIMIT)
        if n:
            held = sum(np.where(x.uses, sizes, 1).prod(axis=1) for x in g.loads if v is None or not x.uses[v])
            inner = inner & (held <= UNROLLED_BROADCASTS)
        extents[:, a] = np.where(inner, g.extents[a], 1)
    return extents, extents.prod(axis=1).astype(np.float64)


def _elements_per_step(access: Access, v: int | None, register: Ints, unrolled: Ints, steps: Floats) -> Floats:
    """Return elements loaded per reduction point: steps of an unrolled window share what they have in common.

    Steps along the vectors share nothing: vectors that overlap in part are different vectors.
    """
    apart = np.ones(register.shape[1], bool)
    for a in np.flatnonzero((unrolled > 1).any(axis=0)):
        moves = access.coefficients != 0
        together = v is not None and (moves[:, a] & moves[:, v]).any()
        apart[a] = access.gather or together
    shared = access.points(np.where(apart, register, np.maximum(register, unrolled)))
    return np.asarray(shared * np.where(access.uses & apart, unrolled, 1).prod(axis=1) / steps)


def _scattered_lines(access: Access, batch: TileBatch, spec: DeviceSpec, register: Ints) -> Floats:
    """Return cycles per reduction point that lanes far apart wait for lines of L2.

    Every lane reads a line of its own. The next reduction points and the next tiles find it in L1 only where the lines
    of a whole pass over the reduction fit.
    """
    g, l1, size = batch.geometry, spec.layer("l1"), access.tensor.itemsize_bytes
    line = l1.line_bytes or l1.transaction_bytes
    rows, run = access.runs(np.where(g.spatial, register, 1))
    all_rows, all_run = access.runs(np.where(g.spatial, register, np.minimum(chunk_extents(batch), g.extents)))
    held = all_rows * np.ceil(all_run * size / line) * line
    lines = rows * np.ceil(run * size / line)
    moved = {
        int(x) for row, w in zip(access.coefficients, access.windows, strict=True) if w for x in np.flatnonzero(row)
    }
    taps = math.prod(int(access.axis_extents[x]) for x in moved if not g.spatial[x])  # blocks of the rest lie inside
    wait_s = (spec.layer("l2").latency_s or 0.0) / (spec.execution.misses_in_flight or 1)
    return np.where(held > room(spec, "l1"), lines / taps * wait_s * spec.clock_hz, 0.0)


def _split_share(access: Access, batch: TileBatch, spec: DeviceSpec) -> float:
    """Return the share of vector loads that touch two cache lines, and so wait for a second one.

    Panels lie on lines; tensors read in place lie anywhere, and a box is read at every offset of the window.
    """
    if access.tensor.name in batch.staged and not copies_box(access):
        return 0.0
    line = spec.layer("l1").line_bytes or spec.layer("l1").transaction_bytes
    return min(1.0, spec.teu.lanes * 4 / line)


def _lanes_together(access: Access, v: int, staged: bool) -> bool:
    """Whether neighbouring lanes are neighbours in memory as the micro-kernel reads them.

    Panels are packed with the lanes innermost. A box keeps the tensor's layout (its last dimension
    de-interleaved), so only an axis that walks the last dimension gives vectors.
    """
    if lane_distance(access, v) == 1:
        return True
    if not copies_box(access):
        return staged
    return staged and bool(access.coefficients[-1, v])


def partial_line_cycles(batch: TileBatch, spec: DeviceSpec, register: Ints) -> Floats:
    """Return cycles a micro-kernel's stores wait for lines they fill only in part.

    A line that is not written whole is fetched first. Neighbouring micro-kernels and tasks write the rest of it: they
    find it in the cache that holds a task's results, and only the first of them waits for the tensor's layer.
    """
    g = batch.geometry
    line = spec.layer("l1").line_bytes or spec.layer("l1").transaction_bytes
    size = g.store.tensor.itemsize_bytes
    rows, run = g.store.runs(np.where(g.spatial, register, g.extents))
    partial = np.where(run * size % line == 0, 0.0, np.where(run * size < line, 1.0, 2.0))
    task = np.where(g.spatial, np.minimum(np.maximum(batch.block, register), g.extents), g.extents)
    task_rows, task_run = g.store.runs(task)
    held = task_rows * (-(-task_run * size // line) * line)
    tensor = spec.layer("l2" if g.store.tensor.nbytes <= room(spec, "l2") else "l3")
    first = np.where(held <= room(spec, "l2"), np.minimum(1.0, run * size / line), 1.0)  # a line's first touches
    near = np.where(held <= room(spec, "l1"), 0.0, spec.layer("l2").latency_s or 0.0)
    wait_s = first * (tensor.latency_s or 0.0) + (1.0 - first) * near
    # Several misses are in flight at once; what is left of one is its share of the latency.
    return np.asarray(rows * partial * wait_s * spec.clock_hz / (spec.execution.misses_in_flight or 1))


def resumed_cycles(batch: TileBatch, lanes: int) -> Floats:
    """Return cycles one register tile needs to keep its results between the chunks of the reductions."""
    chunks = chunk_count(batch)
    return np.asarray((chunks - 1) * (2.0 * vector_operations(batch, lanes) + KERNEL_CYCLES))


def _page_misses(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return cycles per reduction point lost to first-level TLB misses of operands read in place.

    An operand whose innermost reduction axis steps a page or more touches one page per reduction point; with more
    points than the TLB holds, every pass misses again. The pages of a chunk it holds serve neighbouring tiles.
    """
    l1, g = spec.layer("l1"), batch.geometry
    page = l1.page_bytes
    reductions = np.flatnonzero(~g.spatial)
    if not l1.tlb_entries or not page or not len(reductions):
        return np.zeros(len(batch))
    inner = int(reductions[-1])
    points = chunk_extents(batch)[:, inner]
    total = np.zeros(len(batch))
    for a in g.loads:
        if a.tensor.name in batch.staged:
            continue
        share = min(1.0, lane_distance(a, inner) * a.tensor.itemsize_bytes / page)
        width = (
            batch.register[:, batch.vector_axis] * a.tensor.itemsize_bytes if batch.vector_axis is not None else page
        )
        again = np.where(points < g.extents[inner], np.minimum(1.0, width / page), 0.0)
        rows = np.ones(len(batch), np.int64)  # rows a page or more apart take a page each
        for axis in np.flatnonzero(a.uses & g.spatial):
            if axis != batch.vector_axis and lane_distance(a, int(axis)) * a.tensor.itemsize_bytes >= page:
                rows = rows * np.minimum(batch.register[:, axis], g.extents[axis])
        missed = np.where(points * share * rows > l1.tlb_entries, 1.0, again)
        total = total + missed * rows * (l1.tlb_miss_s or 0.0) * spec.clock_hz * share
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
    miss = (spec.layer("l2").latency_s or 0.0) * spec.clock_hz
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
