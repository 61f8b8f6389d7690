"""Templates for each kind of device: the entry point for callers that need programs or kernel emitters."""

from __future__ import annotations

from collections.abc import Iterator

from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.targets import KINDS
from roller.templates.common.options import ConstructOptions
from roller.templates.common.template import ProgramProperties, Template, template_for_programs


def templates_of(kind: str) -> tuple[Template, ...]:
    """Return the templates for a kind of device, in the order in which their programs are constructed."""
    found: tuple[Template, ...] = KINDS[kind].module_for("templates").TEMPLATES
    return found


def template_writing(kind: str, programs: ProgramProperties) -> Template:
    """Return the template for a kind of device that emits programs with the given properties."""
    return template_for_programs(templates_of(kind), programs)


def programs_of(expr: TensorExpr, spec: DeviceSpec, options: ConstructOptions) -> Iterator[TileBatch]:
    """Yield the batches of all templates for the device's kind, in the order of the templates."""
    yield from spec.traits.module_for("templates").programs_of(expr, spec, options)
