"""Kernels of a GPU for sizes that vary from call to call: what :mod:`roller.varying` asks of this kind of device."""

from roller.varying.gpu.programs import UNUSED, fault, predicted
from roller.varying.gpu.search import compile_range

__all__ = ["UNUSED", "compile_range", "fault", "predicted"]
