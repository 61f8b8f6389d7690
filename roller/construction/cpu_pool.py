"""The pool of CPU programs of one canonical form: micro-kernels, panel steps, tasks."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from roller.construction.cpu_dots import dot_axes, dots_batch
from roller.construction.cpu_split import split_batches
from roller.construction.gpu_pool import structure_of
from roller.construction.options import ConstructOptions
from roller.construction.scale_up import unique_rows
from roller.construction.winograd import winograd_pool
from roller.hardware import DeviceSpec
from roller.perf.batch import TileBatch
from roller.perf.cpu import lane_count, lane_distance, leaves_caches, price
from roller.tile.geometry import Floats, Geometry, Ints

#: Rows of a micro-kernel along a scalar (broadcast) axis.
_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14)
#: Equal parts of a short axis that are rows too, and rows along two axes.
_SPLITS, _PAIRS = 4, (2, 3, 4, 7, 12)
#: Vectors of a micro-kernel along the vector axis.
VECTORS = (1, 2, 3, 4, 6, 8)
#: Micro-kernels that are given tasks, per vector axis; and how far behind the best one an axis may be.
_KERNELS, _NEAR = 24, 1.8
#: Register tiles of one task along an axis, beside all of them.
_PER_TASK = (1, 2, 4, 8, 16, 32, 64)
#: Register tiles of one task of a stream or of rows.
_STREAMED = (1, 2, 4, 16, 64, 256, 1024, 4096)
#: Task shapes per micro-kernel.
_TASKS = 48
#: Pieces of a deep reduction (elements), and tasks tried with all: so many, and one in so many of the rest.
CHUNKS, _CHUNKED_TASKS = (8, 16, 256, 512, 1024), 6
#: Pieces shorter than this are for a single row of outputs: several rows cost more to put away than to compute.
_SHORT_CHUNK = 64


def cpu_pool(geometry: Geometry, spec: DeviceSpec, options: ConstructOptions) -> list[TileBatch]:
    """Return batches of distinct programs: one per vector axis and packing, and per size of Winograd's tiles."""
    structure = structure_of(geometry)
    if structure == "tiled":
        batches = []
        for v, registers in micro_kernels(geometry, spec, options.constants).items():
            register, block = np.split(_tiled(geometry, spec, registers), 2, axis=1)
            for staged in staged_choices(geometry, v, options.constants):
                batches.append(_batch(geometry, "tiled", register, block, staged, v))
        batches += [
            dots_batch(geometry, spec, v, row_axes(geometry, v), lambda r: list(_tasks(_tiles(geometry, r), spec)))
            for v in dot_axes(geometry, spec)
        ]
        if options.split_k and (geometry.extents[geometry.spatial] > 1).any():
            batches += [s for b in batches for s in split_batches(b, spec)]
    elif structure == "streaming":
        batches = [_streaming(geometry, spec, geometry.order[-1])]
        batches = [choice for b in batches for choice in store_choices(b, spec)]
    else:
        batches = _rows(geometry, spec)
    kept, share = [], max(1, options.pool // len(batches))
    for b in (*batches, *(winograd_pool(geometry, spec) if options.winograd else ())):
        waste = (-geometry.extents % b.block) / geometry.extents
        ok = (waste <= options.epsilon).all(axis=1) if geometry.expr.allow_padding else (waste == 0).all(axis=1)
        if options.epsilon < 1.0 or not geometry.expr.allow_padding:
            b = b.take(np.flatnonzero(ok))
        if len(b) > share:
            b = b.take(np.linspace(0, len(b) - 1, share).astype(np.int64))
        kept.append(b)
    return kept


def vector_axes(geometry: Geometry, structure: str) -> list[int]:
    """Return the axes vectors may run along: any spatial one of a tiled reduction, the contiguous ones elsewhere."""
    spatial = [int(v) for v in np.flatnonzero(geometry.spatial)]
    if structure == "tiled":
        return [v for v in spatial if geometry.extents[v] > 1] or spatial[-1:]
    if structure == "streaming":
        return [geometry.order[-1]]
    reductions = [int(a) for a in np.flatnonzero(~geometry.spatial)]
    return list(dict.fromkeys([*reductions[-1:], *geometry.order[-1:]]))


def staged_choices(geometry: Geometry, v: int, constants: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the sets of inputs to pack for vector axis ``v``: what must be packed, and that with what may be.

    Packed of necessity: accesses with guards or gathers, and vectors whose lanes are not neighbours in memory. A
    vector operand with neighbouring lanes may be packed (its rows then cannot collide in a cache); a broadcast
    operand read in place costs nothing and is packed only where that costs no call anything: ``constants`` are packed
    ahead, with what else may be and without.
    """
    must, may = set[str](), set[str]()
    for a in geometry.loads:
        step = lane_distance(a, v)
        if a.bounds or a.gather or step > 1:
            must.add(a.tensor.name)
        elif step == 1 or a.tensor.name in constants:
            may.add(a.tensor.name)
    sets = (must, must | (may & set(constants)), must | may)
    return list(dict.fromkeys(tuple(n for n in geometry.load_names if n in chosen) for chosen in sets))


def store_choices(batch: TileBatch, spec: DeviceSpec) -> list[TileBatch]:
    """Return the batch as it is and, where streams leave no result in a cache, with non-temporal stores."""
    past = batch.structure == "streaming" and leaves_caches(batch.geometry, spec)
    return [batch, replace(batch, nontemporal=True)] if past else [batch]


def _batch(g: Geometry, structure: str, register: Ints, block: Ints, staged: tuple[str, ...], v: int) -> TileBatch:
    """Assemble a batch; the panel (l1 tile) is the register tile over the task's reduction step."""
    panel = np.where(g.spatial, register, block)
    return TileBatch(g, structure, register, block, np.ones(len(block), np.int64), staged, panel, v)


def micro_kernels(geometry: Geometry, spec: DeviceSpec, constants: tuple[str, ...]) -> dict[int, Ints]:
    """Return the register tiles worth trying with many tasks, ``(N, axes)`` per vector axis.

    Construction goes from the fastest layer outwards: micro-kernels are compared first, each as one task; the most
    promising ones, along axes that come near the best, are given tasks.
    """
    found, best = dict[int, tuple[Ints, Floats]](), np.inf
    for v in vector_axes(geometry, "tiled"):
        register = _register_tiles(geometry, spec, v)
        block = np.where(geometry.spatial, -(-geometry.extents // register) * register, geometry.extents)
        choices = staged_choices(geometry, v, constants)
        priced = [price(_batch(geometry, "tiled", register, block, s, v), spec)["seconds"] for s in choices]
        seconds = np.minimum.reduce(priced)
        found[v] = register, seconds
        best = min(best, float(seconds.min()))
    near = {v: f for v, f in found.items() if f[1].min() <= _NEAR * best} or found
    return {v: register[np.sort(np.argsort(s, kind="stable")[:_KERNELS])] for v, (register, s) in near.items()}


def _register_tiles(geometry: Geometry, spec: DeviceSpec, v: int) -> Ints:
    """Return the register tiles whose lanes lie along axis ``v``, ``(N, axes)``."""
    lanes = lane_count(spec, 4)
    usable = spec.limits.usable_vector_registers or 1  # the schema requires it of a CPU
    others, found = row_axes(geometry, v), []
    for vectors in VECTORS:
        if vectors > 1 and vectors * lanes > int(geometry.extents[v]):
            continue
        for rows in row_choices(geometry, others, max(1, usable // vectors)):
            register = np.ones(len(geometry.names), np.int64)
            register[v] = vectors * lanes
            register[others] = rows
            found.append(register)
    return np.stack(found)


def _tiled(geometry: Geometry, spec: DeviceSpec, registers: Ints) -> Ints:
    """Return distinct rows of register tile and task side by side, ``(N, 2 * axes)``."""
    steps = [np.where(geometry.spatial, 1, geometry.extents), *reduction_chunks(geometry)]
    found, known = [], dict[bytes, tuple[Ints, Ints]]()
    for register in registers:
        tiles = _tiles(geometry, register)
        key = tiles.tobytes()
        if key not in known:
            tasks = _tasks(tiles, spec)
            known[key] = tasks, _chunked_tasks(tasks)
        rows = register.prod() // register.max()
        for n, step in enumerate(steps):
            if n and rows > 1 and step.max() < _SHORT_CHUNK:
                continue
            block = np.where(geometry.spatial, register * known[key][n > 0], step)
            found.append(np.concatenate([np.broadcast_to(register, block.shape), block], axis=1))
    return unique_rows(np.concatenate(found))


def reduction_chunks(geometry: Geometry) -> list[Ints]:
    """Return the pieces of a deep reduction to consider.

    The tiles of a task take turns, piece by piece, and read operands while their lines and pages are still near.
    """
    deep = np.flatnonzero(~geometry.spatial & (geometry.extents > 1))
    if len(deep) != 1:
        return []
    return [np.where(geometry.spatial, 1, c) for c in CHUNKS if 2 * c <= geometry.extents[deep[0]]]


def _chunked_tasks(tasks: Ints) -> Ints:
    """Return the largest tasks, which share most, and some of the others; tasks of one tile have nothing to share."""
    sizes = tasks.prod(axis=1)
    several = tasks[np.argsort(-sizes, kind="stable")][: int((sizes > 1).sum())]
    return np.concatenate([several[:_CHUNKED_TASKS], several[_CHUNKED_TASKS::_CHUNKED_TASKS]])


def row_axes(geometry: Geometry, v: int) -> list[int]:
    """Axes worth several rows of a micro-kernel: some operand is reused along them, or a window slides."""
    out = []
    for a in np.flatnonzero(geometry.spatial):
        shared = any(not x.uses[a] for x in geometry.loads)
        window = any(
            x.coefficients[d, a] and np.count_nonzero(x.coefficients[d]) > 1
            for x in geometry.loads
            for d in range(len(x.coefficients))
        )
        if a != v and (shared or window):
            out.append(int(a))
    return out


def _tiles(geometry: Geometry, register: Ints) -> Ints:
    """Return the number of register tiles along every spatial axis, 1 along the others."""
    return np.where(geometry.spatial, -(-geometry.extents // register), 1)


def _tasks(tiles: Ints, spec: DeviceSpec) -> Ints:
    """Return register tiles per task along every axis, ``(N, axes)``: a few sizes, a share per core, all in one."""
    choices = [_per_task(int(n), spec.units) for n in tiles]
    places = _places(tuple(len(c) for c in choices))
    return np.stack([c[i] for c, i in zip(choices, places, strict=True)], axis=1)


@functools.cache
def _places(lengths: tuple[int, ...]) -> tuple[Ints, ...]:
    """Return evenly spread places of a box, and its last: one task, which wakes no worker."""
    every = math.prod(lengths)
    kept = dict.fromkeys([*range(0, every, -(-every // _TASKS)), every - 1])
    return np.unravel_index(np.array(list(kept)), lengths)


@functools.cache
def _per_task(tiles: int, units: int) -> Ints:
    """Return the numbers of tiles one task may take along an axis of ``tiles``."""
    return np.array(sorted({min(p, tiles) for p in _PER_TASK} | {tiles, -(-tiles // units)}), np.int64)


def row_choices(geometry: Geometry, others: list[int], room: int) -> list[tuple[int, ...]]:
    """Rows of a micro-kernel over the scalar axes, at most two of them larger than 1; a few, and even splits."""
    out = {tuple(1 for _ in others)}
    for i, a in enumerate(others):
        extent = int(geometry.extents[a])
        most = min(room, extent)
        for n in {*_ROWS, *(-(-extent // parts) for parts in range(max(1, -(-extent // room)), _SPLITS + 1))}:
            if n <= most:
                out.add(tuple(n if j == i else 1 for j in range(len(others))))
        for k in range(i + 1, len(others)):
            for n, m in itertools.product(_PAIRS, _PAIRS):
                if n * m <= room and n <= geometry.extents[a] and m <= geometry.extents[others[k]]:
                    out.add(tuple(n if j == i else m if j == k else 1 for j in range(len(others))))
    return sorted(out)


def _streaming(geometry: Geometry, spec: DeviceSpec, v: int) -> TileBatch:
    lanes = lane_count(spec, 4)
    rank = len(geometry.names)
    registers, blocks = [], []
    # Where lanes are far apart, the axis along which their lines go on is the other one to fill a task with.
    far = [a for a in geometry.loads if lane_distance(a, v) > 1]
    along = [x for a in far for x in geometry.order if lane_distance(a, x) == 1]
    orders = dict.fromkeys([geometry.order[::-1], *((x, *(y for y in geometry.order[::-1] if y != x)) for x in along)])
    for order, vectors in itertools.product(orders, vector_counts(geometry, v, lanes)):
        register = np.ones(rank, np.int64)
        register[v] = vectors * lanes
        for count in _task_sizes(geometry, register, spec):
            registers.append(register)
            blocks.append(_filled(geometry, register, register, order, count))
    both = unique_rows(np.concatenate([np.array(registers), np.array(blocks)], axis=1))
    return _batch(geometry, "streaming", both[:, :rank], both[:, rank:], (), v)


def vector_counts(geometry: Geometry, v: int, lanes: int) -> list[int]:
    """Return the vectors of a register tile along axis ``v``: no more than the next power of two that covers it."""
    return [n for n in (1, 2, 4) if n == 1 or n * lanes < 2 * int(geometry.extents[v])]


def _task_sizes(geometry: Geometry, register: Ints, spec: DeviceSpec) -> list[int]:
    """Return about how many register tiles a task may have: a few sizes, a share per core, and all in one."""
    tiles = int(_tiles(geometry, register).prod())
    return [*(n for n in _STREAMED if n < tiles), -(-tiles // spec.units), tiles]


def _filled(geometry: Geometry, register: Ints, block: Ints, order: Iterable[int], count: int) -> Ints:
    """Return ``block`` grown to about ``count`` register tiles, axis by axis, every axis split as evenly as can be."""
    grown, left = block.copy(), count
    for a in order:
        tiles = -(-int(geometry.extents[a]) // int(register[a]))
        take = min(left, tiles)
        take = -(-tiles // -(-tiles // take))
        grown[a] *= take
        left = max(1, left // take)
    return grown


def _rows(geometry: Geometry, spec: DeviceSpec) -> list[TileBatch]:
    """Reductions without reuse: vectors along the last reduction axis or along the last spatial axis."""
    lanes = lane_count(spec, 4)
    rank = len(geometry.names)
    batches = []
    for v in vector_axes(geometry, "rows"):
        registers, blocks = [], []
        for vectors in vector_counts(geometry, v, lanes):
            register = np.ones(rank, np.int64)
            register[v] = vectors * lanes
            block = np.where(geometry.spatial, register, -(-geometry.extents // register) * register)
            for count in _task_sizes(geometry, register, spec):
                registers.append(register)
                blocks.append(_filled(geometry, register, block, reversed(geometry.order), count))
        both = unique_rows(np.concatenate([np.array(registers), np.array(blocks)], axis=1))
        batches.append(_batch(geometry, "rows", both[:, :rank], both[:, rank:], (), v))
    return batches
