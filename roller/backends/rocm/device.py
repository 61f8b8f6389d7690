"""The device side of profiling on an AMD GPU: as on an NVIDIA one, through CuPy's ROCm build. Never run yet."""

from __future__ import annotations

from typing import Any

from roller.backends.cuda.device import CudaDevice
from roller.backends.rocm.launcher import cupy


class RocmDevice(CudaDevice):
    """One AMD GPU."""

    def _runtime(self) -> Any:
        return cupy()
