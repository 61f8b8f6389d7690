"""Price of dot products: lanes along a reduction axis, operands read in place (the template ``codegen.cpu.dots``)."""

from __future__ import annotations

import math

import numpy as np

from roller.expr import instruction_mix
from roller.hardware import DeviceSpec
from roller.perf.batch import TileBatch
from roller.perf.cpu.caches import dram_traffic_bytes
from roller.perf.cpu.lanes import effective_register, lane_count, rate_of, room, tiles_per_task
from roller.perf.cpu.micro_kernel import KERNEL_CYCLES
from roller.tile.geometry import Access, Floats, Ints

#: Ways of a cache whose spec does not tell them.
_WAYS = 16


def is_dots(batch: TileBatch) -> bool:
    """Whether the vectors of a ``tiled`` batch run along a reduction axis."""
    v = batch.vector_axis
    return batch.structure == "tiled" and v is not None and not batch.geometry.spatial[v]


def outputs_and_chains(batch: TileBatch, spec: DeviceSpec) -> tuple[Ints, Ints]:
    """Return outputs of one micro-kernel, and accumulators of each of them."""
    register = effective_register(batch, lane_count(spec, 4))
    outputs = np.where(batch.geometry.spatial, register, 1).prod(axis=1)
    return outputs, np.maximum(1, batch.register[:, batch.vector_axis] // lane_count(spec, 4))


def fits(batch: TileBatch, spec: DeviceSpec) -> np.ndarray:
    """Mask of programs whose accumulators and operands stay in vector registers."""
    outputs, chains = outputs_and_chains(batch, spec)
    register = np.where(batch.geometry.spatial, effective_register(batch, lane_count(spec, 4)), 1)
    rows = [a.elements(register) for a in batch.geometry.loads]
    held = np.minimum.reduce(rows) + 1  # one operand is held while the rows of the other pass
    usable = spec.limits.usable_vector_registers or 0  # the schema requires it of a CPU
    accumulators = outputs * chains
    return np.asarray((accumulators <= usable) & (accumulators + held < (spec.limits.vector_registers or usable)))


def micro_kernel_cycles(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return cycles of all micro-kernels of one register tile: its steps, its tails, and a fold per chunk."""
    g, anchor, v = batch.geometry, batch.geometry.expr.anchor, batch.vector_axis
    assert v is not None
    rate, lanes, width = spec.compute.ops_per_cycle_per_unit, lane_count(spec, 4), spec.teu.lanes
    outputs, chains = outputs_and_chains(batch, spec)
    register = np.where(g.spatial, effective_register(batch, lanes), 1)
    vectors = (outputs * chains).astype(np.float64)
    mix = instruction_mix(anchor.body, anchor.combiner)
    arithmetic = sum(vectors * n * width / rate_of(spec, c, anchor.acc_dtype) for c, n in mix.items())
    loads = sum(
        (a.elements(register) * (chains if a.uses[v] else 1) for a in g.loads), np.zeros(len(batch), np.int64)
    ).astype(np.float64)
    latency = (spec.execution.step_latency_s or 0.0) * spec.clock_hz
    step = np.maximum.reduce([
        np.asarray(arithmetic), loads * width / rate["load_store"], (vectors + loads) * width / rate["issue"],
        np.full(len(batch), latency),
    ]) + (spec.execution.step_issue_s or 0.0) * spec.clock_hz  # fmt: skip
    extent, other = int(g.extents[v]), float(g.extents[~g.spatial].prod()) / int(g.extents[v])
    wide = chains * lanes
    chunk = np.minimum(batch.panel[:, v] if batch.panel is not None else extent, extent)
    chunks = -(-extent // chunk)
    # Lanes fold by halves, a shuffle and an addition each: outputs overlap, the last one is waited for.
    halves = math.log2(lanes)
    fold = outputs * (2 * halves + chains + 2) * width / rate["issue"] + 2 * halves * latency + KERNEL_CYCLES
    tail = extent % lanes * np.maximum(outputs * width / rate["load_store"], latency)
    return np.asarray(other * (extent / wide * step + tail) + chunks * fold)


def traffic(batch: TileBatch, spec: DeviceSpec, layer: str) -> Floats:
    """Return bytes that come into a core's ``layer`` over all micro-kernels.

    Tiles are looped over inside the chunks of the reduction, the longest axis outermost. The outermost loop whose
    inside fits the layer decides: what is inside comes once per iteration of it and of the loops around it, unless
    the iterations use the same data.
    """
    g = batch.geometry
    capacity = float(room(spec, layer))
    register = np.where(g.spatial, effective_register(batch, lane_count(spec, 4)), 1)
    tiles = np.where(g.spatial, -(-g.extents // register), 1)
    per_task = tiles_per_task(batch, tiles)
    chunk = np.minimum(batch.panel if batch.panel is not None else g.extents, g.extents)
    shared = np.all([a.uses for a in g.loads], axis=0)
    order = sorted((int(a) for a in np.flatnonzero(g.spatial)), key=lambda a: (not shared[a], -int(g.extents[a])))
    count = per_task.astype(np.float64)
    total = np.full(len(batch), np.inf)
    tile = np.where(g.spatial, register, chunk)
    inside = [tile]
    for a in reversed(order):  # inside[p]: what p innermost loops touch
        tile = tile.copy()
        tile[:, a] = np.minimum(tile[:, a] * per_task[:, a], g.extents[a])
        inside.append(tile)
    rounds = (tiles / per_task).prod(axis=1) * (g.extents / chunk)[:, ~g.spatial].prod(axis=1)
    done = np.zeros(len(batch), bool)
    for depth in range(len(order), -1, -1):  # from the whole task inwards
        held = inside[depth]
        size = sum((a.elements(held) * a.tensor.itemsize_bytes for a in g.loads), np.zeros(len(batch)))
        fit = (size <= capacity) & np.logical_and.reduce([_rows_fit(a, held, spec, layer) for a in g.loads])
        here = sum((_fetched(a, held, order[: len(order) - depth], count) for a in g.loads), np.zeros(len(batch)))
        now = ~done & (fit | (depth == 0))
        total, done = np.where(now, here * rounds, total), done | now
    return np.asarray(total)


def _fetched(access: Access, held: Ints, outer: list[int], count: Floats) -> Floats:
    """Return bytes of one operand fetched over the ``outer`` loops of a task, outermost first."""
    times = np.ones(len(held))
    moved = False
    for a in reversed(outer):
        moved = moved or bool(access.uses[a])
        if moved:
            times = times * count[:, a]
    return np.asarray(access.elements(held) * float(access.tensor.itemsize_bytes) * times)


def _rows_fit(access: Access, held: Ints, spec: DeviceSpec, layer: str) -> np.ndarray:
    """Whether rows of a data tile, as far apart as they are in memory, find room in the sets of a layer."""
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


def dots_terms(batch: TileBatch, spec: DeviceSpec, imbalance: Floats, launch_s: Floats) -> dict[str, Floats]:
    """Return the terms of a batch of dot products, ``seconds`` not among them."""
    g = batch.geometry
    register = np.where(g.spatial, effective_register(batch, lane_count(spec, 4)), 1)
    kernels = np.where(g.spatial, -(-g.extents // register), 1).astype(np.float64).prod(axis=1)
    compute = kernels * micro_kernel_cycles(batch, spec) / (spec.clock_hz * spec.units) * imbalance
    dram_bytes = dram_traffic_bytes(batch, spec)
    return {
        "compute_s": compute,
        "l2_s": traffic(batch, spec, "l1") / spec.layer("l2").bandwidth_bytes_per_s * imbalance,
        "l3_s": traffic(batch, spec, "l2") / spec.layer("l3").bandwidth_bytes_per_s * imbalance,
        "dram_s": np.broadcast_to(dram_bytes / spec.layer("dram").bandwidth_bytes_per_s, compute.shape),
        "pack_s": np.zeros(len(batch)),
        "launch_s": launch_s,
        "dram_bytes": np.broadcast_to(dram_bytes, compute.shape).astype(float),
    }
