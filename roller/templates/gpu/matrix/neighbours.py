"""Neighbours of a matrix-unit program: other splits, stages and orders of blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from roller.perf.batch import TileBatch
from roller.templates.common.moves import Place
from roller.templates.gpu.common.operand_copies import are_async
from roller.templates.gpu.matrix.candidates import REGISTER_STAGES, STAGES
from roller.templates.gpu.tiled.neighbours import splits


def neighbours(place: Place) -> Iterator[TileBatch]:
    """Yield the program with other splits of its reduction, then other stages and orders of blocks."""
    yield from splits(place)
    yield from rings(place)


def rings(place: Place) -> Iterator[TileBatch]:
    """Yield the matrix-unit program with one stage more or less, and with other orders of blocks."""
    most = max(STAGES if are_async(place.batch, place.spec).all() else REGISTER_STAGES)
    for stages in {max(1, place.stages - 1), min(place.stages + 1, most)} - {place.stages}:
        yield replace(place.batch, stages=stages)
    for raster in {max(1, place.raster // 2), place.raster * 2} - {place.raster}:
        yield replace(place.batch, raster=raster)
