"""Traffic between the caches of a CPU while the micro-kernels of its tasks run."""

from __future__ import annotations

import math

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.cpu.common.lanes_and_cache_room import lane_distance, usable_cache_bytes
from roller.templates.cpu.decisions import IN_PLACE, decisions_for_device
from roller.tile.geometry import Access, Floats, Ints

#: Size (bytes) of an accumulator that is stored between chunks of a reduction, for all dtypes except float64.
ACCUMULATOR_BYTES = 4


def cache_traffic_bytes(batch: TileBatch, spec: DeviceSpec, kernels: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the bytes moved from L2 to L1 and from L3 to L2, and the L3 bytes that are waited for, shape ``(N,)``."""
    # All are sums over all micro-kernels; a line that no prefetcher loads counts as many bytes as stream in the same
    # time. The register tiles of a task are a loop nest: an outer loop multiplies an operand's traffic, unless the
    # operand is the same in all iterations and one iteration's data fit the cache. Constants that L2 does not keep from
    # call to call arrive panel by panel: if several register tiles read a panel, the first tile waits for it; otherwise
    # all panels form one stream that overlaps the arithmetic.
    g, d = batch.geometry, decisions_for_device(batch, spec)
    chunks, per_task = d.chunk_count, d.per_task
    task = np.where(g.spatial, np.minimum(per_task * d.tile, g.extents), d.chunk)
    kernel = np.where(g.spatial, d.tile, d.chunk)
    passes = kernels * chunks / per_task.prod(axis=1)
    near, far = _reload_counts(batch, spec, kernel)
    held = to_l1 = to_l2 = streamed = np.zeros(len(batch))
    for a, again_l1, again_l2 in zip(g.loads, near, far, strict=True):
        panel, mine = _tile_line_bytes(a, kernel, batch, spec), _tile_line_bytes(a, task, batch, spec)
        held = held + mine
        jumps = _unprefetched_share(a, kernel, batch, spec)
        to_l1 = to_l1 + passes * again_l1 * panel * (1.0 + jumps * _extra_wait_ratio(spec, "l2"))
        # Boxes of neighbouring tiles overlap, and tiles of a row share lines, so the task's data are loaded once.
        once = np.minimum(panel, mine / np.where(a.uses, per_task, 1).prod(axis=1))
        brought = passes * again_l2 * once * (1.0 + jumps * _extra_wait_ratio(spec, "l3"))
        to_l2 = to_l2 + brought
        if a.tensor.name in batch.constants and a.tensor.nbytes > usable_cache_bytes(spec, "l2"):
            shared = np.where(~a.uses, d.tiles, 1).prod(axis=1) > 1
            streamed = streamed + np.where(shared, brought, 0.0)
    # Results stay in a buffer of the task from chunk to chunk.
    results = task[:, g.spatial].prod(axis=1) * float(ACCUMULATOR_BYTES)
    outputs = d.tile[:, g.spatial].prod(axis=1) * float(ACCUMULATOR_BYTES)
    waiting = np.where(chunks > 1, 2.0 * kernels * chunks * outputs, 0.0)
    near_l1, near_l2 = results <= usable_cache_bytes(spec, "l1"), held + results <= usable_cache_bytes(spec, "l2")
    return to_l1 + np.where(near_l1, 0.0, waiting), to_l2 + np.where(near_l2, 0.0, waiting), streamed


def _reload_counts(batch: TileBatch, spec: DeviceSpec, kernel: Ints) -> tuple[list[Floats], list[Floats]]:
    """Return, per operand, how often a task loads the panel into L1, and how often into L2, each of shape ``(N,)``."""
    g, tile = batch.geometry, kernel
    near = [np.ones(len(batch)) for _ in g.loads]
    far = [np.ones(len(batch)) for _ in g.loads]
    d = decisions_for_device(batch, spec)
    for axis in d.loop_order[0, ::-1].tolist():  # all programs of a batch have the same order, except dot products
        held = sum(_tile_line_bytes(a, tile, batch, spec) / _usable_cache_share(a, tile, batch, spec) for a in g.loads)
        in_l1, in_l2 = held <= usable_cache_bytes(spec, "l1"), held <= usable_cache_bytes(spec, "l2")
        trips = d.per_task[:, axis]
        tile = tile.copy()
        tile[:, axis] = np.minimum(tile[:, axis] * trips, g.extents[axis])
        for n, a in enumerate(g.loads):
            near[n] = near[n] * (trips if a.uses[axis] else np.where(in_l1, 1, trips))
            far[n] = far[n] * (trips if a.uses[axis] else np.where(in_l2, 1, trips))
    return near, far


def _extra_wait_ratio(spec: DeviceSpec, name: str) -> float:
    """Return the extra waiting time for a line that was not prefetched, relative to the time of a streamed line."""
    layer, line = spec.layer(name), spec.layer("l1").line_bytes or spec.layer("l1").transaction_bytes
    alone_s = (layer.latency_s or 0.0) / (spec.execution.misses_in_flight or 1)
    return max(0.0, alone_s * layer.bandwidth_bytes_per_s / spec.units / line - 1.0)


def _unprefetched_share(access: Access, tile: Ints, batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return the share of lines that no prefetcher loads: distant reduction points have only a few lines each."""
    g, l1 = batch.geometry, spec.layer("l1")
    line, reductions = l1.line_bytes or l1.transaction_bytes, np.flatnonzero(~g.spatial)
    ahead_lines = spec.execution.prefetched_lines
    moved = decisions_for_device(batch, spec).staging(access) != IN_PLACE or access.gather
    if moved or not (l1.page_bytes and ahead_lines and len(reductions)):
        return np.zeros(len(batch))
    if lane_distance(access, int(reductions[-1])) * access.tensor.itemsize_bytes < l1.page_bytes // 2:
        return np.zeros(len(batch))
    _, run = _rows_and_runs_of_tile(access, tile, batch)
    lines = run * access.tensor.itemsize_bytes / line
    return np.asarray(np.clip(1.0 - lines / ahead_lines, 0.0, 1.0))


def _tile_line_bytes(access: Access, tile: Ints, batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return the number of bytes in a packed data tile, or in all lines that hold an unpacked tile."""
    # A run of ``r`` bytes at any start touches ``r / line + 1 - itemsize / line`` lines on average. A window with gaps
    # skips the elements between its taps, so it moves no more than its taps do separately.
    size, d = access.tensor.itemsize_bytes, decisions_for_device(batch, spec)
    staged = d.staging(access) != IN_PLACE
    if staged or access.gather:
        return np.asarray(access.elements(tile) * float(d.held_itemsize_bytes(access) if staged else size))
    line = spec.layer("l1").line_bytes or spec.layer("l1").transaction_bytes
    taps = access.shared_axis_mask & ~batch.geometry.spatial

    def lines(part: Ints) -> Floats:
        rows, run = _rows_and_runs_of_tile(access, part, batch)
        return np.asarray(np.minimum(rows * (run * size + line - size), access.elements(part) * float(line)))

    whole = lines(tile)
    if not taps.any():
        return whole
    return np.asarray(np.minimum(whole, tile[:, taps].prod(axis=1) * lines(np.where(taps, 1, tile))))


def _usable_cache_share(access: Access, tile: Ints, batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return the share of a cache that rows of an unpacked tile can use: their pitch may map them to few sets."""
    # Rows ``pitch`` bytes apart start at ``page / gcd(pitch, page)`` different offsets of a page. Only the offset in
    # the page determines the set in L1, and in L2 within those of the physical page.
    shape, size = access.tensor.shape, access.tensor.itemsize_bytes
    line, page = spec.layer("l1").line_bytes, spec.layer("l1").page_bytes
    if (
        decisions_for_device(batch, spec).staging(access) != IN_PLACE
        or access.gather
        or len(shape) < 2
        or not line
        or not page
    ):
        return np.ones(len(batch))
    places = page // math.gcd(shape[-1] * size, page)
    _, run = _rows_and_runs_of_tile(access, tile, batch)
    return np.minimum(1.0, places * (run * float(size) + line) / page)


def _rows_and_runs_of_tile(access: Access, tile: Ints, batch: TileBatch) -> tuple[Ints, Ints]:
    """Return the number of rows in a data tile and the span of a row (see ``Access.runs``), cached per batch."""
    known = batch._memo.setdefault("runs", {})
    if (id(access), id(tile)) not in known:
        known[id(access), id(tile)] = access, tile, access.runs(tile)
    found: tuple[Ints, Ints] = known[id(access), id(tile)][2]
    return found
