"""GPU kernels for dynamic sizes."""

from roller.compiler.dynamic.gpu.programs import UNUSED, fault, predicted
from roller.compiler.dynamic.gpu.search import compile_range

__all__ = ["UNUSED", "compile_range", "fault", "predicted"]
