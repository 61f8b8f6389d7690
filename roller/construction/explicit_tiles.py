"""Builds and prices programs from user-named tiles, aligned or not, for ``predict``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roller.construction.block_capacity_checks import check_block_capacities, with_hard_limits
from roller.construction.check_user_named_programs import check_program
from roller.construction.constructor import program_from_row
from roller.construction.forms_for_named_tiles import find_axis_name, fits_form, forms_for_named_tiles
from roller.construction.layouts_for_named_tiles import scratchpad_layouts
from roller.core.matrix_instruction_fragment import Fragment
from roller.errors import TileError, did_you_mean, shown
from roller.expr import TensorExpr
from roller.expr.canonical import inline_unit_reduction
from roller.hardware import DeviceSpec
from roller.perf.estimate import Estimate
from roller.perf.tile_batch import TileBatch
from roller.templates import price_with_templates
from roller.templates.cpu.matrix import explicit_tiles as cpu_fragments
from roller.templates.gpu.matrix import explicit_tiles as gpu_fragments
from roller.tile.alignment import broken_rules
from roller.tile.geometry import Geometry, Ints
from roller.tile.program import RProgram
from roller.tile.sliding_windows import slide_of
from roller.tile.structures import TILED, WINDOW, Structure, structure_of
from roller_runtime.core.validation import is_integer, validate_integer

#: Extents of one layer's tile, by axis name or in axis order.
Tile = Mapping[str, int] | Sequence[int]

#: The layer for each name that published tile tables use for a GPU layer.
LAYER_ALIASES = {
    "smem": "shared", "scratchpad": "shared", "lds": "shared", "block": "shared", "smem_tile": "shared",
    "reg": "register", "thread": "register", "reg_tile": "register",
}  # fmt: skip
#: Key of the scratchpad tile's reduction step in those tables.
STEP = "rstep"
#: Maximum extent and maximum number of points of one tile, so that counts stay exact in 64 bits.
MAX_EXTENT, MAX_POINTS = 2**31 - 1, 2**53


@dataclass(frozen=True)
class ProgramMechanisms:
    """Mechanisms of a program in addition to its tiles; fields as in :class:`~roller.tile.program.RProgram`."""

    stages: int = 1
    split_k: int = 1
    raster: int = 1

    def __post_init__(self) -> None:
        """Reject values that are not positive integers."""
        for name, n in vars(self).items():
            object.__setattr__(self, name, validate_integer(n, name, 1, MAX_EXTENT, error=TileError))


@dataclass(frozen=True)
class ExplicitTiles:
    """User-named tiles over one form of the expression: extents per layer, fastest layer first."""

    geometry: Geometry
    rows: tuple[tuple[int, ...], ...]

    @property
    def whole(self) -> ExplicitTiles:
        """These tiles, each rounded up to whole tiles of the faster layer."""
        rows = [self.rows[0]]
        for row in self.rows[1:]:
            rows.append(tuple(-(-n // above) * above for n, above in zip(row, rows[-1], strict=True)))
        return replace(self, rows=tuple(rows))

    @property
    def inlined(self) -> ExplicitTiles:
        """These tiles over the form without one-point reductions (1x1 windows), which all templates use."""
        form = inline_unit_reduction(self.geometry.expr)
        if form is self.geometry.expr:
            return self
        kept = [self.geometry.names.index(a.name) for a in form.axes]
        return ExplicitTiles(Geometry.of(form), tuple(tuple(row[n] for n in kept) for row in self.rows))


def program_from_tiles(expr: TensorExpr, spec: DeviceSpec, tiles: Mapping[str, Tile]) -> RProgram:
    """Return the program with the given aligned tiles by layer; see :func:`parse_named_tiles`."""
    named = parse_named_tiles(expr, spec, tiles).inlined
    layers = [layer.name for layer in spec.memory_layers if layer.tiled]
    for layer, row, above in zip(layers[1:], named.rows[1:], named.rows, strict=False):
        for n, v, a in zip(named.geometry.names, row, above, strict=True):
            if v % a:
                raise TileError(
                    f"tiles: layer '{layer}', axis '{n}': expected a multiple of the layer above ({a}), got {v}. "
                    "Every tile of a program holds whole tiles of the faster layer; predict() prices others."
                )
    return _program_from_extents(named, spec, structure_of(named.geometry))


@dataclass(frozen=True)
class PricedTiles:
    """A priced program of user-named tiles; ``block`` holds the extents by which blocks advance, else ``None``."""

    estimate: Estimate
    program: RProgram
    block: tuple[int, ...] | None = None


def _check_intermediate_tiles(program: RProgram, named: ExplicitTiles, tiles: Mapping[str, Tile]) -> None:
    """Raise an error if a named tile of an intermediate layer differs from the tile that the other layers imply."""
    for (layer, extents), row in list(zip(program.tiles, named.rows, strict=True))[1:-1]:
        if layer in tiles and extents != row:
            raise TileError(
                f"tiles: expected {extents} in '{layer}', which follows from the other layers, got {row}. Leave it out."
            )


def _parse_fragment(text: Any, spec: DeviceSpec) -> tuple[Fragment, tuple[str, ...] | None]:
    """Return the fragment that ``text`` names, and the axes listed after a colon (``None`` without a colon)."""
    names = [f.name for f in spec.fragments]
    name, _, axes = text.partition(":") if isinstance(text, str) else (None, "", "")
    if name not in names:
        hint = did_you_mean(name or text, names) or "."
        raise TileError(f"fragment: {shown(text)} is no fragment of {spec.name}{hint} Use one of {names}.")
    return spec.fragments[names.index(name)], tuple(axes.split(",")) if axes else None


def price_named_tiles(
    expr: TensorExpr,
    spec: DeviceSpec,
    tiles: Mapping[str, Tile],
    fragment: str | None = None,
    how: ProgramMechanisms = ProgramMechanisms(),
    warm: tuple[str, ...] = (),
) -> PricedTiles:
    """Price tiles named by layer, aligned or not; see :func:`parse_named_tiles`."""
    named = parse_named_tiles(expr, spec, tiles)
    if fragment is not None:
        found_fragment, along = _parse_fragment(fragment, spec)
        fragments = cpu_fragments if spec.traits.simd else gpu_fragments
        batch = fragments.batch_of_named_matrix_tiles(named.geometry, named.rows, spec, found_fragment, along)
        batch = _with_mechanisms(batch, how)
        program = program_from_row(batch, 0, spec)
        check_program(program, spec)
        if spec.traits.simd:
            _check_intermediate_tiles(program, named, tiles)
        else:
            check_block_capacities(program, batch, spec)
        return PricedTiles(price_with_templates.estimate_program(program, with_hard_limits(spec), warm), program)
    named = named.inlined
    if spec.traits.simd:
        budget = with_hard_limits(spec)
        program = _program_from_extents(named.whole, budget, structure_of(named.geometry), how=how)
        return PricedTiles(price_with_templates.estimate_program(program, budget), program)
    # Threads at the edge of a block compute points that are not stored. A reduction without reuse is priced twice: with
    # its points spread over threads and, as in published tiles, staged with threads over outputs. The faster one
    # counts.
    found: list[PricedTiles] = []
    errors: list[TileError] = []
    for structure, staged in _possible_structures(named):
        try:
            program = _program_from_extents(named.whole, spec, structure, staged, how)
        except TileError as error:
            errors.append(error)
        else:
            block, budget = named.rows[-1], with_hard_limits(spec)
            laid = scratchpad_layouts(program, spec) if structure is TILED else (program,)
            found += [
                PricedTiles(price_with_templates.estimate_with_block(p, budget, block, warm), p, block) for p in laid
            ]
    found = [x for x in found if math.isfinite(x.estimate.seconds)]
    if not found and not errors:
        raise TileError(
            f"tiles: expected a block that runs on {spec.name}, got one that exceeds a capacity of a unit: "
            f"{named.rows} over {named.geometry.names}. Make the tiles smaller."
        )
    if not found:
        raise errors[0]
    return min(found, key=lambda x: x.estimate.seconds)


def parse_named_tiles(expr: TensorExpr, spec: DeviceSpec, tiles: Mapping[str, Tile]) -> ExplicitTiles:
    """Return user-named tiles as rows of extents over the first form of the expression that fits them."""
    layers = [layer.name for layer in spec.memory_layers if layer.tiled]
    own = Geometry.of(expr)
    if not isinstance(tiles, Mapping):
        raise TileError(
            f"tiles: expected a mapping from layer to extents, got {type(tiles).__name__}. "
            f"Write for example {{'{layers[-1]}': {{'{own.names[0]}': 64}}}}; the layers are {layers}."
        )
    if STEP in tiles and spec.traits.simd:
        raise TileError(
            f"tiles: '{STEP}': a CPU's reduction piece is the reduction extent of {layers[-1]}. Give it in the tile of "
            f"'{layers[-1]}'."
        )
    # The reduction step may be given separately, next to a ``shared`` tile of the spatial axes. An omitted axis has
    # extent 1 in the fastest layer, and the extent of the layer above in the others; extents beyond the tensor are
    # padding.
    steps = tiles.get(STEP)
    named = _with_canonical_layer_names({n: t for n, t in tiles.items() if n != STEP or steps is None}, spec, layers)
    geometry, by_layer = own, _merge_reduction_step(named, steps, own)
    for form in forms_for_named_tiles(expr):
        found = _merge_reduction_step(named, steps, form)
        if all(fits_form(t, form, n == layers[0]) for n, t in found.items()):
            geometry, by_layer = form, found
            break
    rows: list[tuple[int, ...]] = []
    above = tuple(1 for _ in geometry.names)
    for name in layers:
        above = _layer_extents(name, by_layer.get(name, {}), geometry, above, name == layers[0])
        rows.append(above)
    _check_reduction_step(steps, geometry, rows[-1])
    return ExplicitTiles(geometry, tuple(rows))


def _with_canonical_layer_names(tiles: Mapping[str, Tile], spec: DeviceSpec, layers: Sequence[str]) -> dict[str, Tile]:
    found: dict[str, Tile] = {}
    for given, tile in tiles.items():
        name = LAYER_ALIASES.get(given, given) if spec.traits.blocks else given
        if name not in layers:
            hint = (did_you_mean(given, layers) if isinstance(given, str) else "") or "."
            raise TileError(f"tiles: {shown(given)} is no tiled layer of {spec.name}{hint} Use {list(layers)}.")
        if name in found:
            raise TileError(f"tiles: '{given}' names layer '{name}' a second time. Give every layer one tile.")
        if not isinstance(tile, Mapping) and (not isinstance(tile, Sequence) or isinstance(tile, (str, bytes))):
            what = "extents by axis name or a sequence"
            raise TileError(f"tiles: layer '{name}': expected {what}, got {shown(tile)}.")
        found[name] = tile
    return found


def _merge_reduction_step(tiles: Mapping[str, Tile], steps: Any, geometry: Geometry) -> dict[str, Tile]:
    """Return the tiles, with the reduction step merged into the scratchpad's tile if it fits this form."""
    reductions = [n for n, spatial in zip(geometry.names, geometry.spatial, strict=True) if not spatial]
    extents = list(steps) if isinstance(steps, Sequence) and not isinstance(steps, str) else [steps]
    shared = tiles.get("shared", {})
    if steps is None or len(extents) != len(reductions):
        return dict(tiles)
    if isinstance(shared, Mapping):
        return {**tiles, "shared": {**dict(zip(reductions, extents, strict=True)), **shared}}
    if len(shared) != int(geometry.spatial.sum()):
        return dict(tiles)
    spatial, step = iter(shared), iter(extents)
    return {**tiles, "shared": [next(spatial) if s else next(step) for s in geometry.spatial]}


