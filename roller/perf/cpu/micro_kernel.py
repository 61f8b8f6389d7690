"""Cycles of a CPU micro-kernel: arithmetic, loads, issue, and what operands read in place cost it."""

from __future__ import annotations

import math

import numpy as np

from roller.expr import instruction_mix
from roller.hardware import DeviceSpec
from roller.perf.batch import TileBatch
from roller.perf.cpu.lanes import (
    chunk_extents,
    copies_box,
    effective_register,
    lane_count,
    lane_distance,
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
    if not copies_box(access):
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
    layer = spec.layer("l2" if g.store.tensor.nbytes <= room(spec, "l2") else "l3")
    partial = np.where(run * size % line == 0, 0.0, np.where(run * size < line, 1.0, 2.0))
    # Several misses are in flight at once; what is left of one is its share of the latency.
    return np.asarray(
        rows * partial * (layer.latency_s or 0.0) * spec.clock_hz / (spec.execution.misses_in_flight or 1)
    )


def resumed_cycles(batch: TileBatch, lanes: int) -> Floats:
    """Return cycles one register tile needs to keep its results between the chunks of the reductions."""
    g = batch.geometry
    chunks = -(-g.extents // chunk_extents(batch))[:, ~g.spatial].prod(axis=1)
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
        missed = np.where(points * share > l1.tlb_entries, 1.0, again)
        total = total + missed * (l1.tlb_miss_s or 0.0) * spec.clock_hz * share
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
