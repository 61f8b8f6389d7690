"""What a program of each structure can say: held against programs that somebody named, not against constructed ones."""

from __future__ import annotations

import math
from collections.abc import Callable

from roller.construction.cpu_dots import dot_axes
from roller.construction.cpu_pool import vector_axes
from roller.construction.gpu_pool import structure_of
from roller.errors import TileError
from roller.hardware import DeviceSpec
from roller.tile.geometry import Geometry
from roller.tile.program import RProgram
from roller.tile.windows import slide_of
from roller.tile.winograd import STRUCTURES as WINOGRAD
from roller.tile.winograd import WinogradPlan, window_product
from roller.tile.winograd_products import products, products_program


def check_program(program: RProgram, spec: DeviceSpec) -> None:
    """Raise where a program says what no program of its structure has on a device of this kind.

    Raises
    ------
    TileError
        With the field, what it may be, and what it is.
    """
    geometry = Geometry.of(program.expr)
    _check_structure(program, geometry, spec)
    (_check_gpu if spec.kind == "gpu" else _check_cpu)(program, geometry, spec)


def _check_structure(program: RProgram, geometry: Geometry, spec: DeviceSpec) -> None:
    """Raise where the expression has no programs of the structure."""
    own = structure_of(geometry)
    wanted: Callable[[], bool] = {
        "matrix": lambda: program.fragment is not None,
        "window": lambda: spec.kind == "gpu" and own == "tiled" and slide_of(geometry.expr.anchor) is not None,
        **dict.fromkeys(WINOGRAD, lambda: window_product(geometry.expr) is not None),
    }.get(program.structure, lambda: program.structure == own)
    if not wanted():
        raise TileError(
            f"program: expected a structure that computes {geometry.expr.name} over {geometry.names} ('{own}'), got "
            f"'{program.structure}'. It asks for what this expression is not (a product, windows, rows)."
        )


def _check_gpu(program: RProgram, geometry: Geometry, spec: DeviceSpec) -> None:
    """Raise where a field says what no GPU program has."""
    if program.nontemporal:
        raise TileError("program: 'nontemporal' is a CPU's. Leave it out.")
    inner = products_program(program) or program
    g = Geometry.of(inner.expr)
    if inner.structure in ("tiled", "matrix") and set(inner.staged) != set(g.load_names):
        raise TileError(f"program: staged: expected {list(g.load_names)}, all it loads, got {list(inner.staged)}.")
    if inner.structure == "streaming" and inner.staged and set(inner.staged) != set(g.load_names):
        raise TileError(f"program: staged: expected {list(g.load_names)} or none, got {list(inner.staged)}.")
    if inner.structure not in ("tiled", "matrix") and (inner.stages, inner.raster) != (1, 1):
        raise TileError(f"program: expected no stages or raster of a '{inner.structure}' program. Leave them out.")
    if inner.structure in ("streaming", "window") and inner.split_k > 1:
        raise TileError(f"program: expected no split_k of a '{inner.structure}' program. Leave it out.")
    steps = math.prod(inner.reduction_steps.values())
    if inner.split_k > max(1, steps):
        raise TileError(f"program: split_k: expected at most the {steps} reduction steps, got {inner.split_k}.")
    _check_vector(inner)
    if program.structure in WINOGRAD:
        _check_products(program)


def _check_vector(program: RProgram) -> None:
    """Raise where the register tile does not hold whole vectors, of rows that are not counted from a boundary."""
    axis = program.vector_axis
    if axis is not None and program.structure != "rows" and program.tile("register")[axis] % program.vector_elements:
        raise TileError(
            f"program: vector: expected elements that divide {program.tile('register')[axis]}, the register tile along "
            f"'{axis}', got {program.vector_elements}."
        )


def _check_products(program: RProgram) -> None:
    """Raise where tiles of a window product are not those of a product of its transformed tiles."""
    found = products(program.expr, program.structure)
    assert found is not None  # there is a window product
    inner = found.inner(program)
    if found.outer(inner, program.expr, program.structure) != program or min(e for _, t in inner.tiles for e in t) < 1:
        raise TileError(
            f"program: expected tiles of whole output tiles ({found.m} columns each) in one row of one image, got "
            f"{dict(program.tiles)} over {program.axis_names}. Copy the name from `roller construct`."
        )


def _check_cpu(program: RProgram, geometry: Geometry, spec: DeviceSpec) -> None:
    """Raise where a field says what no CPU program has."""
    if program.interleaved or program.storage_padding or (program.stages, program.raster) != (1, 1):
        raise TileError("program: interleaved, pad, stages and raster are a GPU's. Leave them out.")
    if program.nontemporal and program.structure != "streaming":
        raise TileError(f"program: expected 'nontemporal' of a 'streaming' program, got '{program.structure}'.")
    if program.split_k > 1 and program.structure != "tiled":
        raise TileError(f"program: expected split_k of a 'tiled' program, got '{program.structure}'. Leave it out.")
    axes = _cpu_axes(program, geometry, spec)
    lanes = spec.teu.lanes * 4 // max(4, geometry.store.tensor.itemsize_bytes)
    if program.vector_axis not in axes or program.vector_elements != lanes:
        raise TileError(
            f"program: vector: expected {lanes} elements along one of {axes}, got {program.vector_elements} along "
            f"{program.vector_axis!r}."
        )
    if program.structure in WINOGRAD:
        tile, task = program.tile(program.layers[0]), program.block_tile
        if WinogradPlan.of(geometry.expr, program.structure, tile, task, spec.teu.lanes) is None:
            raise TileError(f"program: expected tiles of whole output tiles and vectors, got {dict(program.tiles)}.")


def _cpu_axes(program: RProgram, geometry: Geometry, spec: DeviceSpec) -> list[str]:
    """Return the axes that vectors of a CPU program of this structure may run along."""
    if program.structure in WINOGRAD:
        form = window_product(geometry.expr)
        return [form.filter] if form is not None else []
    dots = dot_axes(geometry, spec) if program.structure == "tiled" else []
    return [geometry.names[a] for a in (*vector_axes(geometry, program.structure), *dots)]
