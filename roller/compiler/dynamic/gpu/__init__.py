"""GPU kernels for dynamic sizes."""

from roller.compiler.dynamic.gpu.choose_kernels_for_range import compile_range
from roller.compiler.dynamic.gpu.programs import UNUSED, fault, predicted

__all__ = ["UNUSED", "compile_range", "fault", "predicted"]
