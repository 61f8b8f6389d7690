"""The pool of CPU programs of one canonical form: micro-kernels, panel steps, tasks."""

from __future__ import annotations

import itertools

import numpy as np

from roller.construction.gpu_pool import structure_of
from roller.construction.options import ConstructOptions
from roller.construction.scale_up import unique_rows
from roller.hardware import DeviceSpec
from roller.perf.batch import TileBatch
from roller.perf.cpu import lane_count
from roller.tile.geometry import Geometry, Ints

#: Rows of a micro-kernel along a scalar (broadcast) axis.
_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14)
#: Vectors of a micro-kernel along the vector axis.
_VECTORS = (1, 2, 3, 4, 6, 8)
#: Register tiles of one task along an axis, beside all of them.
_PER_TASK = (1, 2, 4, 8, 16, 32, 64)


def cpu_pool(geometry: Geometry, spec: DeviceSpec, options: ConstructOptions) -> list[TileBatch]:
    """Return batches of distinct programs, one per vector axis."""
    structure = structure_of(geometry)
    if structure == "tiled":
        batches = [_tiled(geometry, spec, options, int(v)) for v in np.flatnonzero(geometry.spatial)]
    elif structure == "streaming":
        batches = [_streaming(geometry, spec, geometry.order[-1])]
    else:
        batches = _rows(geometry, spec)
    kept = []
    for b in batches:
        waste = (-geometry.extents % b.block) / geometry.extents
        ok = (waste <= options.epsilon).all(axis=1) if geometry.expr.allow_padding else (waste == 0).all(axis=1)
        if options.epsilon < 1.0 or not geometry.expr.allow_padding:
            b = b.take(np.flatnonzero(ok))
        if len(b) > options.pool // len(batches):
            b = b.take(np.linspace(0, len(b) - 1, options.pool // len(batches)).astype(np.int64))
        kept.append(b)
    return kept


def _batch(g: Geometry, structure: str, register: Ints, block: Ints, staged: bool, v: int | None) -> TileBatch:
    """Assemble a batch; the panel (l1 tile) is the register tile over the task's reduction step."""
    panel = np.where(g.spatial, register, block)
    return TileBatch(g, structure, register, block, np.ones(len(block), np.int64), staged, panel, v)


def _tiled(geometry: Geometry, spec: DeviceSpec, options: ConstructOptions, v: int) -> TileBatch:
    lanes = lane_count(spec, 4)
    usable = spec.limits.usable_vector_registers or 12
    others = [int(a) for a in np.flatnonzero(geometry.spatial) if a != v]
    registers = []
    for vectors in _VECTORS:
        if vectors > 1 and (vectors - 1) * lanes >= int(geometry.extents[v]):
            continue
        room = max(1, usable // vectors)
        for rows in _row_choices(geometry, others, room):
            register = np.ones(len(geometry.names), np.int64)
            register[v] = vectors * lanes
            for a, n in zip(others, rows, strict=True):
                register[a] = n
            registers.append(register)
    table = np.array(registers)
    reduction = np.where(geometry.spatial, 1, geometry.extents)
    both = []
    for register in table:
        tiles = -(-geometry.extents // register)
        choices = []
        for a in range(len(geometry.names)):
            if not geometry.spatial[a]:
                choices.append([int(reduction[a])])
                continue
            n = int(tiles[a])
            choices.append(sorted({min(p, n) for p in _PER_TASK} | {n} | {-(-n // spec.units)}))
        every = list(itertools.product(*choices))
        for per_task in every if len(every) <= 64 else every[:: -(-len(every) // 64)]:
            block = np.where(geometry.spatial, register * np.array(per_task), reduction)
            both.append(np.concatenate([register, block]))
    rows_ = unique_rows(np.array(both, np.int64))
    rank = len(geometry.names)
    return _batch(geometry, "tiled", rows_[:, :rank], rows_[:, rank:], True, v)


def _row_choices(geometry: Geometry, others: list[int], room: int) -> list[tuple[int, ...]]:
    """Rows of a micro-kernel over the scalar axes, at most two of them larger than 1."""
    out = {tuple(1 for _ in others)}
    for i, a in enumerate(others):
        for n in _ROWS:
            if n <= min(room, int(geometry.extents[a])):
                out.add(tuple(n if j == i else 1 for j in range(len(others))))
        for k in range(i + 1, len(others)):
            for n, m in itertools.product((2, 3, 4, 7), (2, 3, 4, 7)):
                if n * m <= room and n <= geometry.extents[a] and m <= geometry.extents[others[k]]:
                    out.add(tuple(n if j == i else m if j == k else 1 for j in range(len(others))))
    useful = [c for c in out if np.prod(c) * 3 >= room or np.prod(c) >= 4 or len(out) < 8]
    return sorted(useful) or sorted(out)


def _streaming(geometry: Geometry, spec: DeviceSpec, v: int) -> TileBatch:
    lanes = lane_count(spec, 4)
    rank = len(geometry.names)
    registers, blocks = [], []
    for vectors, chunk in itertools.product((1, 2, 4), (1, 4, 16, 64, 256, 1024, 4096)):
        register = np.ones(rank, np.int64)
        register[v] = vectors * lanes
        block = register.copy()
        left = chunk
        for a in reversed(geometry.order):
            tiles = -(-int(geometry.extents[a]) // int(register[a]))
            take = min(left, tiles)
            block[a] *= take
            left = max(1, left // take)
        registers.append(register)
        blocks.append(block)
    both = unique_rows(np.concatenate([np.array(registers), np.array(blocks)], axis=1))
    return _batch(geometry, "streaming", both[:, :rank], both[:, rank:], False, v)


def _rows(geometry: Geometry, spec: DeviceSpec) -> list[TileBatch]:
    """Reductions without reuse: vectors along the last reduction axis or along the last spatial axis."""
    lanes = lane_count(spec, 4)
    rank = len(geometry.names)
    reductions = [int(a) for a in np.flatnonzero(~geometry.spatial)]
    axes = list(dict.fromkeys([*reductions[-1:], *geometry.order[-1:]]))
    batches = []
    for v in axes:
        registers, blocks = [], []
        for vectors, chunk in itertools.product((1, 2, 4), (1, 2, 4, 16, 64, 256, 1024)):
            register = np.ones(rank, np.int64)
            register[v] = vectors * lanes
            block = np.where(geometry.spatial, register, -(-geometry.extents // register) * register)
            left = chunk
            for a in reversed(geometry.order):
                tiles = -(-int(geometry.extents[a]) // int(register[a]))
                take = min(left, tiles)
                block[a] *= take
                left = max(1, left // take)
            registers.append(register)
            blocks.append(block)
        both = unique_rows(np.concatenate([np.array(registers), np.array(blocks)], axis=1))
        batches.append(_batch(geometry, "rows", both[:, :rank], both[:, rank:], False, v))
    return batches
