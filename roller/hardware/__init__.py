"""Device specifications: frozen values with their sources, read from ``hardware_specs/*.yaml`` on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roller.core.matrix_instruction_fragment import Fragment
from roller.hardware.sections import Compute, Execution, Limits, MemoryLayer, Teu
from roller.hardware.spec import DeviceSpec
from roller.targets import THIS_MACHINE

if TYPE_CHECKING:
    from roller.hardware.loader import load_spec
    from roller.hardware.reader import list_specs, parse_spec, spec_folder

__all__ = [
    "THIS_MACHINE", "Compute", "DeviceSpec", "Execution", "Fragment", "Limits", "MemoryLayer", "Teu", "list_specs",
    "load_spec", "parse_spec", "spec_folder",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load a function that reads files (and, with it, YAML) on first use."""
    if name in ("list_specs", "parse_spec", "spec_folder"):
        from roller.hardware import reader

        value = getattr(reader, name)
    elif name == "load_spec":
        from roller.hardware.loader import load_spec as value
    else:
        raise AttributeError(f"module 'roller.hardware' has no attribute '{name}'")
    globals()[name] = value
    return value
