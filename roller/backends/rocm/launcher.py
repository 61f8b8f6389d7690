"""Runs built HIP artifacts with CuPy's ROCm build.

This module is written for CuPy's documented interface and has **never run** on hardware. Tests cover everything up to
the device: code objects, argument checks, and errors.
"""

from __future__ import annotations

from typing import Any, ClassVar

from roller.backends.cuda.cupy_runtime import import_cupy
from roller.backends.cuda.launcher import CudaKernel


class RocmKernel(CudaKernel):
    """Loaded HIP kernel, called like a :class:`CudaKernel`; needs CuPy for ROCm and a device."""

    language: ClassVar[str] = "hip"
    label: ClassVar[str] = "HIP"

    def _runtime(self) -> Any:
        return import_cupy(rocm=True)
