"""Programs from tiles a person names: what ``predict`` prices, aligned or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from roller import perf
from roller.construction.constructor import program_of
from roller.construction.cpu_pool import staged_choices, store_choices, vector_axes
from roller.construction.gpu_pool import structure_of
from roller.errors import TileError, did_you_mean
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.perf.batch import TileBatch
from roller.perf.gpu import register_words
from roller.tile.alignment import broken_rules
from roller.tile.geometry import Geometry, Ints
from roller.tile.program import RProgram

#: Extents of one layer: by axis name, or a sequence in axis order.
Tile = Mapping[str, int] | Sequence[int]


def program_from_tiles(expr: TensorExpr, spec: DeviceSpec, tiles: Mapping[str, Tile]) -> RProgram:
    """Return the program of tiles named by layer, over the expression's own (pre-fusion) axes.

    An axis left out is 1 in the fastest layer and the extent of the layer above in the others. Extents beyond
    the tensor are padding.

    Raises
    ------
    TileError
        Where a layer or axis is unknown, an extent is not a positive integer, a tile is not a multiple of the one
        above it, or a capacity of the device is exceeded.
    """
    geometry = Geometry.of(expr)
    layers = [layer.name for layer in spec.memory_layers if layer.tiled]
    if not isinstance(tiles, Mapping):
        raise TileError(
            f"tiles: expected a mapping from layer to extents, got {type(tiles).__name__}. "
            f"Write for example {{'{layers[-1]}': {{'{geometry.names[0]}': 64}}}}; the layers are {layers}."
        )
    for name in tiles:
        if name not in layers:
            hint = did_you_mean(str(name), layers) or "."
            raise TileError(f"tiles: '{name}' is no tiled layer of {spec.name}{hint} Use {layers}.")
    rows: list[tuple[int, ...]] = []
    above = tuple(1 for _ in geometry.names)
    for name in layers:
        above = _extents(name, tiles.get(name, {}), geometry.names, above)
        rows.append(above)
    structure = structure_of(geometry)
    if spec.kind == "cpu":
        return _cpu_program(geometry, spec, structure, rows)
    staged = geometry.load_names if structure == "tiled" else ()
    ones = np.ones(1, np.int64)
    batch = TileBatch(geometry, structure, _row(rows[0]), _row(rows[-1]), ones, staged)
    program = program_of(batch, 0, spec)
    _check_gpu(program, batch, spec)
    return replace(program, relaxed=broken_rules(program, spec))


def _row(extents: tuple[int, ...]) -> Ints:
    return np.array([extents], np.int64)


def _cpu_program(geometry: Geometry, spec: DeviceSpec, structure: str, rows: list[tuple[int, ...]]) -> RProgram:
    """Return the tiles with the vector axis, the packing and the stores that make them fastest.

    Raises
    ------
    TileError
        Where the register tile fits the vector registers along no axis.
    """
    ones = np.ones(1, np.int64)
    programs = []
    for v in vector_axes(geometry, structure):
        for staged in staged_choices(geometry, v) if structure == "tiled" else [()]:
            batch = TileBatch(geometry, structure, _row(rows[0]), _row(rows[-1]), ones, staged, _row(rows[1]), v)
            programs += [program_of(b, 0, spec) for b in store_choices(batch, spec)]
    priced = [(e.seconds, str(p), p) for p, e in zip(programs, perf.estimate_programs(programs, spec), strict=True)]
    seconds, _, best = min(priced, key=lambda x: x[:2])
    if not np.isfinite(seconds):
        raise TileError(
            f"tiles: register tile {rows[0]} over {geometry.names} needs more than the "
            f"{spec.limits.vector_registers} vector registers of {spec.name} along every axis. Make it smaller."
        )
    return replace(best, relaxed=broken_rules(best, spec))


def _extents(layer: str, tile: Tile, names: tuple[str, ...], above: tuple[int, ...]) -> tuple[int, ...]:
    if isinstance(tile, Mapping):
        for axis in tile:
            if axis not in names:
                hint = did_you_mean(str(axis), names) or "."
                raise TileError(f"tiles: layer '{layer}': unknown axis '{axis}'{hint} Use {names}.")
        values = [tile.get(n, a) for n, a in zip(names, above, strict=True)]
    else:
        if not isinstance(tile, Sequence) or isinstance(tile, str):
            raise TileError(f"tiles: layer '{layer}': expected extents by axis name or a sequence, got {tile!r}.")
        values = list(tile)
        if len(values) != len(names):
            raise TileError(f"tiles: layer '{layer}': expected {len(names)} extents for {names}, got {len(values)}.")
    for n, v, a in zip(names, values, above, strict=True):
        if not isinstance(v, (int, np.integer)) or isinstance(v, bool) or v < 1:
            raise TileError(f"tiles: layer '{layer}', axis '{n}': expected a positive integer, got {v!r}.")
        if v % a:
            raise TileError(
                f"tiles: layer '{layer}', axis '{n}': expected a multiple of the layer above ({a}), got {v}. "
                "Every tile holds whole tiles of the faster layer."
            )
    return tuple(int(v) for v in values)


def _check_gpu(program: RProgram, batch: TileBatch, spec: DeviceSpec) -> None:
    """Raise the one clear error where a block exceeds a capacity of the device."""
    lim, threads = spec.limits, program.threads_per_block
    if lim.threads_per_block is not None and threads > lim.threads_per_block:
        raise TileError(
            f"tiles: the block has {threads} threads ({program.threads}), {spec.name} allows {lim.threads_per_block}. "
            "Enlarge the register tile or shrink the shared tile."
        )
    words = int(register_words(batch)[0])
    if lim.registers_per_thread is not None and words > lim.registers_per_thread:
        raise TileError(
            f"tiles: the register tile needs {words} registers per thread, {spec.name} has {lim.registers_per_thread}. "
            "Shrink the register tile."
        )
    used = int(perf.estimate_program(program, replace_budget(spec)).terms["scratchpad_bytes"])
    limit = spec.layer("shared").capacity_bytes
    if used > limit:
        raise TileError(
            f"tiles: the shared tile needs {used} bytes of scratchpad, {spec.name} has {limit} per unit. "
            "Shrink the shared tile or the reduction step."
        )


def replace_budget(spec: DeviceSpec) -> DeviceSpec:
    """Return ``spec`` with usable budgets raised to the hard limits: named tiles may use all there is."""
    layers = tuple(replace(x, usable_bytes=x.capacity_bytes) if x.name == "shared" else x for x in spec.memory_layers)
    limits = replace(spec.limits, usable_registers_per_thread=spec.limits.registers_per_thread)
    return replace(spec, memory_layers=layers, limits=limits) if spec.kind == "gpu" else spec
