"""What a bulk-synchronous program can say: held against programs that somebody named."""

from __future__ import annotations

import math

import numpy as np

from roller.core.fragment import Fragment
from roller.errors import TileError
from roller.hardware import DeviceSpec
from roller.perf.batch import TileBatch, batch_of
from roller.templates.bsp.common.decide import decided
from roller.templates.bsp.matrix.candidates import matrix_passes
from roller.tile.boxes import whole_axes
from roller.tile.geometry import Geometry
from roller.tile.program import RProgram
from roller.tile.structures import Structure


def check_program(program: RProgram, geometry: Geometry, spec: DeviceSpec) -> None:
    """Refuse a field that says what no bulk-synchronous program has."""
    del spec
    if program.interleaved or program.storage_padding or program.staged or program.nontemporal:
        raise TileError("program: interleaved, pad, staged and nontemporal are other devices'. Leave them out.")
    if (program.stages, program.raster) != (1, 1):
        raise TileError("program: stages and raster are a GPU's: phases follow each other here. Leave them out.")
    needed, tile = whole_axes(program.expr), program.block_tile
    for a in program.axes:
        if a.name in needed and tile[a.name] < a.extent:
            raise TileError(
                f"program: expected all {a.extent} of axis '{a.name}' in a tile, got {tile[a.name]}: a unit reads "
                "what it computed itself along it. Take the axis whole."
            )
    steps = math.prod(program.reduction_steps.values())
    if program.split_k > max(1, steps):
        raise TileError(f"program: split_k: expected at most the {steps} reduction steps, got {program.split_k}.")
    if program.vector_axis is not None and program.vector_axis not in geometry.names:
        raise TileError(f"program: vector: expected one of {geometry.names}, got '{program.vector_axis}'.")


def matrix_axes(geometry: Geometry, spec: DeviceSpec, fragment: Fragment) -> list[tuple[int, ...]]:
    """Return the m, n and k axes along which a matrix instruction computes an expression, one tuple a way."""
    del spec
    ways = [unit.matrix_axes for unit in matrix_passes(geometry, fragment)]
    return [tuple(geometry.names.index(a) for a in way) for way in ways]


def exceeded(program: RProgram, spec: DeviceSpec) -> str | None:
    """Return which budget of construction a program exceeds, ``None`` where it fits."""
    used = int(decided(batch_of([program]), spec).working_bytes[0])
    budget = spec.layer(spec.traits.scratchpad).budget_bytes
    return f"{used:,} bytes of a unit's scratchpad, {budget:,} are usable" if used > budget else None


def named_batches(
    geometry: Geometry, spec: DeviceSpec, structure: Structure, rows: tuple[tuple[int, ...], ...]
) -> list[TileBatch]:
    """Return tiles that somebody named as a batch of one program: there is one way to run them."""
    del spec
    register, block = (np.array([r], np.int64) for r in (rows[0], rows[-1]))
    ones, axis = np.ones(1, np.int64), geometry.order[-1] if geometry.order else None
    return [TileBatch(geometry, structure.name, register, block, ones, (), None, axis)]
