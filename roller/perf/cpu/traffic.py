"""Bytes between the layers of a CPU: panels through the caches, packing, the memory bus."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roller.expr import run_along
from roller.hardware import DeviceSpec, MemoryLayer
from roller.perf.batch import TileBatch
from roller.perf.cpu.lanes import (
    chunk_count,
    chunk_extents,
    copies_box,
    effective_register,
    lane_count,
    lane_distance,
    room,
)
from roller.tile.geometry import Access, Floats, Geometry, Ints
from roller.tile.program import ALIGNED_TILES

#: Bytes of an accumulator that waits between chunks of a reduction: all but float64's.
ACCUMULATOR_BYTES = 4
#: Cycles a copied row needs around its elements: instructions of our templates.
ROW_CYCLES = 8.0
#: Share of the gather time that elements of a panel row take: loaded as whole vectors, or collected one by one through
#: a divided index (with its guard; several times what an element with a plain address takes).
WHOLE_ROWS, GATHERED_ROWS = 0.25, 2.0
GUARDED_ROWS, GUARDED_LONE = 3.3, 2.3
#: Share of the gather time that blocks transposed in registers take.
SHUFFLED = 0.3


def cache_traffic(
    batch: TileBatch, spec: DeviceSpec, register: Ints, tiles: Ints, kernels: Floats
) -> tuple[Floats, Floats]:
    """Return bytes from L2 into L1 and from L3 into L2 over all micro-kernels.

    Notes
    -----
    The register tiles of a task are a loop nest. Going outwards, a loop multiplies what an operand brings in, unless
    the operand is the same in all its iterations and one iteration brings in no more than the cache holds: then the
    operand is still there when the next one starts.
    """
    g = batch.geometry
    depth = np.minimum(chunk_extents(batch), g.extents)
    chunks = chunk_count(batch)
    per_task = np.where(g.spatial, np.maximum(1, np.minimum(batch.block // batch.register, tiles)), 1)
    in_task = per_task.prod(axis=1)
    task = np.where(g.spatial, np.minimum(per_task * register, g.extents), depth)
    l1, l2 = room(spec, "l1"), room(spec, "l2")
    passes = kernels * chunks / in_task
    results = task[:, g.spatial].prod(axis=1) * float(ACCUMULATOR_BYTES)
    held = np.zeros(len(batch))
    to_l1, to_l2 = np.zeros(len(batch)), np.zeros(len(batch))
    near: list[Floats] = []
    for a in g.loads:
        near.append(np.ones(len(batch)))
    far = [x.copy() for x in near]
    tile = np.where(g.spatial, register, depth)
    for axis in reversed(_loop_order(batch)):
        bytes_now = [_moved_bytes(a, tile, batch, spec) for a in g.loads]
        crowd = [1.0 if a.tensor.name in batch.staged else _set_share(a, spec) for a in g.loads]
        fits_l1 = sum((x / c for x, c in zip(bytes_now, crowd, strict=True)), held) <= l1
        fits_l2 = sum(bytes_now, held) <= l2
        tile = tile.copy()
        tile[:, axis] = np.minimum(tile[:, axis] * per_task[:, axis], g.extents[axis])
        trips = per_task[:, axis]
        for n, a in enumerate(g.loads):
            more = trips if a.uses[axis] else np.where(fits_l1, 1, trips)
            near[n] = near[n] * more
            far[n] = far[n] * (trips if a.uses[axis] else np.where(fits_l2, 1, trips))
    kernel = np.where(g.spatial, register, depth)
    sparse1, sparse2 = np.zeros(len(batch)), np.zeros(len(batch))
    for n, a in enumerate(g.loads):
        panel = _moved_bytes(a, kernel, batch, spec)
        jumps = _jumps(a, kernel, batch, spec)
        sparse1 = sparse1 + jumps * passes * near[n] * panel
        sparse2 = sparse2 + jumps * passes * far[n] * panel
        mine = _moved_bytes(a, task, batch, spec)
        held = held + mine
        to_l1 = to_l1 + passes * near[n] * panel
        # Boxes of neighbouring tiles overlap, and tiles of a row share lines: the task's data are brought in once.
        used = np.where(a.uses, per_task, 1).prod(axis=1)
        to_l2 = to_l2 + passes * far[n] * np.minimum(panel, mine / used)
    # Results wait in a buffer of the task from chunk to chunk.
    waiting = np.where(chunks > 1, 2.0 * kernels * chunks * register[:, g.spatial].prod(axis=1) * ACCUMULATOR_BYTES, 0.0)
    to_l1, to_l2 = to_l1 + np.where(results > l1, waiting, 0.0), to_l2 + np.where(held + results > l2, waiting, 0.0)
    line, flight = spec.layer("l1").line_bytes or 64, spec.execution.misses_in_flight or 1
    waits = [(spec.layer(x).latency_s or 0.0) * spec.layer(x).bandwidth_bytes_per_s / spec.units / flight / line for x in ("l2", "l3")]
    return to_l1 + sparse1 * max(0.0, waits[0] - 1.0), to_l2 + sparse2 * max(0.0, waits[1] - 1.0)


def _jumps(access: Access, tile: Ints, batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return the share of lines no prefetcher brings: every reduction point is on another page and takes a few lines."""
    g, page, line = batch.geometry, spec.layer("l1").page_bytes, spec.layer("l1").line_bytes or 64
    reductions = np.flatnonzero(~g.spatial)
    if access.tensor.name in batch.staged or access.gather or not page or not len(reductions):
        return np.zeros(len(batch))
    pitch = lane_distance(access, int(reductions[-1])) * access.tensor.itemsize_bytes
    if pitch < page // 2:
        return np.zeros(len(batch))
    _, run = access.runs(tile)
    return np.clip(1.0 - run * access.tensor.itemsize_bytes / (8.0 * line), 0.0, 1.0)


