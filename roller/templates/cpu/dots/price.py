"""Price of dot products: lanes along a reduction axis, operands read in place."""

from __future__ import annotations

import math

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.cpu.common.conversion_costs import count_load_conversions, load_conversion_cycles
from roller.templates.cpu.common.data_kept_in_caches import dram_traffic_bytes
from roller.templates.cpu.common.lanes_and_cache_room import arithmetic_cycles, usable_cache_bytes
from roller.templates.cpu.common.task_scheduling_costs import (
    Parts,
    Terms,
    combine_reduction_parts_s,
    imbalance,
    start_parallel_loops_s,
)
from roller.templates.cpu.decisions import decisions_for_device, vector_elements
from roller.templates.cpu.tiled.price import KERNEL_CYCLES
from roller.tile.geometry import Access, Floats, Ints

#: Associativity of a cache if its spec does not state it.
_WAYS = 16


def fits_registers(batch: TileBatch, spec: DeviceSpec) -> np.ndarray:
    """Return the mask of programs whose accumulators and operands stay in vector registers."""
    d = decisions_for_device(batch, spec)
    rows = [a.elements(d.tile) for a in batch.geometry.loads]
    held = np.minimum.reduce(rows) + 1  # one operand stays in registers during the rows of the other operand
    usable = spec.limits.usable_vector_registers or 0  # the schema requires it for CPUs
    return np.asarray((d.vectors <= usable) & (d.vectors + held < (spec.limits.vector_registers or usable)))


