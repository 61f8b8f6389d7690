"""Candidate programs for dot products: vectors along a reduction axis, several outputs at once, and nothing packed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.common.options import ConstructOptions
from roller.templates.common.scale_up import unique_rows
from roller.templates.cpu.common.candidate_axes_and_task_shapes import (
    candidate_row_axes,
    candidate_task_shapes,
    register_tiles_per_axis,
)
from roller.templates.cpu.common.lanes_and_cache_room import lane_count, lane_distance
from roller.tile.geometry import Geometry, Ints
from roller.tile.structures import TILED, structure_of

#: Candidate numbers of outputs per micro-kernel along an axis, and of accumulators per output.
_OUTPUTS, _CHAINS = (1, 2, 3, 4, 5, 6, 8, 12), (1, 2, 4)
#: Candidate chunks (elements) of the reduction axis, in addition to the whole axis: rows of a chunk stay in a cache.
_CHUNKS = (512, 1024, 2048, 4096, 8192)


def dot_product_candidates(geometry: Geometry, spec: DeviceSpec, options: ConstructOptions) -> list[TileBatch]:
    """Return a batch per reduction axis that vectors may run along."""
    del options
    if not structure_of(geometry).reuses:
        return []

    def tasks(register: Ints) -> list[Ints]:
        return list(candidate_task_shapes(register_tiles_per_axis(geometry, register), spec))

    return [
        dot_product_batch(geometry, spec, v, candidate_row_axes(geometry, v), tasks)
        for v in dot_product_axes(geometry, spec)
    ]


def dot_product_axes(geometry: Geometry, spec: DeviceSpec) -> list[int]:
    """Return the reduction axes along which every operand is contiguous or constant, and at least one is contiguous."""
    if any(a.bounds or a.gather for a in geometry.loads):
        return []
    found = []
    for v in np.flatnonzero(~geometry.spatial):
        steps = [lane_distance(a, int(v)) for a in geometry.loads]
        backwards = any((a.coefficients[:, v] < 0).any() for a in geometry.loads)
        if geometry.extents[v] >= lane_count(spec, 4) and set(steps) <= {0, 1} and any(steps) and not backwards:
            found.append(int(v))
    return found


def dot_product_batch(
    geometry: Geometry, spec: DeviceSpec, v: int, rows: Sequence[int], tasks: Callable[[Ints], list[Ints]]
) -> TileBatch:
    """Return the candidate programs with lanes along reduction axis ``v``."""
    lanes, usable = lane_count(spec, 4), spec.limits.usable_vector_registers or 1
    extent = int(geometry.extents[v])
    both = []
    for outputs in _outputs_per_kernel_choices(geometry, rows, usable):
        for chains in _CHAINS:
            if np.prod(outputs) * chains > usable or (chains > 1 and chains * lanes > extent):
                continue
            register = np.ones(len(geometry.names), np.int64)
            register[v] = chains * lanes
            for a, n in zip(rows, outputs, strict=True):
                register[a] = n
            whole = np.where(geometry.spatial, 1, -(-geometry.extents // register) * register)
            blocks = np.where(geometry.spatial, register * np.array(tasks(register), np.int64), whole)
            chunks = [*(c for c in _CHUNKS if c < extent), int(whole[v])]
            several = np.tile(blocks, (len(chunks), 1))
            several[:, v] = np.repeat(chunks, len(blocks))
            both.append(np.concatenate([np.broadcast_to(register, several.shape), several], axis=1))
    rank = len(geometry.names)
    tiles = unique_rows(np.concatenate(both) if both else np.zeros((0, 2 * rank), np.int64))
    register, block = tiles[:, :rank], tiles[:, rank:]
    panel = np.where(geometry.spatial, register, block)
    return TileBatch(geometry, TILED.name, register, block, np.ones(len(block), np.int64), (), panel, v)


def _outputs_per_kernel_choices(geometry: Geometry, rows: Sequence[int], usable: int) -> list[tuple[int, ...]]:
    """Return the numbers of outputs per micro-kernel along the axes, at most two of them larger than 1."""
    out = {tuple(1 for _ in rows)}
    sizes = [[n for n in _OUTPUTS if n <= geometry.extents[a]] for a in rows]
    for (i, first), (j, second) in itertools.combinations_with_replacement(list(enumerate(sizes)), 2):
        for n, m in itertools.product(first, second if j != i else (1,)):
            if n * m <= usable:
                out.add(tuple(n if k == i else m if k == j else 1 for k in range(len(rows))))
    return sorted(out)
