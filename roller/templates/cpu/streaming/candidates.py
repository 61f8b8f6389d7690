"""Candidate CPU programs for streams: vectors along the contiguous axis, and tasks that fill axes one by one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.common.options import ConstructOptions
from roller.templates.common.scale_up import unique_rows
from roller.templates.common.tile_neighbours import NeighbourContext
from roller.templates.cpu.common.candidate_axes_and_task_shapes import (
    batch_of_register_tiles,
    candidate_task_sizes,
    candidate_vector_counts,
    grow_task_block,
)
from roller.templates.cpu.common.lanes_and_cache_room import lane_count, lane_distance
from roller.templates.cpu.streaming.price import results_leave_caches
from roller.tile.geometry import Geometry
from roller.tile.structures import STREAMING, structure_of


def stream_candidates(geometry: Geometry, spec: DeviceSpec, options: ConstructOptions) -> list[TileBatch]:
    """Return the programs of a stream, with plain stores and with non-temporal ones."""
    del options
    if structure_of(geometry).reduces:
        return []
    return batches_by_kind_of_store(_stream_batch(geometry, spec, geometry.order[-1]), spec)


def batches_by_kind_of_store(batch: TileBatch, spec: DeviceSpec) -> list[TileBatch]:
    """Return the batch and, if a stream's results leave the caches, the batch with non-temporal stores."""
    past = not batch.traits.reduces and results_leave_caches(batch.geometry, spec)
    return [batch, replace(batch, nontemporal=True)] if past else [batch]


def _stream_batch(geometry: Geometry, spec: DeviceSpec, v: int) -> TileBatch:
    lanes = lane_count(spec, 4)
    rank = len(geometry.names)
    registers, blocks = [], []
    # If lanes are far apart, a task may also be filled along the axis in which their cache lines continue.
    far = [a for a in geometry.loads if lane_distance(a, v) > 1]
    along = [x for a in far for x in geometry.order if lane_distance(a, x) == 1]
    orders = dict.fromkeys([geometry.order[::-1], *((x, *(y for y in geometry.order[::-1] if y != x)) for x in along)])
    for order, vectors in itertools.product(orders, candidate_vector_counts(geometry, v, lanes)):
        register = np.ones(rank, np.int64)
        register[v] = vectors * lanes
        for count in candidate_task_sizes(geometry, register, spec):
            registers.append(register)
            blocks.append(grow_task_block(geometry, register, register, order, count))
    both = unique_rows(np.concatenate([np.array(registers), np.array(blocks)], axis=1))
    return batch_of_register_tiles(geometry, STREAMING, both[:, :rank], both[:, rank:], (), v)


def store_kind_neighbours(place: NeighbourContext) -> Iterator[TileBatch]:
    """Yield the program with each kind of stores that it may have."""
    yield from batches_by_kind_of_store(replace(place.batch, nontemporal=False), place.spec)
