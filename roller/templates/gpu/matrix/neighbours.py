"""Neighbours of a matrix-unit program: other splits, stages and orders of blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from roller.perf.tile_batch import TileBatch
from roller.templates.common.tile_neighbours import NeighbourContext
from roller.templates.gpu.common.matrix_operand_copies import copies_both_operands_asynchronously
from roller.templates.gpu.matrix.candidates import REGISTER_STAGES, STAGES
from roller.templates.gpu.tiled.neighbours import split_neighbours


def matrix_neighbours(place: NeighbourContext) -> Iterator[TileBatch]:
    """Yield the program with other splits of its reduction, then other stages and orders of blocks."""
    yield from split_neighbours(place)
    yield from stage_and_order_neighbours(place)


def stage_and_order_neighbours(place: NeighbourContext) -> Iterator[TileBatch]:
    """Yield the matrix-unit program with one more or one fewer stage, and with other orders of blocks."""
    most = max(STAGES if copies_both_operands_asynchronously(place.batch, place.spec).all() else REGISTER_STAGES)
    for stages in {max(1, place.stages - 1), min(place.stages + 1, most)} - {place.stages}:
        yield replace(place.batch, stages=stages)
    for raster in {max(1, place.raster // 2), place.raster * 2} - {place.raster}:
        yield replace(place.batch, raster=raster)
