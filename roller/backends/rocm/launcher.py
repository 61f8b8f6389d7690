"""Run built HIP artifacts with CuPy's ROCm build.

Written against CuPy's documented interface and **never run**: no AMD device was at hand. What is tested is
everything before the device: the code objects, the arguments' checks, the errors.
"""

from __future__ import annotations

from typing import Any, ClassVar

from roller.backends.cuda.launcher import CudaKernel
from roller.errors import LaunchError

_INSTALL = "Install CuPy's ROCm build ('pip install cupy-rocm-7-0', or a source build with CUPY_INSTALL_USE_HIP=1)"
_ELSEWHERE = "Constructing, compiling and reading the source work without it."


def cupy() -> Any:
    """Return the CuPy module where it is built for ROCm and a device is usable.

    Raises
    ------
    LaunchError
        Naming what is missing.
    """
    try:
        import cupy as module
    except ImportError as err:
        raise LaunchError(f"HIP launch: expected CuPy, got {err}. {_INSTALL}. {_ELSEWHERE}") from err
    runtime = module.cuda.runtime
    if not runtime.is_hip:
        raise LaunchError(f"HIP launch: expected CuPy for ROCm, found one for CUDA. {_INSTALL}. {_ELSEWHERE}")
    try:
        devices = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as err:
        raise LaunchError(f"HIP launch: no usable device ({err}). Install the amdgpu driver. {_ELSEWHERE}") from err
    if devices < 1:
        raise LaunchError(f"HIP launch: expected an AMD device, found none. Run on a GPU machine. {_ELSEWHERE}")
    return module


class RocmKernel(CudaKernel):
    """A loaded HIP artifact: call it with the input arrays, as a :class:`CudaKernel`.

    Parameters
    ----------
    artifact
        Built (its ``binary`` is a code object).

    Raises
    ------
    LaunchError
        Where the artifact is not built, or CuPy for ROCm or a device is missing.
    """

    language: ClassVar[str] = "hip"
    label: ClassVar[str] = "HIP"

    def _runtime(self) -> Any:
        return cupy()
