"""Price of streams on a CPU: one pass over all tensors, from the layer that holds them."""

from __future__ import annotations

import numpy as np

from roller.expr import instruction_mix
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.cpu.common.conversion_costs import store_conversion_cycles
from roller.templates.cpu.common.data_kept_in_caches import (
    bandwidth_of_active_cores,
    read_and_written_bytes,
    share_still_cached,
)
from roller.templates.cpu.common.lanes_and_cache_room import lane_distance, ops_per_cycle, usable_cache_bytes
from roller.templates.cpu.common.task_scheduling_costs import Parts, Terms, imbalance, start_parallel_loops_s
from roller.templates.cpu.decisions import decisions_for_device, stores_start_at_lines
from roller.tile.geometry import Floats, Geometry, Ints

#: Number of cycles per task of rows in addition to those of its rows: for bounds, remainders and their branches in our
#: templates' code.
TASK_CYCLES = 200.0


def results_leave_caches(geometry: Geometry, spec: DeviceSpec) -> bool:
    """Return whether results leave the last-level cache before they are read."""
    read_back = any(ld.tensor in geometry.expr.outputs for s in geometry.expr.stages for ld in s.loads)
    return sum(read_and_written_bytes(geometry)) > usable_cache_bytes(spec, "l3") and not read_back


def stream_seconds_by_layer(batch: TileBatch, spec: DeviceSpec, tasks: Ints, imbalance: Floats) -> dict[str, Floats]:
    """Return the seconds of a pass over all tensors, keyed by the layer that it waits for, each of shape ``(N,)``."""
    # In every call, a core works on the same part of the tensors: data that fit in the L2 of the active cores come from
    # L2, data that fit in L3 from L3, and the rest from memory. Beyond L2, a store reads its line before it writes it
    # (write-allocate) and writes it back; non-temporal stores of whole lines only write.
    inputs, outputs = read_and_written_bytes(batch.geometry)
    both = float(inputs + outputs)
    l2, l3, dram = (spec.layer(n) for n in ("l2", "l3", "dram"))
    active = np.minimum(tasks, spec.units)
    near = 0.0 * active if batch.nontemporal else share_still_cached(both, usable_cache_bytes(spec, "l2") * active)
    l2_s = (near * both + _reloaded_line_bytes(batch, spec)) / l2.bandwidth_bytes_per_s * imbalance
    if batch.nontemporal:
        cached = inputs * share_still_cached(inputs, usable_cache_bytes(spec, "l3"))
        # A line common to two rows is written twice, and memory reads the rest of the line for each partial write.
        far = inputs - cached + outputs * (1.0 + 2.0 * _partial_line_share(batch, spec))
    else:
        kept = share_still_cached(both, usable_cache_bytes(spec, "l3"))
        cached, far = (both + outputs) * kept, np.full(len(batch), (both + outputs) * (1.0 - kept))
    away = (1.0 - near) * imbalance
    return {
        "l2_s": l2_s,
        "l3_s": away * cached / (bandwidth_of_active_cores(l3, active, spec) * spec.units / active),
        "dram_s": away * far / (bandwidth_of_active_cores(dram, active, spec) * spec.units / active),
    }