def micro_kernel_cycles(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return how many cycles the micro-kernels of one register tile take: steps, tails, and a fold per chunk."""
    g, anchor, v = batch.geometry, batch.geometry.expr.anchor, batch.vector_axis
    assert v is not None
    d, rate, width = decisions_for_device(batch, spec), spec.compute.ops_per_cycle_per_unit, spec.teu.lanes
    outputs, chains = d.tile.prod(axis=1), d.chains
    vectors = d.vectors.astype(np.float64)
    converted = count_load_conversions(g.expr, anchor)
    arithmetic = arithmetic_cycles(anchor, vectors, spec, vector_elements(batch, spec), converted)
    loads = np.zeros(len(batch))
    for a in g.loads:
        read = a.elements(d.tile) * (chains if a.uses[v] else 1)
        loads = loads + read
        arithmetic = arithmetic + read * load_conversion_cycles(a, spec)
    latency = (spec.execution.step_latency_s or 0.0) * spec.clock_hz
    step = np.maximum.reduce([
        arithmetic, loads * width / rate["load_store"], (vectors + loads) * width / rate["issue"],
        np.full(len(batch), latency),
    ]) + (spec.execution.step_issue_s or 0.0) * spec.clock_hz  # fmt: skip
    extent, other = int(g.extents[v]), float(g.extents[~g.spatial].prod()) / int(g.extents[v])
    # Lanes fold by halves, a shuffle and an addition each; outputs overlap, except for the latency of the last one.
    halves = np.log2(d.lanes)
    fold = outputs * (2 * halves + chains + 2) * width / rate["issue"] + 2 * halves * latency + KERNEL_CYCLES
    tail = extent % d.lanes * np.maximum(outputs * width / rate["load_store"], latency)
    return np.asarray(other * (extent / (chains * d.lanes) * step + tail) + d.chunks[:, v] * fold)


def layer_traffic_bytes(batch: TileBatch, spec: DeviceSpec, layer: str) -> Floats:
    """Return the number of bytes that enter a core's ``layer`` over all micro-kernels."""
    # Tiles are looped over inside the chunks of the reduction. The outermost loop whose data fit the layer decides: its
    # data are loaded once per iteration of it and of the loops around it, unless the iterations use the same data.
    g, d = batch.geometry, decisions_for_device(batch, spec)
    capacity, rows = float(usable_cache_bytes(spec, layer)), np.arange(len(batch))
    total, tile = np.full(len(batch), np.inf), np.where(g.spatial, d.tile, d.chunk)
    inside = [tile]
    for a in d.loop_order.T[::-1]:  # inside[p]: the tile of the p innermost loops
        tile = tile.copy()
        tile[rows, a] = np.minimum(tile[rows, a] * d.per_task[rows, a], g.extents[a])
        inside.append(tile)
    rounds = (d.tiles / d.per_task).prod(axis=1) * (g.extents / d.chunk)[:, ~g.spatial].prod(axis=1)
    done = np.zeros(len(batch), bool)
    for depth in range(len(inside) - 1, -1, -1):  # from the whole task inwards
        held, outer = inside[depth], d.loop_order.T[: len(inside) - 1 - depth]
        size = sum((a.elements(held) * a.tensor.itemsize_bytes for a in g.loads), np.zeros(len(batch)))
        fit = (size <= capacity) & np.logical_and.reduce([_rows_fit_cache_sets(a, held, spec, layer) for a in g.loads])
        here = sum((_fetched_operand_bytes(a, held, outer, d.per_task) for a in g.loads), np.zeros(len(batch)))
        now = ~done & (fit | (depth == 0))
        total, done = np.where(now, here * rounds, total), done | now
    return np.asarray(total)


def _fetched_operand_bytes(access: Access, held: Ints, outer: Ints, per_task: Ints) -> Floats:
    """Return how many bytes of an operand the loops over the axes ``outer``, shape ``(loops, N)``, fetch."""
    times, rows = np.ones(len(held)), np.arange(len(held))
    moved = np.zeros(len(held), bool)
    for a in outer[::-1]:
        count = per_task[rows, a]
        moved = moved | (access.uses[a] & (count > 1))
        times = times * np.where(moved, count, 1)
    return np.asarray(access.elements(held) * float(access.tensor.itemsize_bytes) * times)


def _rows_fit_cache_sets(access: Access, held: Ints, spec: DeviceSpec, layer: str) -> np.ndarray:
    """Return whether the rows of a data tile, at their pitch in memory, fit in the sets of a cache."""
    cache = spec.layer(layer)
    line, shape = cache.line_bytes or cache.transaction_bytes, access.tensor.shape
    page = cache.page_bytes or cache.capacity_bytes // _WAYS
    if len(shape) < 2 or not page or not line:
        return np.ones(len(held), bool)
    pitch = shape[-1] * access.tensor.itemsize_bytes
    rows, run = access.runs(held)
    places = page // math.gcd(pitch, page) if pitch >= line else page // line
    width = -(-run * access.tensor.itemsize_bytes // (page // places))  # places one row covers
    ways = cache.capacity_bytes // page
    return np.asarray(rows * width <= places * ways)


def dot_product_terms(batch: TileBatch, spec: DeviceSpec, imbalance: Floats, launch_s: Floats) -> dict[str, Floats]:
    """Return the terms of a batch of dot products, without ``seconds``."""
    kernels = decisions_for_device(batch, spec).tiles.astype(np.float64).prod(axis=1)
    compute = kernels * micro_kernel_cycles(batch, spec) / (spec.clock_hz * spec.units) * imbalance
    dram_bytes = dram_traffic_bytes(batch, spec)
    return {
        "compute_s": compute,
        "l2_s": layer_traffic_bytes(batch, spec, "l1") / spec.layer("l2").bandwidth_bytes_per_s * imbalance,
        "l3_s": layer_traffic_bytes(batch, spec, "l2") / spec.layer("l3").bandwidth_bytes_per_s * imbalance,
        "dram_s": np.broadcast_to(dram_bytes / spec.layer("dram").bandwidth_bytes_per_s, compute.shape),
        "pack_s": np.zeros(len(batch)),
        "launch_s": launch_s,
        "dram_bytes": np.broadcast_to(dram_bytes, compute.shape).astype(float),
    }


def price(batch: TileBatch, spec: DeviceSpec, parts: Parts) -> Terms:
    """Return the price of dot products: arithmetic plus the slowest of the caches and the memory bus."""
    del parts
    idle, tasks = imbalance(batch, spec)
    terms = dot_product_terms(batch, spec, idle, start_parallel_loops_s(tasks, 1, spec))
    memory = np.maximum.reduce([terms["l2_s"], terms["l3_s"], terms["dram_s"]])
    # Every tile starts at different rows, where prefetching restarts, so memory and arithmetic hardly overlap.
    slowest = memory + terms["compute_s"]
    terms["combine_s"] = combine_reduction_parts_s(batch, spec)
    terms["seconds"] = np.where(fits_registers(batch, spec), slowest + terms["combine_s"] + terms["launch_s"], np.inf)
    terms["tasks"] = tasks.astype(float)
    return terms
