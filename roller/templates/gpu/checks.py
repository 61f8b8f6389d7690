"""Checks of GPU programs that the user specifies, by structure."""

from __future__ import annotations

import math

from roller.core.matrix_instruction_fragment import Fragment
from roller.errors import TileError
from roller.expr import SPATIAL
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import batch_of
from roller.templates.gpu.common.occupancy import operand_register_limit, operand_registers, scratchpad_bytes
from roller.templates.gpu.matrix.candidates import matrix_forms
from roller.templates.price_with_templates import estimate_program
from roller.tile.geometry import Geometry
from roller.tile.program import RProgram
from roller.tile.winograd_batched_product import batched_product, tiled_product_of_program


def check_program(program: RProgram, geometry: Geometry, spec: DeviceSpec) -> None:
    """Raise an error if a program has fields or tiles that GPU programs of its structure cannot have."""
    del geometry, spec
    if program.nontemporal:
        raise TileError("program: 'nontemporal' belongs to CPUs. Leave it out.")
    inner = tiled_product_of_program(program) or program
    g = Geometry.of(inner.expr)
    if inner.traits.reuses and set(inner.staged) != set(g.load_names):
        raise TileError(f"program: staged: expected {list(g.load_names)}, all it loads, got {list(inner.staged)}.")
    if not inner.traits.reduces and inner.staged and set(inner.staged) != set(g.load_names):
        raise TileError(f"program: staged: expected {list(g.load_names)} or none, got {list(inner.staged)}.")
    if not inner.traits.reuses and (inner.stages, inner.raster) != (1, 1):
        raise TileError(f"program: expected no stages or raster of a '{inner.structure}' program. Leave them out.")
    if (inner.traits.slides_windows or not inner.traits.reduces) and inner.split_k > 1:
        raise TileError(f"program: expected no split_k of a '{inner.structure}' program. Leave it out.")
    if inner.traits.slides_windows:
        _check_whole_windows(inner)
    steps = math.prod(inner.reduction_steps.values())
    if inner.split_k > max(1, steps):
        raise TileError(f"program: split_k: expected at most the {steps} reduction steps, got {inner.split_k}.")
    _check_whole_vectors(inner)
    if inner is not program:
        _check_window_product_tiles(program)


def _check_whole_windows(program: RProgram) -> None:
    """Raise an error if the threads of a window program would process only part of a window."""
    for layer, tile in program.tiles:
        for axis, extent in zip(program.axes, tile, strict=True):
            if axis.kind != SPATIAL and extent != axis.extent:
                raise TileError(
                    f"program: expected whole windows of a '{program.structure}' program, {axis.extent} along "
                    f"'{axis.name}', got {extent} in '{layer}'. Write {axis.extent}."
                )


def _check_whole_vectors(program: RProgram) -> None:
    """Raise an error if the register tile does not hold whole vectors; row programs are exempt."""
    axis = program.vector_axis
    if axis is None or program.traits.spreads_reductions:
        return
    if program.tile("register")[axis] % program.vector_elements:
        raise TileError(
            f"program: vector: expected elements that divide {program.tile('register')[axis]}, the register tile along "
            f"'{axis}', got {program.vector_elements}."
        )


def _check_window_product_tiles(program: RProgram) -> None:
    """Raise an error if a window product's tiles do not correspond to tiles of the product of transformed operands."""
    found = batched_product(program.expr, program.structure)
    assert found is not None  # there is a window product
    inner = found.inner(program)
    if found.outer(inner, program.expr, program.structure) != program or min(e for _, t in inner.tiles for e in t) < 1:
        raise TileError(
            f"program: expected tiles of whole output tiles ({found.m} columns each) in one row of one image, got "
            f"{dict(program.tiles)} over {program.axis_names}. Copy the name from `roller construct`."
        )


def matrix_axes(geometry: Geometry, spec: DeviceSpec, fragment: Fragment) -> list[tuple[int, ...]]:
    """Return the choices of (m, n, k) axes along which a matrix instruction can compute an expression."""
    return [form.axes for form in matrix_forms(geometry, spec) if form.fragment == fragment]


def exceeded(program: RProgram, spec: DeviceSpec) -> str | None:
    """Return a description of the limit that a program exceeds, or ``None`` if it fits."""
    program = tiled_product_of_program(program) or program
    batch, lim = batch_of([program]), spec.limits
    threads, lanes = program.threads_per_block, spec.teu.lanes
    if lim.threads_per_block is not None and threads > lim.threads_per_block:
        return f"{threads} threads of a block, limits.threads_per_block is {lim.threads_per_block}"
    words, usable = int(operand_registers(batch)[0]), int(operand_register_limit(batch, spec)[0])
    if words > usable:
        return f"{words} registers of a thread for results and operands, {usable} are usable"
    used, budget = int(scratchpad_bytes(batch)[0]), spec.layer("shared").budget_bytes
    if used > budget:
        return f"{used:,} bytes of scratchpad, {budget:,} are usable"
    if not program.traits.slides_windows and threads % lanes:
        return f"{threads} threads fill no whole TEUs of {lanes}"
    if math.isinf(estimate_program(program, spec).seconds):
        if program.stages > 2 and not spec.execution.async_copy_bytes:
            return f"{program.stages} stages: copies pass through registers here, which hold one step ahead (2 stages)"
        return f"{program.stages} stages leave too few registers, or copies of these tiles pass through them"
    return None