def _reloaded_line_bytes(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return how many bytes L1 loads again because each lane takes one element of a separate line at a time."""
    # The next elements of the lines are read in the next step of the axis along which the lines run. A task that covers
    # it finds them in L1 if the lines of one step fit; others load every line once per element.
    g, v = batch.geometry, batch.vector_axis
    total = np.zeros(len(batch))
    if v is None or not g.spatial.all():
        return total
    line = spec.layer("l1").line_bytes or spec.layer("l1").transaction_bytes
    for a in g.loads:
        along = next((x for x in g.order if lane_distance(a, x) == 1), None)
        if along is None or lane_distance(a, v) < 2:
            continue
        whole = line // a.tensor.itemsize_bytes
        inside = [x for x in g.order[g.order.index(along) + 1 :] if a.uses[x]]
        kept = batch.block[:, inside].prod(axis=1) * line <= usable_cache_bytes(spec, "l1")
        taken = np.where(kept, np.minimum(batch.block[:, along], whole), 1)
        total = total + float(g.extents[a.uses].prod()) * line * (1.0 / taken - 1.0 / whole)
    return total


def _partial_line_share(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return the share of written lines that vectors do not fill: at the ends of rows, or in all of short rows."""
    g, v = batch.geometry, batch.vector_axis
    line = spec.layer("l1").line_bytes or 1
    if v is None or lane_distance(g.store, v) != 1:
        return np.ones(len(batch))
    row = int(g.extents[v]) * g.store.tensor.itemsize_bytes
    d = decisions_for_device(batch, spec)
    return np.where(stores_start_at_lines(d.lanes, d.tiles[:, v], 1), min(1.0, 2.0 * line / row), 1.0)


def price(batch: TileBatch, spec: DeviceSpec, parts: Parts) -> Terms:
    """Price a batch: return ``seconds`` and its terms as arrays of shape ``(N,)``."""
    return streaming_price_terms(batch, spec, parts, _seconds_between_tasks(batch, spec))


def task_start_s(spec: DeviceSpec) -> float:
    """Return the time (seconds) that it takes to start a task."""
    return spec.execution.barrier_s + TASK_CYCLES / spec.clock_hz


def nontemporal_drain_s(spec: DeviceSpec) -> float:
    """Return the time (seconds) that the lines at both ends of a task's non-temporal stores take to drain."""
    return 2 * (spec.layer("dram").latency_s or 0.0) / (spec.execution.misses_in_flight or 1)


def _seconds_between_tasks(batch: TileBatch, spec: DeviceSpec) -> float:
    """Return the time (seconds) between two tasks on a core, excluding their work."""
    # A plain stream along one axis is one loop for any number of tasks; with more axes, a task first computes its
    # position.
    if batch.nontemporal:
        return task_start_s(spec) + nontemporal_drain_s(spec)
    return spec.execution.barrier_s if len(batch.geometry.order) > 1 else 0.0


def streaming_price_terms(batch: TileBatch, spec: DeviceSpec, parts: Parts, each: float) -> Terms:
    """Return the terms of element-wise passes and row reductions; ``each`` is the time between tasks (seconds)."""
    idle, tasks = imbalance(batch, spec)
    cycles = _stream_cycles(batch, spec)
    compute = cycles / (spec.clock_hz * spec.units) * idle
    memory = stream_seconds_by_layer(batch, spec, tasks, idle)
    per_task, moving = tasks * each / spec.units, sum(memory.values())
    terms: Terms = {"compute_s": compute, **memory, "launch_s": start_parallel_loops_s(tasks, 1, spec)}
    slowest = np.maximum(compute, moving)
    terms["seconds"] = slowest + per_task + terms["launch_s"]
    parts.update(cycles=cycles, each=each, imbalance=idle, memory=moving, slowest=slowest, per_task=per_task)
    terms["tasks"] = tasks.astype(float)
    return terms


def _stream_cycles(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return how many cycles one core takes for the arithmetic, loads and loops of all stages, shape ``(N,)``."""
    g = batch.geometry
    rate = spec.compute.ops_per_cycle_per_unit
    lanes = spec.teu.lanes
    v = batch.vector_axis
    cycles = np.zeros(len(batch))
    for s in g.expr.stages:
        mix = instruction_mix(s.body, s.combiner)
        per_point = sum(n * lanes / ops_per_cycle(spec, c, s.acc_dtype) for c, n in mix.items())
        if s is g.expr.stages[-1]:
            per_point += store_conversion_cycles(g.expr, spec)
        strided = [a for a in g.loads if v is not None and lane_distance(a, v) > 1]
        loads = max(1, len(set(s.loads))) * lanes / rate["load_store"]
        vectors = s.points / lanes
        filled = lanes if v is None else np.clip(np.minimum(batch.register[:, v], g.extents[v]), 1, lanes)
        used = lanes / filled
        collected = loads * lanes if strided else used * loads  # strided elements are collected one by one
        cycles = cycles + vectors * np.maximum(used * per_point, collected)
    unroll = np.maximum(1, batch.register.prod(axis=1) / lanes)
    overhead = sum(s.points for s in g.expr.stages) / lanes / unroll * spec.execution.step_issue_s * spec.clock_hz
    return np.asarray((cycles * lanes if v is None else cycles) + overhead)
