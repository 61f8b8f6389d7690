"""Artifacts of bulk-synchronous programs: codelets as source, and the schedule as data for the target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roller.artifact import Constant, KernelArtifact, Launch
from roller.expr import TensorExpr
from roller.targets import BSP
from roller.templates.bsp.emit.schedule import build_schedule
from roller.templates.registry import template_writing
from roller.tile import RProgram
from roller.tile.superstep_schedule import codelet_name
from roller_runtime.core.kernel_argument import Argument

if TYPE_CHECKING:
    from roller.hardware import DeviceSpec


def lower_for(program: RProgram, expression: TensorExpr, spec: DeviceSpec) -> KernelArtifact:
    """Return the artifact of a program: its codelets and its schedule."""
    BSP.check_kind(program.kind, "Poplar code generation")
    entry = f"roller_{codelet_name(program.expr.name)}"
    schedule = build_schedule(program, spec, entry)
    arguments = (
        *(Argument(t.name, "input", t.shape, t.dtype) for t in program.expr.inputs),
        *(Argument(t.name, "output", t.shape, t.dtype) for t in program.expr.output_tensors),
    )
    source = template_writing(BSP.name, program).emitted(program.expr, schedule)
    launch = Launch(source, entry, tuple(a.name for a in arguments))
    target = {"arch": spec.target["arch"], "schedule": schedule.to_dict()}
    constants = tuple(Constant(n) for n, t in enumerate(expression.inputs) if t.name in program.constants)
    return KernelArtifact(
        "poplar", target, spec.name, expression, program, (launch,), arguments, constants=constants
    )  # fmt: skip
