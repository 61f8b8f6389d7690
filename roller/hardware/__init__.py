"""Device specifications: frozen numbers with their sources, read from ``hardware_specs/*.yaml``."""

from roller.hardware.loader import list_specs, load_spec, parse_spec, spec_folder
from roller.hardware.spec import Compute, DeviceSpec, Execution, Limits, MemoryLayer, Teu

__all__ = [
    "Compute", "DeviceSpec", "Execution", "Limits", "MemoryLayer", "Teu", "list_specs", "load_spec", "parse_spec",
    "spec_folder",
]  # fmt: skip
