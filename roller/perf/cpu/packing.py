"""Seconds a CPU program spends packing, and what packing does to the traffic on the memory bus."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from roller.expr import run_along
from roller.hardware import DeviceSpec
from roller.perf.batch import TileBatch
from roller.perf.cpu.caches import dram_traffic_bytes, holding_bandwidth
from roller.perf.cpu.lanes import copies_box, lane_distance, room
from roller.tile.geometry import Access, Floats, Ints

#: Cycles a copied row needs around its elements: instructions of our templates.
ROW_CYCLES = 8.0
#: Shares of the gather time, by how the templates copy an element of a panel: in whole vectors; through a divided
#: index, one by one; that with a guard, in rows of vectors and one at a time; in blocks transposed in registers.
WHOLE_ROWS, GATHERED_ROWS, GUARDED_ROWS, GUARDED_ONES, SHUFFLED = 0.25, 2.0, 3.3, 2.3, 0.3
#: Share of the copy time that elements of a box take whose rows have the same bounds in every task: whole vectors.
FIXED_ROWS = 0.4


def packing_s(batch: TileBatch, spec: DeviceSpec, register: Ints, tiles: Ints, tasks: Ints) -> Floats:
    """Return seconds spent packing staged operands: the copy's instructions and its passes through a cache.

    Panels of constants are packed before the first call; boxes belong to a task, whatever they are copied from.
    """
    g, v = batch.geometry, batch.vector_axis
    total = np.zeros(len(batch))
    if not batch.staged:
        return total
    per_task = np.maximum(1, np.minimum(batch.block // batch.register, tiles))
    task = np.where(g.spatial, np.minimum(per_task * register, g.extents), g.extents)
    packed: Floats
    for a in g.loads:
        if a.tensor.name not in batch.staged or (a.tensor.name in batch.constants and not copies_box(a)):
            continue
        step = 0 if v is None else lane_distance(a, v)
        if copies_box(a):
            box = a.elements(task) * float(a.tensor.itemsize_bytes)
            packed = a.elements(task).astype(np.float64) * tasks
            # Columns that lanes stride over are sorted by their phase: a loop each, of loads that are shuffled.
            phases = max(1, int(a.coefficients[-1, v])) if v is not None else 1
            along = np.flatnonzero((a.coefficients[-1] != 0) & g.spatial)
            fixed = (task[:, along] >= g.extents[along]).all(axis=1)  # every task copies the same columns
            share = np.where(fixed, FIXED_ROWS, 2.0 if phases > 1 else 1.0)
            cost = (spec.execution.element_copy_s or 0.0) * spec.clock_hz * share
            rows, _ = a.runs(task)
            cost = cost + rows * phases * ROW_CYCLES / np.maximum(1, a.elements(task))
            # The box is written once and read at least once from the layer that holds it.
            total = total + 2.0 * box * tasks / holding_bandwidth(box, spec)
        else:
            panel, held, _ = _panels(a, batch, register, tiles)
            packed = panel / a.tensor.itemsize_bytes
            lone = v is None or not a.uses[v] or step != 1
            inner = np.where(lone, 1, register[:, v or 0])
            gather = (spec.execution.element_gather_s or 0.0) * spec.clock_hz
            cost = gather * np.where(
                inner >= spec.teu.lanes, _row_share(a, v, spec.teu.lanes), _shuffled(batch, a, register)
            )
            if a.gather and a.bounds and (v is None or not a.uses[v]):
                cost = cost * GUARDED_ONES
            total = total + panel / holding_bandwidth(a.tensor.nbytes, spec) + panel / holding_bandwidth(held, spec)
        total = total + packed * cost / (spec.clock_hz * spec.units)
    return total


def _panels(access: Access, batch: TileBatch, register: Ints, tiles: Ints) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Return bytes packed in all, bytes that pass a cache until they are used, and whether that is up front.

    Several tasks that need the same panel find it packed before them, and by then the whole tensor and the whole panel
    have passed; else every task packs its own.
    """
    g = batch.geometry
    per_task = np.maximum(1, np.minimum(batch.block // batch.register, tiles))
    tasks = np.where(g.spatial, -(-tiles // per_task), 1)
    upfront = np.where(access.uses, 1, tasks).prod(axis=1) > 1
    size, spatial = float(access.tensor.itemsize_bytes), access.uses & g.spatial
    reduced = np.where(access.uses & ~g.spatial, g.extents, 1).astype(np.float64).prod() * size
    whole = np.where(spatial, tiles * register, 1).astype(np.float64).prod(axis=1) * reduced
    mine = np.where(spatial, per_task * register, 1).astype(np.float64).prod(axis=1) * reduced
    return whole, np.where(upfront, whole + access.tensor.nbytes, mine), upfront


def _row_share(access: Access, v: int | None, lanes: int) -> float:
    """Return the share of the gather time that an element of a panel row takes, lanes along axis ``v``."""
    if not access.gather:
        return WHOLE_ROWS
    if v is None:
        return GATHERED_ROWS
    run = run_along(access.index, access.tensor.shape, access.axis_names[v], int(access.axis_extents[v]))
    if access.bounds:
        whole = run is not None and run.step == 1 and run.length >= access.axis_extents[v]
        return WHOLE_ROWS if whole else GUARDED_ROWS
    if run is None or run.length < lanes or not run.step:
        return GATHERED_ROWS
    return WHOLE_ROWS if run.step == 1 else 1.0


def _shuffled(batch: TileBatch, access: Access, register: Ints) -> Floats:
    """Return the share of the gather time of lanes that lie apart: blocks whose rows are contiguous are shuffled."""
    g, v = batch.geometry, batch.vector_axis
    contiguous = any(lane_distance(access, int(x)) == 1 and g.extents[x] >= 16 for x in np.flatnonzero(~g.spatial))
    if v is None or not access.uses[v] or access.gather or access.bounds or not contiguous:
        return np.ones(len(batch))
    return np.where(register[:, v] >= 4, SHUFFLED, 1.0)


def task_dram_bytes(batch: TileBatch, spec: DeviceSpec, register: Ints, tiles: Ints) -> Floats:
    """Return bytes that cross the memory bus while the tasks run, ``(N,)``.

    What was packed before the tasks was read then; the panels come from memory where they outgrow the last level.
    """
    total = np.full(len(batch), dram_traffic_bytes(batch, spec))
    if not total.any():
        return total
    for a in batch.geometry.loads:
        if a.tensor.name in batch.staged and not copies_box(a):
            panel, passed, upfront = _panels(a, batch, register, tiles)
            instead = np.where(passed > room(spec, "l3"), panel, 0.0)
            total = total + np.where(upfront, instead - a.tensor.nbytes, 0.0)
    return total
