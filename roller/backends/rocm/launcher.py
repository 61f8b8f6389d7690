"""Run built HIP artifacts with CuPy's ROCm build.

Written against CuPy's documented interface and **never run**: no AMD device was at hand. What is tested is
everything before the device: the code objects, the arguments' checks, the errors.
"""

from __future__ import annotations

from typing import Any, ClassVar

from roller.backends.cuda.launcher import CudaKernel
from roller.backends.cuda.runtime import cupy


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
        return cupy(rocm=True)
