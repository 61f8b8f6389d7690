"""Candidate CPU programs for reductions without reuse."""

from __future__ import annotations

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.common.options import ConstructOptions
from roller.templates.common.scale_up import unique_rows
from roller.templates.cpu.common.candidate_axes_and_task_shapes import (
    batch_of_register_tiles,
    candidate_task_sizes,
    candidate_vector_axes,
    candidate_vector_counts,
    grow_task_block,
)
from roller.templates.cpu.common.lanes_and_cache_room import lane_count
from roller.tile.geometry import Geometry
from roller.tile.structures import ROWS, structure_of


def row_candidates(geometry: Geometry, spec: DeviceSpec, options: ConstructOptions) -> list[TileBatch]:
    """Return programs for reductions without reuse: vectors along the last reduction axis or the last spatial axis."""
    del options
    if not structure_of(geometry).spreads_reductions:
        return []
    lanes = lane_count(spec, 4)
    rank = len(geometry.names)
    batches = []
    for v in candidate_vector_axes(geometry, ROWS):
        registers, blocks = [], []
        for vectors in candidate_vector_counts(geometry, v, lanes):
            register = np.ones(rank, np.int64)
            register[v] = vectors * lanes
            block = np.where(geometry.spatial, register, -(-geometry.extents // register) * register)
            for count in candidate_task_sizes(geometry, register, spec):
                registers.append(register)
                blocks.append(grow_task_block(geometry, register, block, reversed(geometry.order), count))
        both = unique_rows(np.concatenate([np.array(registers), np.array(blocks)], axis=1))
        batches.append(batch_of_register_tiles(geometry, ROWS, both[:, :rank], both[:, rank:], (), v))
    return batches
