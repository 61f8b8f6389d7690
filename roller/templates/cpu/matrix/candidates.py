"""Candidate programs for byte products: register tiles of whole vectors, and words along one reduction axis."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from roller.core.matrix_instruction_fragment import Fragment
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.common.options import ConstructOptions
from roller.templates.cpu.common.candidate_axes_and_task_shapes import batch_of_register_tiles
from roller.templates.cpu.matrix.byte_products import byte_product_axes, rows_are_equidistant, supported_fragments
from roller.templates.cpu.matrix.price import TILE_REGISTERS, count_tile_registers, price
from roller.templates.cpu.staging_and_contiguity_checks import words_are_contiguous
from roller.templates.cpu.tiled.candidates import candidate_register_tiles, register_and_task_tiles
from roller.tile.geometry import Geometry, Ints
from roller.tile.structures import MATRIX

#: Number of micro-kernels per vector axis that are combined with tasks.
_KERNELS = 24


def matrix_candidates(geometry: Geometry, spec: DeviceSpec, options: ConstructOptions) -> list[TileBatch]:
    """Return a batch per instruction and vector axis."""
    ways = [(f, axes) for f in supported_fragments(spec) for axes in byte_product_axes(geometry, spec, f)]
    return [_candidates_of_fragment(geometry, spec, options, *way) for way in ways]


def _candidates_of_fragment(
    geometry: Geometry, spec: DeviceSpec, options: ConstructOptions, fragment: Fragment, axes: tuple[str, str, str]
) -> TileBatch:
    """Return the programs of one instruction with lanes along one axis."""
    m, v, k = (geometry.names.index(n) for n in axes)
    staged = names_of_packed_operands(geometry, fragment, m, v, k)

    def batch(register: Ints, block: Ints) -> TileBatch:
        made = batch_of_register_tiles(geometry, MATRIX, register, block, staged, v)
        return replace(made, fragment=fragment, matrix_axes=axes)

    register = (
        candidate_register_tiles(geometry, spec, v) if fragment.m == 1 else _fragment_tiles(geometry, fragment, m, v)
    )
    register = register[register[:, v] < geometry.extents[v] + fragment.n]
    register[:, k] = fragment.k
    block = -(-geometry.extents // register) * register
    alone = replace(batch(register, block), constants=options.constants)
    best = np.sort(np.argsort(price(alone, spec, {})["seconds"], kind="stable")[:_KERNELS])
    return batch(*np.split(register_and_task_tiles(geometry, spec, register[best]), 2, axis=1))


def _fragment_tiles(geometry: Geometry, fragment: Fragment, m: int, v: int) -> Ints:
    """Return the register tiles of whole fragments that, with their operands, fit in the tile registers."""
    found = []
    for rows, columns in itertools.product(range(1, TILE_REGISTERS), repeat=2):
        if count_tile_registers(rows, columns) <= TILE_REGISTERS:
            register = np.ones(len(geometry.names), np.int64)
            register[m], register[v] = rows * fragment.m, columns * fragment.n
            found.append(register)
    return np.stack(found)


def names_of_packed_operands(geometry: Geometry, fragment: Fragment, m: int, v: int, k: int) -> tuple[str, ...]:
    """Return the packed operands: the operand along the lanes, and any whose words are not contiguous in memory."""
    # Widened elements have no words in memory.
    words = fragment.depth(int(geometry.extents[k]))
    found = []
    for a in geometry.loads:
        apart = fragment.m > 1 and not rows_are_equidistant(a, m)
        if a.uses[v] or a.bounds or not words_are_contiguous(a, k, words) or apart or fragment.widens_operands:
            found.append(a.tensor.name)
    return tuple(found)
