"""What keeps a program from running, or from being constructed: the capacity it exceeds, in numbers."""

from __future__ import annotations

from roller.hardware import DeviceSpec
from roller.tile.program import RProgram


def exceeded(program: RProgram, spec: DeviceSpec) -> str | None:
    """Return which budget of construction a program exceeds, ``None`` where it fits.

    Construction keeps to budgets (``usable_*``) below the hard limits that named programs may use up.
    """
    reason: str | None = spec.traits.module_for("templates", "checks").exceeded(program, spec)
    return reason
