"""Device specifications: frozen numbers with their sources, read from ``hardware_specs/*.yaml``."""

from roller.fragment import Fragment
from roller.hardware.loader import load_spec
from roller.hardware.reader import THIS_MACHINE, list_specs, parse_spec, spec_folder
from roller.hardware.sections import Compute, Execution, Limits, MemoryLayer, Teu
from roller.hardware.spec import DeviceSpec

__all__ = [
    "THIS_MACHINE", "Compute", "DeviceSpec", "Execution", "Fragment", "Limits", "MemoryLayer", "Teu", "list_specs",
    "load_spec", "parse_spec", "spec_folder",
]  # fmt: skip
