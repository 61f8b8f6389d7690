"""Candidate Winograd programs for a window product: micro-kernels, task sizes and both sizes of output tiles."""

from __future__ import annotations

import itertools

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.cpu.common.lanes_and_cache_room import lane_count
from roller.tile.geometry import Geometry
from roller.tile.structures import STRUCTURES
from roller.tile.winograd import WindowProduct

#: Candidate numbers of vectors of a micro-kernel along the filters.
_VECTORS = (1, 2, 3, 4)
#: Candidate limits on the number of output tiles per task.
_TASK_TILES = (8, 16, 32, 64)
#: How many numbers of equal groups of output tiles are tried along an axis, from the fewest up.
_GROUPS = 2


def winograd_candidates(geometry: Geometry, spec: DeviceSpec, form: WindowProduct) -> list[TileBatch]:
    """Return a batch for each output tile size of a window product."""
    return [_winograd_batch(geometry, spec, form, structure) for structure, s in STRUCTURES.items() if s.output_side]


def _winograd_batch(geometry: Geometry, spec: DeviceSpec, form: WindowProduct, structure: str) -> TileBatch:
    m, extents = STRUCTURES[structure].output_side, geometry.expr.anchor.extents
    lanes, registers = lane_count(spec, 4), spec.limits.vector_registers or 0
    axes = [*reversed([a for a, _, _ in form.slides]), *reversed(form.batch)]  # columns, rows, images
    unit = {a: m if n < 2 else 1 for n, a in enumerate(axes)}
    whole = {a: -(-extents[a] // unit[a]) for a in axes}
    found: list[tuple[int, ...]] = []
    for vectors in _VECTORS:
        if vectors > 1 and vectors * lanes > extents[form.filter]:
            continue
        most = (registers - 2 - vectors) // vectors  # in addition to the operand's vectors and one broadcast
        panels = -(-extents[form.filter] // (vectors * lanes))
        for group in _tile_groups_for_kernel([whole[a] for a in axes], most):
            for tiles, share in itertools.product(_TASK_TILES, sorted({1, 2, spec.units})):
                box = _grow_task_box(group, [whole[a] for a in axes], tiles)
                register, block = dict.fromkeys(geometry.names, 1), dict(extents)
                for a, g, b in zip(axes, group, box, strict=True):
                    register[a], block[a] = g * unit[a], b * unit[a]
                register[form.filter] = vectors * lanes
                block[form.filter] = -(-panels // share) * vectors * lanes
                found.append((*(register[n] for n in geometry.names), *(block[n] for n in geometry.names)))
    rows = np.array(sorted(set(found)), np.int64).reshape(-1, 2 * len(geometry.names))
    register_, block_ = rows[:, : len(geometry.names)], rows[:, len(geometry.names) :]
    panel = np.where(geometry.spatial, register_, block_)
    ones = np.ones(len(rows), np.int64)
    filters = (form.filters.tensor,)
    return TileBatch(geometry, structure, register_, block_, ones, filters, panel, geometry.names.index(form.filter))


def _tile_groups_for_kernel(whole: list[int], most: int) -> list[tuple[int, ...]]:
    """Return boxes of at most ``most`` tiles: part of an axis, or whole axes and part of the next, in equal parts."""
    out = []
    before: tuple[int, ...] = ()
    for n, extent in enumerate(whole):
        after = (1,) * (len(whole) - n - 1)
        taken = int(np.prod(before, dtype=np.int64))
        parts = -(-extent // max(1, most // taken))
        out += [(*before, -(-extent // p), *after) for p in range(parts, min(extent, parts + _GROUPS - 1) + 1)]
        if taken * extent > most:
            break
        before = (*before, extent)
    return list(dict.fromkeys(out))


def _grow_task_box(group: tuple[int, ...], whole: list[int], tiles: int) -> tuple[int, ...]:
    """Return ``group`` enlarged to about ``tiles`` tiles, one axis after another."""
    box = list(group)
    for n, extent in enumerate(whole):
        left = tiles // int(np.prod(box, dtype=np.int64))
        box[n] *= max(1, min(left, -(-extent // box[n])))
    return tuple(box)