def _check_reduction_step(steps: Any, geometry: Geometry, shared: tuple[int, ...]) -> None:
    """Raise an error if the reduction step contradicts the scratchpad's tile."""
    if steps is None:
        return
    given = list(steps) if isinstance(steps, Sequence) and not isinstance(steps, (str, bytes)) else [steps]
    found = {n: v for n, v, s in zip(geometry.names, shared, geometry.spatial, strict=True) if not s}
    if len(given) != len(found):
        raise TileError(
            f"tiles: '{STEP}': expected {len(found)} extents, one for each of the reduction axes {list(found)}, got "
            f"{shown(steps)}. Give as many, or name the axes in the tile of 'shared'."
        )
    if not all(map(is_integer, given)) or given != list(found.values()):
        raise TileError(
            f"tiles: '{STEP}': expected the reduction extents of the tile of 'shared' ({found}), got {shown(steps)}. "
            "Give them in one of the two places."
        )


def _possible_structures(named: ExplicitTiles) -> list[tuple[Structure, tuple[str, ...]]]:
    """Return the structures that a GPU program with the named tiles may have, each with its staged tensors."""
    geometry = named.geometry
    expr, structure = geometry.expr, structure_of(geometry)
    found = [(structure, geometry.load_names if structure.reuses else ())]
    if structure.spreads_reductions and len(expr.stages) == 1 and expr.anchor.combiner is not None:
        found.append((TILED, geometry.load_names))
    slide = slide_of(expr.anchor)
    whole = (np.array([named.rows[0], named.rows[-1]]) == geometry.extents)[:, ~geometry.spatial].all()
    if slide is not None and structure.reuses and whole:
        found += [(WINDOW, ()), (WINDOW, (slide.source.tensor,))]
    return found


