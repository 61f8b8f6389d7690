"""Device specifications: frozen numbers with their sources, read from ``hardware_specs/*.yaml``."""

from roller.core.fragment import Fragment
from roller.hardware.loader import load_spec
from roller.hardware.reader import list_specs, parse_spec, spec_folder
from roller.hardware.sections import Compute, Execution, Limits, MemoryLayer, Teu
from roller.hardware.spec import DeviceSpec
from roller.targets import THIS_MACHINE

__all__ = [
    "THIS_MACHINE", "Compute", "DeviceSpec", "Execution", "Fragment", "Limits", "MemoryLayer", "Teu", "list_specs",
    "load_spec", "parse_spec", "spec_folder",
]  # fmt: skip