def _loop_order(batch: TileBatch) -> list[int]:
    """Return the spatial axes in the order in which a task loops over its register tiles, as the template does."""
    g, v = batch.geometry, batch.vector_axis
    axes = [int(a) for a in np.flatnonzero(g.spatial)]
    packed = any(a.uses[v] and a.tensor.name in batch.staged and not copies_box(a) for a in g.loads if v is not None)
    return [v, *(a for a in axes if a != v)] if packed and v is not None else axes


def _moved_bytes(access: Access, tile: Ints, batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return the bytes of the lines that hold a data tile: all of it where it is packed, whole lines where it is not.

    A run of ``r`` bytes that starts anywhere touches ``r / line + 1 - itemsize / line`` lines on average.
    """
    size = access.tensor.itemsize_bytes
    if access.tensor.name in batch.staged or access.gather:
        return np.asarray(access.elements(tile) * float(size))
    line = spec.layer("l1").line_bytes or spec.layer("l1").transaction_bytes
    rows, run = access.runs(tile)
    return np.asarray(np.minimum(rows * (run * size + line - size), access.elements(tile) * float(line)))


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
            shuffles = 2 if phases > 1 else 1
            cost = np.full(len(batch), (spec.execution.element_copy_s or 0.0) * spec.clock_hz * shuffles)
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
            if v is None or not a.uses[v]: cost=cost*(GUARDED_LONE if a.gather and a.bounds else 1)
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


def holding_bandwidth(size_bytes: Any, spec: DeviceSpec) -> Floats:
    """Return bytes per second of the fastest layer that holds ``size_bytes``."""
    l1, l2, l3 = (spec.layer(n) for n in ("l1", "l2", "l3"))
    slower = np.where(
        size_bytes <= room(spec, "l3"),
        l3.bandwidth_bytes_per_s,
        spec.layer("dram").bandwidth_bytes_per_s,
    )
    inner = np.where(size_bytes <= room(spec, "l2"), l2.bandwidth_bytes_per_s, slower)
    return np.where(size_bytes <= room(spec, "l1"), l1.bandwidth_bytes_per_s, inner)


def dram_traffic_bytes(batch: TileBatch, spec: DeviceSpec) -> float:
    """Return bytes that must cross the memory bus: all that the last-level cache has not kept from the call before."""
    inputs, outputs = _tensor_bytes(batch.geometry)
    # Write-allocate reads a line before it is written.
    return float(inputs + 2 * outputs) * (1.0 - cached_share(inputs + outputs, room(spec, "l3")))


def cached_share(working_set_bytes: float, capacity_bytes: float) -> float:
    """Return the share of a working set that a cache still holds when a loop over it comes round again.

    Examples
    --------
    >>> cached_share(1.0, 2.0), round(cached_share(2.0, 1.0), 2)
    (1.0, 0.2)

    Notes
    -----
    Pure LRU would drop to nothing as soon as the set exceeds the cache. Last-level caches are hashed over slices and
    replace pseudo-randomly: a line survives the ``(1 - h) W / C`` evictions per line until it is used again with
    probability ``h = exp(-(1 - h) W / C)``.
    """
    if working_set_bytes <= capacity_bytes:
        return 1.0
    ratio, share = working_set_bytes / capacity_bytes, 0.0
    for _ in range(60):
        share = math.exp((share - 1.0) * ratio)
    return share


def _tensor_bytes(geometry: Geometry) -> tuple[int, int]:
    """Return the bytes of the tensors read, however often each is, and of those written."""
    read = {a.tensor.name: a.tensor.nbytes for a in geometry.reads}
    return sum(read.values()), sum(t.nbytes for t in geometry.expr.output_tensors)


def leaves_caches(geometry: Geometry, spec: DeviceSpec) -> bool:
    """Whether results are gone from the last-level cache before anyone reads them."""
    read_back = any(ld.tensor in geometry.expr.outputs for s in geometry.expr.stages for ld in s.loads)
    return kept_share(geometry, spec) < 1.0 and not read_back


def kept_share(geometry: Geometry, spec: DeviceSpec) -> float:
    """Return the share of the results that a next pass like this one finds in the last-level cache.

    Notes
    -----
    ``I`` bytes are read and ``O`` written at an even pace, and the cache keeps the last ``C`` of both. Having read
    ``p`` of the results, and written as much, the next pass has pushed out ``2 p`` of what was kept, in it
    ``2 p O / (I + O)`` of the results; it is past what is lost from ``p = O (I + O - C) / (I - O)`` on. Where
    ``O >= I`` it never is: what stays is always just ahead.
    """
    inputs, outputs = _tensor_bytes(geometry)
    lost = inputs + outputs - room(spec, "l3")
    if lost <= 0:
        return 1.0
    return max(0.0, 1.0 - lost / (inputs - outputs)) if inputs > outputs else 0.0


def stream_s(batch: TileBatch, spec: DeviceSpec, tasks: Ints, imbalance: Floats) -> dict[str, Floats]:
    """Return seconds that one pass over all tensors takes, under the name of the layer it waits for, ``(N,)`` each.

    Notes
    -----
    Call after call a core works on the same part of the tensors: what fits the L2 of the cores at work comes from
    there, what fits the L3 from the L3, the rest from memory. Beyond the L2 a store reads its line before it writes
    it (write-allocate) and writes it back; non-temporal stores of whole lines only write.
    """
    inputs, outputs = _tensor_bytes(batch.geometry)
    both = float(inputs + outputs)
    l2, l3, dram = (spec.layer(n) for n in ("l2", "l3", "dram"))
    active = np.minimum(tasks, spec.units)
    near = np.full(len(batch), not batch.nontemporal) & (both <= room(spec, "l2") * active)
    l2_s = (np.where(near, both, 0.0) + _lines_again(batch, spec)) / l2.bandwidth_bytes_per_s * imbalance
    if batch.nontemporal:
        cached = inputs * cached_share(inputs, room(spec, "l3"))
        far = inputs - cached + outputs * (1.0 + _partial_lines(batch, spec))
    else:
        kept = cached_share(both, room(spec, "l3"))
        cached, far = (both + outputs) * kept, np.full(len(batch), (both + outputs) * (1.0 - kept))
    away = np.where(near, 0.0, imbalance)
    return {
        "l2_s": l2_s,
        "l3_s": away * cached / (bandwidth_of(l3, active, spec) * spec.units / active),
        "dram_s": away * far / (bandwidth_of(dram, active, spec) * spec.units / active),
    }


def bandwidth_of(layer: MemoryLayer, active: Ints, spec: DeviceSpec) -> Floats:
    """Return bytes per second that ``active`` cores draw from a layer together, ``(N,)``.

    A core alone draws ``bandwidth_per_teu_bytes_per_s`` where that is known, and its share where it is not; together
    they draw no more than the layer gives.
    """
    share = layer.bandwidth_bytes_per_s / spec.units
    alone = max(share, layer.bandwidth_per_teu_bytes_per_s or 0.0)
    return np.asarray(np.minimum(active * alone, layer.bandwidth_bytes_per_s))


def _lines_again(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return bytes that lanes far apart make L1 load again: of each line they take one element at a time.

    The next elements of the lines are taken at the next step of the axis they lie along. A task that covers it finds
    them in L1 where the lines of one step fit; all others load every line once per element.
    """
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
        kept = batch.block[:, inside].prod(axis=1) * line <= room(spec, "l1")
        taken = np.where(kept, np.minimum(batch.block[:, along], whole), 1)
        total = total + float(g.extents[a.uses].prod()) * line * (1.0 / taken - 1.0 / whole)
    return total


def _partial_lines(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return the share of written lines that vectors do not fill: those at the ends of rows, or all of short ones."""
    g, v = batch.geometry, batch.vector_axis
    line = spec.layer("l1").line_bytes or 1
    if v is None or lane_distance(g.store, v) != 1:
        return np.ones(len(batch))
    row = int(g.extents[v]) * g.store.tensor.itemsize_bytes
    aligned = -(-g.extents[v] // effective_register(batch, lane_count(spec, 4))[:, v]) >= ALIGNED_TILES
    return np.where(aligned, min(1.0, 2.0 * line / row), 1.0)


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