def _with_mechanisms(batch: TileBatch, how: ProgramMechanisms) -> TileBatch:
    return replace(batch, split_k=batch.split_k * how.split_k, stages=how.stages, raster=how.raster)


def _program_from_extents(
    named: ExplicitTiles,
    spec: DeviceSpec,
    structure: Structure,
    staged: tuple[str, ...] | None = None,
    how: ProgramMechanisms = ProgramMechanisms(),
) -> RProgram:
    geometry, rows = named.geometry, named.rows
    if spec.traits.simd:
        return _fastest_vector_program(geometry, spec, structure, rows, how)
    if staged is None:
        staged = geometry.load_names if structure.reuses else ()
    reductions = ~geometry.spatial
    if structure.reuses and not geometry.window_axes[reductions].all():
        # A thread visits the reduction step point by point and keeps nothing in registers between points.
        rows = (tuple(1 if r else n for n, r in zip(rows[0], reductions, strict=True)), *rows[1:])
    ones = np.ones(1, np.int64)
    batch = _with_mechanisms(
        TileBatch(geometry, structure.name, _extents_as_one_row(rows[0]), _extents_as_one_row(rows[-1]), ones, staged),
        how,
    )
    program = program_from_row(batch, 0, spec)
    if how != ProgramMechanisms():
        check_program(program, spec)
    check_block_capacities(program, batch, spec)
    return replace(program, relaxed=broken_rules(program, spec))


