"""Artifacts of bulk-synchronous programs: codelets as source, and the schedule as data for the target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roller.artifact import Argument, Constant, KernelArtifact, Launch
from roller.expr import TensorExpr
from roller.targets import BSP
from roller.templates.bsp.emit.schedule import schedule_of
from roller.templates.registry import writer_of
from roller.tile import RProgram
from roller.tile.supersteps import plain

if TYPE_CHECKING:
    from roller.hardware import DeviceSpec


def lower_for(program: RProgram, expression: TensorExpr, spec: DeviceSpec) -> KernelArtifact:
    """Return the artifact of a program: its codelets and its schedule."""
    BSP.expect(program.kind, "Poplar code generation")
    entry = f"roller_{plain(program.expr.name)}"
    schedule = schedule_of(program, spec, entry)
    arguments = (
        *(Argument(t.name, "input", t.shape, t.dtype) for t in program.expr.inputs),
        *(Argument(t.name, "output", t.shape, t.dtype) for t in program.expr.output_tensors),
    )
    source = writer_of(BSP.name, program).emitted(program.expr, schedule)
    launch = Launch(source, entry, tuple(a.name for a in arguments))
    target = {"arch": spec.target["arch"], "schedule": schedule.to_dict()}
    constants = tuple(Constant(n) for n, t in enumerate(expression.inputs) if t.name in program.constants)
    return KernelArtifact(
        "poplar", target, spec.name, expression, program, (launch,), arguments, constants=constants
    )  # fmt: skip
