"""Kernels of a GPU for sizes that vary from call to call: what :mod:`roller.compiler.dynamic` asks of this kind of device."""

from roller.compiler.dynamic.gpu.programs import UNUSED, fault, predicted
from roller.compiler.dynamic.gpu.search import compile_range

__all__ = ["UNUSED", "compile_range", "fault", "predicted"]
