"""Checks whether this processor can run a kernel."""

from __future__ import annotations

from collections.abc import Collection

from roller_runtime.core.processor_features_and_count import missing_features, tile_registers_permitted
from roller_runtime.errors import LaunchError


def check_features(name: str, needed: Collection[str]) -> None:
    """Raise an error if this process cannot execute instructions that a kernel uses; executing them would end it."""
    lacking = missing_features(needed)
    if not lacking and "amx_tile" in needed and not tile_registers_permitted():
        raise LaunchError(
            f"{name}: expected the system's permission to use tile registers (AMX), got none. Compile it again here: "
            "other instructions are used then."
        )
    if lacking:
        raise LaunchError(
            f"{name}: expected a processor with {', '.join(lacking)}, got one without. It is for another one: "
            "compile it on this machine, or for a device whose 'mcpu' both have."
        )
