"""Programs one step away from a tiled program or a dot product: with different packing, vectors or splits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from roller.perf.tile_batch import TileBatch
from roller.templates.common.tile_neighbours import NeighbourContext
from roller.templates.cpu.common.candidate_axes_and_task_shapes import candidate_vector_axes
from roller.templates.cpu.common.lanes_and_cache_room import lane_count
from roller.templates.cpu.tiled.candidates import packed_input_choices
from roller.templates.cpu.tiled.split_reduction_candidates import split_reduction_batches


def neighbouring_programs(place: NeighbourContext) -> Iterator[TileBatch]:
    """Yield variants of the program with other operands packed, vectors along other axes, or other reduction splits."""
    yield from _packing_neighbours(place)
    yield from _vector_axis_neighbours(place)
    yield from _split_neighbours(place)


def _packing_neighbours(place: NeighbourContext) -> Iterator[TileBatch]:
    """Yield variants of the program with other operands packed; dot products and split reductions pack no operands."""
    v = place.batch.vector_axis
    if v is None or not place.geometry.spatial[v] or place.batch.split_k[0] > 1:
        return
    for staged in packed_input_choices(place.geometry, v, place.batch.constants):
        yield replace(place.batch, staged=staged)


def _vector_axis_neighbours(place: NeighbourContext) -> Iterator[TileBatch]:
    """Yield the program vectorized along each other possible axis; the register tile's extents of both are swapped."""
    g, lanes, v = place.geometry, lane_count(place.spec, 4), place.batch.vector_axis
    if v is None or not g.spatial[v]:
        return
    for other in candidate_vector_axes(g, place.batch.traits):
        register = place.register.copy()
        register[v], register[other] = place.register[other], -(-int(place.register[v]) // lanes) * lanes
        if other != v:
            for staged in packed_input_choices(g, other, place.batch.constants):
                yield replace(
                    place.program_with_tiles(
                        [(register, b) for b in place.blocks_for_register_tile(register)], vector_axis=other
                    ),
                    staged=staged,
                    split_k=np.ones(len(place.blocks_for_register_tile(register)), np.int64),
                )


def _split_neighbours(place: NeighbourContext) -> Iterator[TileBatch]:
    if not place.options.split_k:
        return
    whole = replace(place.batch, split_k=np.ones(1, np.int64))
    yield whole
    yield from split_reduction_batches(whole, place.spec)