def _extents_as_one_row(extents: tuple[int, ...]) -> Ints:
    return np.array([extents], np.int64)


def _fastest_vector_program(
    geometry: Geometry,
    spec: DeviceSpec,
    structure: Structure,
    rows: tuple[tuple[int, ...], ...],
    how: ProgramMechanisms,
) -> RProgram:
    """Return the program of the tiles whose vector axis, packing and stores are predicted to be fastest."""
    device_module = spec.traits.module_for("templates", "checks")
    programs = [
        program_from_row(_with_mechanisms(b, how), 0, spec)
        for b in device_module.named_batches(geometry, spec, structure, rows)
    ]
    for program in programs if how != ProgramMechanisms() or spec.traits.discrete else ():
        check_program(program, spec)
    priced = [
        (e.seconds, str(p), p)
        for p, e in zip(programs, price_with_templates.estimate_programs(programs, spec), strict=True)
    ]
    seconds, _, best = min(priced, key=lambda x: x[:2])
    if not np.isfinite(seconds):
        raise TileError(
            f"tiles: register tile {rows[0]} over {geometry.names} on {spec.name}, along every axis: "
            f"{device_module.exceeded(best, spec)}. Make the tiles smaller."
        )
    return replace(best, relaxed=broken_rules(best, spec))


def _layer_extents(
    layer: str, tile: Tile, geometry: Geometry, above: tuple[int, ...], fastest: bool
) -> tuple[int, ...]:
    """Return one layer's extents over all axes of a form; ``above`` holds the extents of the faster layer."""
    names = geometry.names
    if isinstance(tile, Mapping):
        given = {find_axis_name(axis, names): v for axis, v in tile.items()}
        for axis in tile:
            if find_axis_name(axis, names) is None:
                hint = (did_you_mean(axis, names) if isinstance(axis, str) else "") or "."
                raise TileError(f"tiles: layer '{layer}': unknown axis {shown(axis)}{hint} Use {names}.")
        values = [given.get(n, a) for n, a in zip(names, above, strict=True)]
    else:
        values = list(tile)
        if fastest and len(values) == int(geometry.spatial.sum()) < len(names):
            spatial = iter(values)
            values = [next(spatial) if s else 1 for s in geometry.spatial]
        if len(values) != len(names):
            raise TileError(f"tiles: layer '{layer}': expected {len(names)} extents for {names}, got {len(values)}.")
    for n, v, a in zip(names, values, above, strict=True):
        where = f"tiles: layer '{layer}', axis '{n}'"
        if not is_integer(v) or v < 1:
            raise TileError(f"{where}: expected a positive integer, got {shown(v)}.")
        if v > MAX_EXTENT:
            raise TileError(f"{where}: expected at most {MAX_EXTENT}, got {shown(v)}. Make the tile smaller.")
        if v < a:
            raise TileError(
                f"{where}: expected at least the extent of the layer above ({a}), got {v}. "
                "A tile holds the tile of the faster layer."
            )
    row = tuple(int(v) for v in values)
    if math.prod(row) > MAX_POINTS:
        raise TileError(
            f"tiles: layer '{layer}': expected at most {MAX_POINTS} points in all, got {row} over {names}. "
            "Make the tile smaller."
        )
    return row
