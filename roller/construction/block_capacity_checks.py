"""Checks named programs against the capacities of a device."""

from __future__ import annotations

from dataclasses import replace

from roller.errors import TileError
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates import price_with_templates
from roller.templates.gpu import operand_registers
from roller.tile.program import RProgram


def check_block_capacities(program: RProgram, batch: TileBatch, spec: DeviceSpec) -> None:
    """Raise an error that names the exceeded capacity if a block does not fit the device."""
    lim, threads = spec.limits, program.threads_per_block
    if lim.threads_per_block is not None and threads > lim.threads_per_block:
        raise TileError(
            f"tiles: the block has {threads} threads ({program.threads}), {spec.name} allows {lim.threads_per_block}. "
            "Enlarge the register tile or shrink the shared tile."
        )
    words = int(operand_registers(batch)[0])
    if lim.registers_per_thread is not None and words > lim.registers_per_thread:
        raise TileError(
            f"tiles: the register tile needs {words} registers per thread, {spec.name} has {lim.registers_per_thread}. "
            "Shrink the register tile."
        )
    terms = price_with_templates.estimate_program(program, with_hard_limits(spec)).terms
    used = int(terms["scratchpad_bytes"])
    limit = spec.layer("shared").capacity_bytes
    if used > limit:
        raise TileError(
            f"tiles: the shared tile needs {used} bytes of scratchpad, {spec.name} has {limit} per unit. "
            "Shrink the shared tile or the reduction step."
        )
    if terms["blocks_per_unit"] < 1:
        raise TileError(
            f"tiles: expected a block that fits one unit of {spec.name} ({lim.registers_per_unit} registers, "
            f"{lim.threads_per_unit} threads), got {threads} threads with {int(terms['registers'])} registers each. "
            "Shrink the shared tile or the register tile."
        )


def with_hard_limits(spec: DeviceSpec) -> DeviceSpec:
    """Return ``spec`` with its usable budgets raised to the hard limits, up to which user-named tiles may go."""
    if spec.traits.simd:
        limits = replace(spec.limits, usable_vector_registers=spec.limits.vector_registers)
        return replace(spec, limits=limits)
    layers = tuple(replace(x, usable_bytes=x.capacity_bytes) if x.name == "shared" else x for x in spec.memory_layers)
    limits = replace(spec.limits, usable_registers_per_thread=spec.limits.registers_per_thread)
    return replace(spec, memory_layers=layers, limits=limits)
