"""Names the capacity that a program exceeds."""

from __future__ import annotations

from roller.hardware import DeviceSpec
from roller.tile.program import RProgram


def exceeded_budget(program: RProgram, spec: DeviceSpec) -> str | None:
    """Return the construction budget (``usable_*``, below the hard limits) that a program exceeds, else ``None``."""
    reason: str | None = spec.traits.module_for("templates", "checks").exceeded(program, spec)
    return reason
