"""Run built CUDA artifacts with CuPy.

Written against CuPy's documented interface and **not run on a device yet**; everything up to the cubin
works, and is tested, without one.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from roller.artifact import Argument, KernelArtifact
from roller.errors import LaunchError

_ELSEWHERE = "Constructing, compiling and reading the source work without it."

#: Vector accesses of the kernels start at multiples of this many bytes.
_ALIGNMENT_BYTES = 16

#: Dynamic scratchpad above this size must be requested per kernel (bytes).
_DEFAULT_SHARED_BYTES = 48 * 1024


def cupy() -> Any:
    """Return the CuPy module where it and a device are usable.

    Raises
    ------
    LaunchError
        Naming what is missing.
    """
    try:
        import cupy as module
    except ImportError as err:
        raise LaunchError(
            f"CUDA launch: expected CuPy, got {err}. Install it with 'pip install cupy-cuda12x'. {_ELSEWHERE}"
        ) from err
    try:
        devices = module.cuda.runtime.getDeviceCount()
    except module.cuda.runtime.CUDARuntimeError as err:
        raise LaunchError(
            f"CUDA launch: no usable device ({err}). Install a driver, or run elsewhere. {_ELSEWHERE}"
        ) from err
    if devices < 1:
        raise LaunchError(f"CUDA launch: expected a CUDA device, found none. Run on a GPU machine. {_ELSEWHERE}")
    return module


class CudaKernel:
    """A loaded artifact: call it with the input arrays.

    Parameters
    ----------
    artifact
        Built (its ``binary`` is a cubin).

    Raises
    ------
    LaunchError
        Where the artifact is not built, or CuPy or a device is missing.
    """

    #: Language of the artifacts, name in errors, and what the file of a binary is called.
    language: ClassVar[str] = "cuda"
    label: ClassVar[str] = "CUDA"
    suffix: ClassVar[str] = ".cubin"

    def __init__(self, artifact: KernelArtifact) -> None:
        if artifact.language != self.language or artifact.binary is None:
            raise LaunchError(
                f"{self.label} launch: expected a built '{self.language}' artifact. Build it with its toolchain first."
            )
        self.artifact = artifact
        self._cupy = self._runtime()
        module = self._load(artifact.binary)
        self._functions = []
        for launch in artifact.launches:
            function = module.get_function(launch.entry)
            if launch.dynamic_shared_bytes > _DEFAULT_SHARED_BYTES:
                self._allow(function, launch.dynamic_shared_bytes)
            self._functions.append(function)

    def _runtime(self) -> Any:
        return cupy()

    def _allow(self, function: Any, shared_bytes: int) -> None:
        """Raise a kernel's limit on dynamic scratchpad."""
        function.max_dynamic_shared_size_bytes = shared_bytes

    def _load(self, binary: bytes) -> Any:
        # Only a module loaded from a file offers kernels whose dynamic scratchpad can be raised.
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"kernel{self.suffix}")
            path.write_bytes(binary)
            module = self._cupy.RawModule(path=str(path))
            module.compile()
        return module

    def __call__(self, *inputs: Any, out: Sequence[Any] | None = None) -> tuple[Any, ...]:
        """Run the kernels on the current stream and return the outputs (CuPy arrays).

        Parameters
        ----------
        inputs
            One array per input, C-contiguous, of the declared number of elements and dtype; host arrays are copied.
        out
            Arrays to write; allocated where ``None``. They must not overlap the inputs.

        Raises
        ------
        LaunchError
            Where an array does not match its argument.
        """
        arguments = self.artifact.arguments
        if len(inputs) != len(self.artifact.inputs):
            raise LaunchError(f"{self.label} launch: expected {len(self.artifact.inputs)} inputs, got {len(inputs)}.")
        given = dict(zip((a.name for a in self.artifact.inputs), inputs, strict=True))
        if out is not None:
            given.update(zip((a.name for a in self.artifact.outputs), out, strict=True))
        arrays = {a.name: self._array(a, given.get(a.name)) for a in arguments}
        for launch, function in zip(self.artifact.launches, self._functions, strict=True):
            values = tuple(arrays[n] for n in launch.arguments)
            function(launch.grid, launch.block, values, shared_mem=launch.dynamic_shared_bytes)
        shapes = [t.shape for t in self.artifact.expression.output_tensors]
        return tuple(arrays[a.name].reshape(s) for a, s in zip(self.artifact.outputs, shapes, strict=True))

    def _array(self, argument: Argument, value: Any) -> Any:
        """Return the device array of one argument; outputs and workspaces are new per call, so calls are re-entrant."""
        if value is None:
            return self._cupy.empty(argument.shape, argument.dtype)
        array = self._cupy.ascontiguousarray(value) if argument.role == "input" else value
        if str(array.dtype) != argument.dtype or array.size != math.prod(argument.shape):
            raise LaunchError(
                f"{self.label} launch: argument '{argument.name}': expected {math.prod(argument.shape)} elements of "
                f"{argument.dtype}, got {array.size} of {array.dtype}. Pass arrays of the declared shape and dtype."
            )
        if argument.role != "input" and not array.flags.c_contiguous:
            raise LaunchError(
                f"{self.label} launch: output '{argument.name}': expected a contiguous array. Pass a copy."
            )
        if array.data.ptr % _ALIGNMENT_BYTES:
            if argument.role == "input":
                return array.copy()
            raise LaunchError(
                f"{self.label} launch: output '{argument.name}': expected 16-byte aligned memory. Pass a copy."
            )
        return array
