"""Explanations of compiled kernels, based on the specification for which they were compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from roller.construction.explicit_tiles import ProgramMechanisms, Tile
from roller.errors import RollerError, shown
from roller.explanation.explanation import Explanation, explain_program
from roller.explanation.why_not import WhyNot, compare_with_chosen
from roller.hardware import DeviceSpec, load_spec
from roller.templates.common.options import ConstructOptions
from roller.tile.program import RProgram


class _Artifact(Protocol):
    @property
    def device(self) -> str: ...
    @property
    def expression(self) -> Any: ...
    @property
    def estimate(self) -> dict[str, Any]: ...
    @property
    def measured_s(self) -> float | None: ...


class _Kernel(Protocol):
    @property
    def artifact(self) -> Any: ...
    @property
    def program(self) -> RProgram: ...


def explain_kernel(kernel: _Kernel, device: str | DeviceSpec | None, options: ConstructOptions | None) -> Explanation:
    """Return the explanation of a kernel's program; see :meth:`roller.CompiledKernel.explain`."""
    a: _Artifact = kernel.artifact
    chosen = ConstructOptions(constants=kernel.program.constants) if options is None else options
    if not isinstance(chosen, ConstructOptions):
        raise RollerError(f"options: expected a ConstructOptions, got {shown(options)}. Write ConstructOptions().")
    spec = _spec_for_artifact(a, device)
    found = explain_program(a.expression, spec, chosen, kernel.program, a.measured_s)
    stored = a.estimate.get("seconds")
    if stored is None or stored == found.estimate.seconds:
        return found
    note = (
        f"The kernel was compiled with a prediction of {stored:.6g} s: for another specification of '{a.device}' than "
        "the one it is explained by (a share of its units, numbers set or probed since). Pass that one as device."
    )
    return replace(found, notes=(*found.notes, note))


def why_not_for_kernel(
    kernel: _Kernel,
    tiles: Mapping[str, Tile] | str | RProgram,
    device: str | DeviceSpec | None,
    fragment: str | None,
    how: tuple[int, int, int],
) -> WhyNot:
    """Return the reason why a program is worse than a kernel's program; see :meth:`roller.CompiledKernel.why_not`."""
    a: _Artifact = kernel.artifact
    return compare_with_chosen(a.expression, _spec_for_artifact(a, device), kernel.program, tiles, fragment,
                               ProgramMechanisms(*how),
                   measured=a.measured_s is not None)  # fmt: skip


def _spec_for_artifact(artifact: _Artifact, device: str | DeviceSpec | None) -> DeviceSpec:
    given = artifact.device if device is None else device
    return given if isinstance(given, DeviceSpec) else load_spec(given)
