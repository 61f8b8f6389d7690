"""Loaded image of a built GPU artifact: gives access to its kernels and launches all of them.

No compiler is needed: the driver loads the image, and arguments are raw pointers. CuPy has one interface for CUDA and
ROCm; names that differ are looked up here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np

from roller.artifact import KernelArtifact, Launch
from roller.backends.cuda.cupy_runtime import image_errors_as_launch_errors, is_hip
from roller.errors import LaunchError
from roller.targets import LANGUAGES, check_language

#: Size in bytes of a dynamic scratchpad above which a kernel must request it.
_DEFAULT_SHARED_BYTES = 48 * 1024
#: CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES of the driver API.
_MAX_DYNAMIC_SHARED = 8
#: CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: percent of a unit's largest scratchpad; the L1 gets the rest.
_PREFERRED_CARVEOUT = 9
#: cudaDevAttrMaxSharedMemoryPerMultiprocessor and cudaDevAttrReservedSharedMemoryPerBlock.
_UNIT_SHARED, _RESERVED_SHARED = 81, 111


def check_loadable(language: str, binary: bytes | None, where: str) -> None:
    """Raise an error if CuPy cannot load kernels of this language, or the kernel is not built."""
    loads = [t.language for t in LANGUAGES.values() if t.kind.discrete]
    check_language(language, loads, where, LaunchError, "Load it with the launcher of its own target.")
    if binary is None:
        raise LaunchError(f"{where}: expected a built kernel. Build it with its toolchain first.")


class LoadedImage:
    """Kernels of one artifact, loaded on the current device; the binary is a cubin or a HIP code object.

    Raises
    ------
    LaunchError
        If the artifact is not built, or its image does not fit the device.
    """

    def __init__(self, cp: Any, artifact: KernelArtifact) -> None:
        check_loadable(artifact.language, artifact.binary, artifact.expression.name)
        self.artifact = artifact
        self._image = cp.cuda.Module()
        with image_errors_as_launch_errors(artifact.expression.name, artifact.target):
            self._image.load(artifact.binary)
            self._calls = [(x, self._function(cp, x)) for x in artifact.launches]
            self._numbers = _integer_arguments(artifact)
            first = artifact.prepare
            self._first = [(first, self._function(cp, first))] if first else []

    def _function(self, cp: Any, launch: Launch) -> Any:
        function = self._image.get_function(launch.entry)
        blocks = int(self.artifact.estimate.get("terms", {}).get("blocks_per_unit", 0))
        static = int(self.artifact.build.get("static_shared_bytes", 0)) if _declares_static_scratchpad(launch) else 0
        request_scratchpad(cp, function, launch.dynamic_shared_bytes, launch.dynamic_shared_bytes + static, blocks)
        return function

    def reshaped(self, artifact: KernelArtifact) -> LoadedImage:
        """Return the same kernels with the grids and integer arguments of ``artifact``, which has the same image."""
        out = copy(self)
        out.artifact = artifact
        out._calls = [(x, f) for x, (_, f) in zip(artifact.launches, self._calls, strict=True)]
        out._numbers = _integer_arguments(artifact)
        return out

    def launch(self, pointers: Mapping[str, int], stream: Any) -> None:
        """Launch all kernels in order on a stream; return immediately."""
        _launch_calls(self._calls, {**pointers, **self._numbers}, stream)

    def prepare(self, pointers: Mapping[str, int], stream: Any) -> None:
        """Launch the kernel that packs constants into panels, if there is one; return immediately."""
        _launch_calls(self._first, {**pointers, **self._numbers}, stream)


def request_scratchpad(cp: Any, function: Any, dynamic_bytes: int, used_bytes: int, blocks: int) -> None:
    """Request a kernel's scratchpad from the driver: for one block, and for all resident blocks of a unit."""
    # HIP needs no request for dynamic scratchpad and has no carveout.
    if is_hip(cp):
        return
    if dynamic_bytes > _DEFAULT_SHARED_BYTES:
        cp.cuda.driver.funcSetAttribute(function.ptr, _MAX_DYNAMIC_SHARED, dynamic_bytes)
    percent = _shared_memory_percent(cp, used_bytes, blocks)
    if percent:
        with contextlib.suppress(RuntimeError):  # only a preference; the kernel runs without it
            cp.cuda.driver.funcSetAttribute(function.ptr, _PREFERRED_CARVEOUT, percent)


def _shared_memory_percent(cp: Any, used: int, blocks: int) -> int:
    """Return the percentage of a unit's scratchpad that its resident blocks need; 0 if unknown."""
    # By default the driver may size the scratchpad for fewer blocks than the estimate assumes.
    if blocks < 1 or not used:
        return 0
    capacity, reserved = _device_attribute(cp, _UNIT_SHARED), _device_attribute(cp, _RESERVED_SHARED)
    return min(100, -(-100 * blocks * (used + reserved) // capacity)) if capacity else 0


def _declares_static_scratchpad(launch: Launch) -> bool:
    """Return whether this kernel's source declares static scratchpad; the compiler reports one size for all kernels."""
    _, _, text = launch.source.partition(f" {launch.entry}(")
    return "__shared__" in text.partition('extern "C"')[0].replace("extern __shared__", "")


def _device_attribute(cp: Any, number: int) -> int:
    """Return an attribute of the current device; 0 if the driver does not know it."""
    runtime = cp.cuda.runtime
    try:
        return int(runtime.deviceGetAttribute(number, runtime.getDevice()))
    except RuntimeError:  # CUDARuntimeError
        return 0


def _integer_arguments(artifact: KernelArtifact) -> dict[str, np.int32]:
    return {a.name: np.int32(a.number) for a in artifact.arguments if a.number is not None}


def _launch_calls(calls: Sequence[tuple[Launch, Any]], given: Mapping[str, int | np.int32], stream: Any) -> None:
    """Launch kernels with the arguments in ``given``: addresses, or NumPy integers that are passed by value."""
    for launch, function in calls:
        values = tuple(x if isinstance(x := given[n], np.int32) else np.uint64(x) for n in launch.arguments)
        function(launch.grid, launch.block, values, launch.dynamic_shared_bytes, stream)
