"""Neighbours of a tiled program: other splits, pipelines and orders of blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from roller.perf.tile_batch import TileBatch
from roller.templates.common.tile_neighbours import NeighbourContext, adjacent_values
from roller.templates.gpu.tiled.pipeline_and_order_variants import RASTERS, pipeline_stage_counts
from roller.tile.winograd_batched_product import ELEMENT

#: Numbers of parts into which a reduction is split.
SPLITS = (1, 2, 4, 8, 16)


def tiled_neighbours(place: NeighbourContext) -> Iterator[TileBatch]:
    """Yield the program with other splits of its reduction, then other pipelines and orders of blocks."""
    yield from split_neighbours(place)
    yield from pipeline_and_order_neighbours(place)


def split_neighbours(place: NeighbourContext) -> Iterator[TileBatch]:
    """Yield the program with its reduction split into half or twice as many parts."""
    if not place.options.split_k:
        return
    now, steps = int(place.batch.split_k[0]), int(place.batch.steps[0] * place.batch.split_k[0])
    for parts in (now // 2, now * 2):
        if parts in SPLITS and parts <= steps:
            yield replace(place.batch, split_k=np.array([parts], np.int64))


def pipeline_and_order_neighbours(place: NeighbourContext) -> Iterator[TileBatch]:
    """Yield the program with one more or one fewer tile in flight, and with other orders of blocks."""
    if not place.options.pipelining or ELEMENT in place.geometry.names:
        return
    for stages in adjacent_values(place.stages, (1, *pipeline_stage_counts(place.spec))):
        yield replace(place.batch, stages=stages)
    for raster in adjacent_values(place.raster, (1, *RASTERS)):
        yield replace(place.batch, raster=raster)
