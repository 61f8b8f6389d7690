"""The CPU half of the micro performance model: micro-kernel cycles, cache traffic, packing, cores.

The same terms as on a GPU under other names: the vector unit is the TEU, cores are the units, a task
(the ``l2`` tile) is the block, the micro-kernel is the register tile. Per reduction point a micro-kernel
needs the largest of its FMA, load, issue and dependence cycles; per task its panels come through the
caches; packing is traffic. Tiles at the end of an axis overlap their neighbour instead of padding, so
work is counted in whole register tiles. Out-of-order cores overlap arithmetic with cache traffic, hence
``max``; packing and handing tasks to the workers come before it and are added. A program of one task keeps to its
caller: it forks nothing, and packs alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from roller.expr import instruction_mix
from roller.hardware import DeviceSpec
from roller.perf.batch import TileBatch
from roller.perf.cpu import winograd
from roller.perf.cpu.caches import holding_bandwidth
from roller.perf.cpu.dots import dots_terms, fits, is_dots
from roller.perf.cpu.lanes import (
    chunk_count,
    copies_box,
    effective_register,
    lane_count,
    lane_distance,
    operand_vectors,
    rate_of,
    task_count,
    tiles_per_task,
    vector_operations,
)
from roller.perf.cpu.micro_kernel import micro_kernel_cycles, partial_line_cycles, resumed_cycles
from roller.perf.cpu.packing import packing_s, task_dram_bytes
from roller.perf.cpu.streams import stream_s
from roller.perf.cpu.traffic import ACCUMULATOR_BYTES, cache_traffic
from roller.perf.phases import overlapped
from roller.tile.geometry import Floats, Ints
from roller.tile.winograd import STRUCTURES

Terms = dict[str, Floats]
#: Numbers on the way to a price, by name.
Parts = dict[str, Any]

#: Cycles a task of rows needs around them: bounds, remainders and their branches, in the code of our templates.
TASK_CYCLES = 200.0


def price(batch: TileBatch, spec: DeviceSpec, told: list[Parts] | None = None) -> Terms:
    """Price a batch on a CPU; returns ``seconds`` and its terms as arrays ``(N,)``.

    To ``told`` come the numbers on the way, for whoever explains the price (:mod:`roller.perf.cpu.explained`).
    """
    parts: Parts = {"spec": spec, "batch": batch}
    if batch.structure in STRUCTURES:
        parts |= {"way": "winograd", "terms": winograd.price(batch, spec, parts)}
    elif is_dots(batch):
        parts |= {"way": "dots", "terms": _dots(batch, spec)}
    elif batch.structure == "tiled":
        parts |= {"way": "tiled", "terms": _tiled(batch, spec, parts)}
    else:
        parts |= {"way": "streamed", "terms": _streamed(batch, spec, parts)}
    if told is not None:
        told.append(parts)
    terms: Terms = parts["terms"]
    return terms


def _dots(batch: TileBatch, spec: DeviceSpec) -> Terms:
    """Dot products read their operands in place: arithmetic against the caches and the memory bus."""
    imbalance, tasks = _imbalance(batch, spec)
    terms = dots_terms(batch, spec, imbalance, _start_s(tasks, 1, spec))
    memory = np.maximum.reduce([terms["l2_s"], terms["l3_s"], terms["dram_s"]])
    # Every tile starts at other rows, where prefetching starts anew: little of the one hides behind the other.
    slowest = memory + terms["compute_s"]
    terms["combine_s"] = _combine_s(batch, spec)
    terms["seconds"] = np.where(fits(batch, spec), slowest + terms["combine_s"] + terms["launch_s"], np.inf)
    terms["tasks"] = tasks.astype(float)
    return terms


def _imbalance(batch: TileBatch, spec: DeviceSpec) -> tuple[Floats, Ints]:
    """Return cores' idle factor for whole tasks, and the number of tasks; parts of a reduction are tasks."""
    tasks = task_count(batch, spec)
    chunks = chunk_count(batch)
    share = np.where(batch.split_k > 1, -(-chunks // batch.split_k), chunks)  # the last part may get less
    parts = tasks * -(-chunks // share)
    whole = -(-parts // spec.units) * spec.units * share / (tasks * chunks)
    return np.where(parts > 1, whole * _uneven(batch, spec), whole), parts


def _uneven(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return how much more than its share the first core gets because the last tasks of an axis are smaller.

    Every core takes a run of neighbouring tasks: the smaller ones at the end of the outermost axis are all the last
    core's. Those of the other axes come evenly.
    """
    g = batch.geometry
    tiles = np.where(g.spatial, -(-g.extents // effective_register(batch, lane_count(spec, 4))), 1)
    per_task = tiles_per_task(batch, tiles)
    tasks = -(-tiles // per_task)
    outer = np.argmax(tasks > 1, axis=1)
    rows = np.arange(len(batch))
    return np.asarray(tasks[rows, outer] * per_task[rows, outer] / tiles[rows, outer])


def _combine_s(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return seconds one core takes to combine the parts of a split reduction: written once, read once."""
    results = batch.split_k * float(batch.geometry.store.tensor.elements) * ACCUMULATOR_BYTES
    return np.where(batch.split_k > 1, 2 * results * spec.units / holding_bandwidth(results, spec), 0.0)


def _start_s(tasks: Ints, loops: int, spec: DeviceSpec) -> Floats:
    """Return seconds to call the kernel and to fork and join its ``loops`` parallel loops; one task forks none."""
    return spec.execution.launch_s + np.where(tasks > 1, loops, 0) * (spec.execution.fork_s or 0.0)


def _panels_packed(batch: TileBatch) -> int:
    """Return the operands a call packs before its tasks, each in a parallel loop of its own."""
    return sum(
        a.tensor.name in batch.staged and a.tensor.name not in batch.constants and not copies_box(a)
        for a in batch.geometry.loads
    )


def _tiled(batch: TileBatch, spec: DeviceSpec, parts: Parts) -> Terms:
    g = batch.geometry
    lanes = lane_count(spec, 4)
    register = np.where(g.spatial, effective_register(batch, lane_count(spec, 4)), 1)
    tiles = np.where(g.spatial, -(-g.extents // register), 1)
    kernels = tiles.astype(np.float64).prod(axis=1)
    points = float(g.extents[~g.spatial].prod())
    cycles, write = micro_kernel_cycles(batch, spec, lanes)
    write = write + resumed_cycles(batch, lanes)
    imbalance, tasks = _imbalance(batch, spec)
    lines = partial_line_cycles(batch, spec, register)
    compute = kernels * (points * cycles + write) / (spec.clock_hz * spec.units) * imbalance
    store = kernels * lines / (spec.clock_hz * spec.units) * imbalance
    l2, l3, streamed = cache_traffic(batch, spec, register, tiles, kernels)
    pack = packing_s(batch, spec, register, tiles, tasks) * np.where(tasks > 1, 1, spec.units)
    dram_bytes = task_dram_bytes(batch, spec, register, tiles)
    terms: Terms = {
        "compute_s": compute,
        "store_s": store,
        "l2_s": l2 / spec.layer("l2").bandwidth_bytes_per_s * imbalance,
        "l3_s": l3 / spec.layer("l3").bandwidth_bytes_per_s * imbalance,
        "dram_s": dram_bytes / spec.layer("dram").bandwidth_bytes_per_s,
        "pack_s": pack,
        "stream_s": streamed / spec.layer("l3").bandwidth_bytes_per_s * imbalance,
        "launch_s": _start_s(tasks, 1 + _panels_packed(batch), spec),
    }
    memory = np.maximum.reduce([terms["l2_s"], terms["l3_s"], terms["dram_s"]])
    slowest = overlapped(memory, compute + store, spec.execution.misses_in_flight or 1)
    parts.update(kernels=kernels, points=points, cycles=cycles, write=write, lines=lines, imbalance=imbalance)
    parts.update(l2_bytes=l2, l3_bytes=l3, stream_bytes=streamed, memory=memory, slowest=slowest)
    usable = spec.limits.usable_vector_registers or 0  # the schema requires it of a CPU
    accumulators = vector_operations(batch, lanes)
    every = accumulators + operand_vectors(batch, lanes) + 1  # one more holds the broadcast
    fits = (accumulators <= usable) & (every < (spec.limits.vector_registers or usable))
    terms["combine_s"] = _combine_s(batch, spec)
    terms["seconds"] = np.where(
        fits, slowest + pack + terms["stream_s"] + terms["combine_s"] + terms["launch_s"], np.inf
    )
    terms["dram_bytes"] = dram_bytes
    terms["tasks"] = tasks.astype(float)
    terms["vectors"] = vector_operations(batch, lanes).astype(float)
    return terms


def _streamed(batch: TileBatch, spec: DeviceSpec, parts: Parts) -> Terms:
    """Element-wise passes and row reductions: vector arithmetic against the memory bus."""
    imbalance, tasks = _imbalance(batch, spec)
    cycles, each = _stream_cycles(batch, spec), _task_s(batch, spec)
    compute = cycles / (spec.clock_hz * spec.units) * imbalance
    memory = stream_s(batch, spec, tasks, imbalance)
    per_task, moving = tasks * each / spec.units, sum(memory.values())
    terms: Terms = {"compute_s": compute, **memory, "launch_s": _start_s(tasks, 1, spec)}
    slowest = np.maximum(compute, moving)
    terms["seconds"] = slowest + per_task + terms["launch_s"]
    parts.update(cycles=cycles, each=each, imbalance=imbalance, memory=moving, slowest=slowest, per_task=per_task)
    terms["tasks"] = tasks.astype(float)
    return terms


def _task_s(batch: TileBatch, spec: DeviceSpec) -> float:
    """Return seconds between one task and the next on a core, beside their work.

    Plain streams along one axis are one loop whatever the tasks are; with more axes a task finds its place first. Rows
    start anew, and non-temporal stores drain before the task ends, the lines at its ends one by one.
    """
    dram, flight = spec.layer("dram"), spec.execution.misses_in_flight or 1
    start_s = spec.execution.barrier_s + TASK_CYCLES / spec.clock_hz
    if batch.nontemporal:
        return start_s + 2 * (dram.latency_s or 0.0) / flight
    if batch.structure == "rows":
        return start_s
    return spec.execution.barrier_s if len(batch.geometry.order) > 1 else 0.0


def _stream_cycles(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return cycles of one core for the arithmetic, loads and loops of all stages, ``(N,)``."""
    g = batch.geometry
    rate = spec.compute.ops_per_cycle_per_unit
    lanes = spec.teu.lanes
    v = batch.vector_axis
    cycles = np.zeros(len(batch))
    for s in g.expr.stages:
        mix = instruction_mix(s.body, s.combiner)
        per_point = sum(n * lanes / rate_of(spec, c, s.acc_dtype) for c, n in mix.items())
        strided = [a for a in g.loads if v is not None and lane_distance(a, v) > 1]
        loads = max(1, len(set(s.loads))) * lanes / rate["load_store"]
        vectors = s.points / lanes
        filled = lanes if v is None else np.clip(np.minimum(batch.register[:, v], g.extents[v]), 1, lanes)
        used = lanes / filled
        collected = loads * lanes if strided else used * loads  # elements are collected one by one, however many
        cycles = cycles + vectors * np.maximum(used * per_point, collected)
    unroll = np.maximum(1, batch.register.prod(axis=1) / lanes)
    overhead = sum(s.points for s in g.expr.stages) / lanes / unroll * spec.execution.step_issue_s * spec.clock_hz
    return np.asarray((cycles * lanes if v is None else cycles) + overhead)
