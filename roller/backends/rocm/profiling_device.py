"""Device side of profiling on an AMD GPU, through CuPy's ROCm build. It has never run on hardware."""

from __future__ import annotations

from typing import Any

from roller.backends.cuda.cache_flush import SOURCE
from roller.backends.cuda.cupy_runtime import import_cupy
from roller.backends.cuda.profiling_device import CudaDevice
from roller.backends.rocm.toolchain import compile_source
from roller.errors import BuildError


class RocmDevice(CudaDevice):
    """AMD GPU opened for profiling."""

    def _runtime(self) -> Any:
        return import_cupy(rocm=True)

    def _flush_image(self) -> bytes | None:
        try:  # unlike PTX, there is no format that every driver compiles
            return compile_source(f"#include <hip/hip_runtime.h>\n{SOURCE}", self.properties()["arch"])[0]
        except BuildError:
            return None
