"""Checks that user-named programs are possible for their structure and device."""

from __future__ import annotations

from roller.errors import TileError
from roller.hardware import DeviceSpec
from roller.tile.geometry import Geometry
from roller.tile.program import RProgram
from roller.tile.sliding_windows import slide_of
from roller.tile.structures import structure_of
from roller.tile.winograd import window_product


def check_program(program: RProgram, spec: DeviceSpec) -> None:
    """Raise an error if a device of this kind can run no program with this structure and these properties."""
    geometry = Geometry.of(program.expr)
    _check_structure(program, geometry, spec)
    spec.traits.module_for("templates", "checks").check_program(program, geometry, spec)


def _check_structure(program: RProgram, geometry: Geometry, spec: DeviceSpec) -> None:
    own = structure_of(geometry)
    traits = program.traits
    if traits.on_matrix_unit:
        computes = program.fragment is not None
    elif traits.slides_windows:
        computes = spec.traits.blocks and own.reuses and slide_of(geometry.expr.anchor) is not None
    elif traits.output_side:
        form = window_product(geometry.expr)
        computes = form is not None and not (spec.traits.blocks and form.converted)
    else:
        computes = traits == own
    if not computes:
        raise TileError(
            f"program: expected a structure that computes {geometry.expr.name} over {geometry.names} ('{own}'), got "
            f"'{program.structure}'. It asks for what this expression is not (a product, windows, rows)."
        )
