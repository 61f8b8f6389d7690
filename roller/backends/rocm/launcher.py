"""Run built HIP artifacts with CuPy's ROCm build.

Written for CuPy's documented interface and **never run** on hardware. Tests cover everything before the device: code
objects, argument checks, errors.
"""

from __future__ import annotations

from typing import Any, ClassVar

from roller.backends.cuda.launcher import CudaKernel
from roller.backends.cuda.runtime import cupy


class RocmKernel(CudaKernel):
    """Loaded HIP kernel, called like a :class:`CudaKernel`; needs CuPy for ROCm and a device."""

    language: ClassVar[str] = "hip"
    label: ClassVar[str] = "HIP"

    def _runtime(self) -> Any:
        return cupy(rocm=True)
