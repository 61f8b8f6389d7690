"""Checks user-named CPU programs: the fields that each structure allows, and budgets."""

from __future__ import annotations

import math

import numpy as np

from roller.core.matrix_instruction_fragment import Fragment
from roller.errors import TileError
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.cpu.common.candidate_axes_and_task_shapes import candidate_vector_axes
from roller.templates.cpu.dots.candidates import dot_product_axes
from roller.templates.cpu.matrix import byte_products
from roller.templates.cpu.streaming.candidates import batches_by_kind_of_store
from roller.templates.cpu.tiled.candidates import packed_input_choices
from roller.templates.price_with_templates import estimate_program
from roller.tile.geometry import Geometry
from roller.tile.program import RProgram
from roller.tile.structures import Structure
from roller.tile.winograd import WinogradPlan, window_product


def check_program(program: RProgram, geometry: Geometry, spec: DeviceSpec) -> None:
    """Raise an error if a field has a value that no CPU program of this structure may have."""
    if program.interleaved or program.storage_padding or (program.stages, program.raster) != (1, 1):
        raise TileError("program: interleaved, pad, stages and raster are a GPU's. Leave them out.")
    if program.nontemporal and program.traits.reduces:
        raise TileError(f"program: expected 'nontemporal' of a 'streaming' program, got '{program.structure}'.")
    if program.split_k > 1 and not program.traits.reuses:
        raise TileError(f"program: expected split_k of a 'tiled' program, got '{program.structure}'. Leave it out.")
    axes = _possible_vector_axes(program, geometry, spec)
    lanes = spec.teu.lanes * 4 // max(4, geometry.store.tensor.itemsize_bytes)
    if program.vector_axis not in axes or program.vector_elements != lanes:
        raise TileError(
            f"program: vector: expected {lanes} elements along one of {axes}, got {program.vector_elements} along "
            f"{program.vector_axis!r}."
        )
    if program.traits.output_side:
        tile, task = program.tile(program.layers[0]), program.block_tile
        if WinogradPlan.of(geometry.expr, program.structure, tile, task, spec.teu.lanes) is None:
            raise TileError(f"program: expected tiles of whole output tiles and vectors, got {dict(program.tiles)}.")


def _possible_vector_axes(program: RProgram, geometry: Geometry, spec: DeviceSpec) -> list[str]:
    """Return the axes along which vectors of a CPU program of this structure may run."""
    if program.traits.output_side:
        form = window_product(geometry.expr)
        return [form.filter] if form is not None else []
    dots = dot_product_axes(geometry, spec) if program.traits.reuses else []
    return [geometry.names[a] for a in (*candidate_vector_axes(geometry, program.traits), *dots)]


def matrix_axes(geometry: Geometry, spec: DeviceSpec, fragment: Fragment) -> list[tuple[int, ...]]:
    """Return all choices of the axes along an instruction's m, n and k, as positions."""
    return [
        tuple(geometry.names.index(n) for n in way) for way in byte_products.byte_product_axes(geometry, spec, fragment)
    ]


def exceeded(program: RProgram, spec: DeviceSpec) -> str | None:
    """Return a description of the register budget that a program exceeds, or ``None`` if it fits."""
    estimate = estimate_program(program, spec)
    if math.isfinite(estimate.seconds):
        return None
    held = estimate.terms.get("vectors")
    vectors = "accumulators and operands" if held is None else f"{held:.0f} vectors of accumulators, beside operands"
    lim = spec.limits
    if lim.usable_vector_registers == lim.vector_registers:  # a named program may use the whole capacity
        return f"{vectors} exceed the {lim.vector_registers} vector registers"
    return f"{vectors}: {lim.usable_vector_registers} of {lim.vector_registers} vector registers are usable"


def named_batches(
    geometry: Geometry, spec: DeviceSpec, structure: Structure, rows: tuple[tuple[int, ...], ...]
) -> list[TileBatch]:
    """Return batches of user-named tiles, one for each valid choice of vector axis, packing and kind of stores."""
    register, panel, block = (np.array([r], np.int64) for r in rows)
    ones, out = np.ones(1, np.int64), list[TileBatch]()
    for v in candidate_vector_axes(geometry, structure):
        for staged in packed_input_choices(geometry, v) if structure.reuses else [()]:
            batch = TileBatch(geometry, structure.name, register, block, ones, staged, panel, v)
            out += batches_by_kind_of_store(batch, spec)
    return out
