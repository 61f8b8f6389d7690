"""Checks a caller's arrays for a CPU kernel and converts them to the kernel's form."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from roller_runtime.core.dtypes import DTYPES, numpy_dtype
from roller_runtime.core.foreign_array_checks import check_tensor_has_values, host_copy_hint
from roller_runtime.errors import LaunchError


class WritableView:
    """Wrapper whose array interface marks read-only memory as writable; kernels never write to their inputs."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


def as_writable_view(array: np.ndarray) -> np.ndarray:
    """Return ``array``, or a writable view of it if it is read-only; kernels never write to their inputs."""
    return array if array.flags.writeable else np.asarray(WritableView(array))


class _NamedTensor(Protocol):
    """Tensor of an expression, or value of a model."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> str: ...


class ArgumentSlot:
    """Kernel argument: checks the array that the caller passes for it and returns a view in the kernel's form."""

    def __init__(self, tensor: _NamedTensor, kernel_shape: tuple[int, ...]) -> None:
        self.name, self.shape = tensor.name, tensor.shape
        self.dtype = numpy_dtype(tensor.dtype)
        self.kernel_shape = kernel_shape or (1,)
        self._bits = DTYPES[tensor.dtype].bits
        #: Whether the kernel's shape or dtype differs from the caller's.
        self.viewed = bool(self._bits) or self.kernel_shape != self.shape
        if math.prod(self.kernel_shape) != math.prod(self.shape):
            raise LaunchError(f"'{self.name}': kernel shape {kernel_shape} does not hold the elements of {self.shape}.")

    def _array(self, value: Any, where: str) -> np.ndarray:
        if isinstance(value, np.ma.MaskedArray):
            raise LaunchError(
                f"{where}: argument '{self.name}': expected a plain array, got a masked one. "
                "Kernels know no mask: pass .filled(value)."
            )
        # Subclasses (matrix, memmap) override reshape and conversion; use their memory only.
        array = np.asarray(value) if isinstance(value, np.ndarray) else _as_numpy(value, where, self.name)
        if array.shape != self.shape:
            raise LaunchError(
                f"{where}: argument '{self.name}': expected shape {self.shape}, got {array.shape}. "
                "Reshape the array or compile for its shape."
            )
        if array.dtype != self.dtype:
            raise LaunchError(
                f"{where}: argument '{self.name}': expected dtype {self.dtype}, got {array.dtype}. "
                f"Convert it with .astype('{self.dtype}')."
            )
        return array

    def input(self, value: Any, where: str) -> np.ndarray:
        """Return the input as a C-contiguous, aligned array; copy it if necessary."""
        array = self._array(value, where)
        flags = array.flags
        if not (flags.c_contiguous and flags.aligned):
            return np.array(array, order="C", subok=False)
        return as_writable_view(array)

    def output(self, value: Any, where: str) -> np.ndarray:
        """Return a caller's output array; raise an error unless the kernel can write to it directly."""
        array = self._array(value, f"{where}: argument 'out'")
        flags = array.flags
        for held, wanted in ((flags.writeable, "a writable array"), (flags.c_contiguous, "a C-contiguous array"),
                             (flags.aligned, "an array aligned to its elements")):  # fmt: skip
            if not held:
                raise LaunchError(
                    f"{where}: argument 'out': '{self.name}': expected {wanted}, got one that is not. "
                    "Pass numpy.empty(shape, dtype), or leave 'out' out."
                )
        return array

    def view(self, array: np.ndarray) -> np.ndarray:
        """Return a view of a contiguous array in the kernel's shape, with elements as bits if NumPy lacks the dtype."""
        if self._bits:
            array = array.view(self._bits)
        return array.reshape(self.kernel_shape)


def _as_numpy(value: Any, where: str, name: str) -> np.ndarray:
    if not hasattr(value, "__dlpack__"):
        raise LaunchError(
            f"{where}: argument '{name}': expected a NumPy or DLPack array, got {type(value).__name__}. "
            "Convert it with numpy.asarray."
        )
    try:
        check_tensor_has_values(value)
        return np.from_dlpack(value)
    except (RuntimeError, BufferError, TypeError, ValueError) as err:
        raise LaunchError(
            f"{where}: argument '{name}': cannot view {type(value).__name__} as host memory ({err}). "
            f"{host_copy_hint(value)}"
        ) from err
