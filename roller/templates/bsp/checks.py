"""Checks of bulk-synchronous programs that the user specifies."""

from __future__ import annotations

import math

import numpy as np

from roller.core.matrix_instruction_fragment import Fragment
from roller.errors import TileError
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch, batch_of
from roller.templates.bsp.common.tile_and_superstep_counts import count_tiles_and_supersteps
from roller.templates.bsp.matrix.candidates import matrix_unit_grains
from roller.tile.geometry import Geometry
from roller.tile.program import RProgram
from roller.tile.structures import Structure
from roller.tile.tensor_boxes import axes_tiles_must_span


def check_program(program: RProgram, geometry: Geometry, spec: DeviceSpec) -> None:
    """Raise an error if a program has fields or tiles that bulk-synchronous programs cannot have."""
    del spec
    if program.interleaved or program.storage_padding or program.staged or program.nontemporal:
        raise TileError("program: interleaved, pad, staged and nontemporal belong to other devices. Leave them out.")
    if (program.stages, program.raster) != (1, 1):
        raise TileError("program: stages and raster belong to GPUs: phases run one after another here. Leave them out.")
    needed, tile = axes_tiles_must_span(program.expr), program.block_tile
    for a in program.axes:
        if a.name in needed and tile[a.name] < a.extent:
            raise TileError(
                f"program: expected all {a.extent} of axis '{a.name}' in a tile, got {tile[a.name]}: a unit "
                "reads along this axis only what it computed itself. Take the axis whole."
            )
    steps = math.prod(program.reduction_steps.values())
    if program.split_k > max(1, steps):
        raise TileError(f"program: split_k: expected at most the {steps} reduction steps, got {program.split_k}.")
    if program.vector_axis is not None and program.vector_axis not in geometry.names:
        raise TileError(f"program: vector: expected one of {geometry.names}, got '{program.vector_axis}'.")


def matrix_axes(geometry: Geometry, spec: DeviceSpec, fragment: Fragment) -> list[tuple[int, ...]]:
    """Return the choices of (m, n, k) axes along which a matrix instruction can compute an expression."""
    del spec
    ways = [unit.matrix_axes for unit in matrix_unit_grains(geometry, fragment)]
    return [tuple(geometry.names.index(a) for a in way) for way in ways]


def exceeded(program: RProgram, spec: DeviceSpec) -> str | None:
    """Return a description of the construction budget that a program exceeds, or ``None`` if it fits."""
    used = int(count_tiles_and_supersteps(batch_of([program]), spec).working_bytes[0])
    budget = spec.layer(spec.traits.scratchpad).budget_bytes
    return f"{used:,} bytes of a unit's scratchpad, {budget:,} are usable" if used > budget else None


def named_batches(
    geometry: Geometry, spec: DeviceSpec, structure: Structure, rows: tuple[tuple[int, ...], ...]
) -> list[TileBatch]:
    """Return user-named tiles as a batch of one program; on these devices, tiles leave nothing else to choose."""
    del spec
    register, block = (np.array([r], np.int64) for r in (rows[0], rows[-1]))
    ones, axis = np.ones(1, np.int64), geometry.order[-1] if geometry.order else None
    return [TileBatch(geometry, structure.name, register, block, ones, (), None, axis)]
