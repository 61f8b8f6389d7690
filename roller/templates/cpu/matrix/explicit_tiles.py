"""The matrix program for a user's named tiles and fragment: the program that ``predict(fragment=...)`` prices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from roller.core.matrix_instruction_fragment import Fragment
from roller.errors import TileError
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.cpu.common.candidate_axes_and_task_shapes import batch_of_register_tiles
from roller.templates.cpu.matrix.byte_products import byte_product_axes
from roller.templates.cpu.matrix.candidates import names_of_packed_operands
from roller.templates.cpu.matrix.price import price
from roller.tile.geometry import Geometry
from roller.tile.structures import MATRIX


def batch_of_named_matrix_tiles(
    geometry: Geometry,
    rows: tuple[tuple[int, ...], ...],
    spec: DeviceSpec,
    fragment: Fragment,
    along: tuple[str, ...] | None,
) -> TileBatch:
    """Return the fastest program with the given register and task tiles, and with the axes ``along`` if given."""
    ways = [axes for axes in byte_product_axes(geometry, spec, fragment) if along in (None, axes)]
    if not ways:
        where = f" along {along}" if along is not None else ""
        raise TileError(
            f"fragment: expected one that computes {geometry.expr.name} over {geometry.names}, got '{fragment.name}'"
            f"{where}. Check the dtypes of operands and accumulator ({fragment.operand}, {fragment.accumulator}), that "
            "no faster fragment of its kind is there, or name tiles over the grouped axes."
        )
    found = []
    for axes in ways:
        m, v, k = (geometry.names.index(n) for n in axes)
        register, block = (np.array([row], np.int64) for row in (rows[0], rows[-1]))
        register[0, k] = fragment.k if register[0, k] == 1 else register[0, k]
        whole = not (register[0, m] % fragment.m or register[0, v] % fragment.n or (block % register).any())
        if whole and register[0, k] == fragment.k:
            made = batch_of_register_tiles(
                geometry, MATRIX, register, block, names_of_packed_operands(geometry, fragment, m, v, k), v
            )
            found.append(replace(made, fragment=fragment, matrix_axes=axes))
    if found:
        return min(found, key=lambda batch: float(price(batch, spec, {})["seconds"][0]))
    outer = [layer.name for layer in spec.memory_layers if layer.tiled][-1]
    raise TileError(
        f"tiles: expected whole fragments of {fragment.m} x {fragment.n} x {fragment.k} along "
        f"{' or '.join(map(str, ways))}, {fragment.k} of the last one in 'register', and multiples of 'register' in "
        f"'{outer}', got {rows} over {geometry.names}. Round them."
    )
