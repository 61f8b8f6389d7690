"""Finds the addresses of PyTorch tensors in each call through PyTorch's stable C functions, in about 25 ns each."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roller.errors import BuildError
from roller.runtime.session.native_library_build import compile_library, load_or_build_library
from roller_runtime.core.temporary_folders import scratch_folder

SOURCE = Path(__file__).with_name("tensor_addresses.c")
#: ``Expected`` of tensor_addresses.c.
_EXPECTED = np.dtype([("position", "i8"), ("ndim", "i8"), ("shape", "u8"), ("dtype", "i4"), ("itemsize", "i4")])
#: Functions that PyTorch exports for compiled code (torch/csrc/inductor/aoti_torch/c/shim.h), in ``Library``'s order.
_PREFIX, _ASKED = "aoti_torch_get_", ("data_ptr", "dim", "sizes", "strides", "dtype", "device_type")
#: Result of :meth:`TensorAddresses.write_addresses` if all tensors have addresses.
ALL = -1


@dataclass(frozen=True)
class ExpectedTensor:
    """Position, shape and dtype of an argument that must be a contiguous host tensor."""

    position: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class _Library(ctypes.Structure):
    """``Library`` of tensor_addresses.c."""

    _fields_ = (
        ("functions", ctypes.c_void_p * 7), ("tensor_offset", ctypes.c_int64), ("type_offset", ctypes.c_int64),
        ("host", ctypes.c_int64), ("types", ctypes.c_void_p * 2),
    )  # fmt: skip


class TensorAddresses:
    """Finds the addresses of the tensors among arguments.

    Raises
    ------
    LookupError
        If this release of PyTorch or of Python is unsupported, or there is no C compiler.
    """

    def __init__(self, wanted: Sequence[ExpectedTensor]) -> None:
        self._library = torch_functions_and_offsets()
        try:
            self._look = _load_address_function()
        except BuildError as err:
            raise LookupError(str(err)) from err
        shapes = [np.array(w.shape or (1,), np.int64) for w in wanted]
        rows = [(w.position, len(w.shape), s.ctypes.data, _dtype_number(w.dtype), w.dtype.itemsize)
                for w, s in zip(wanted, shapes, strict=True)]  # fmt: skip
        self._table = np.array(rows, _EXPECTED)
        self._kept, self._expected, self.count = shapes, self._table.ctypes.data, len(rows)
        self._address = ctypes.addressof(self._library)

    def write_addresses(self, arguments: tuple[Any, ...], addresses: int, first: int = 0) -> int:
        """Write the addresses of inputs from ``first`` on; return the index of the first strided input, or ``ALL``."""
        found: int = self._look(self._address, arguments, self._expected, first, self.count, addresses)
        return found


@functools.cache
def torch_functions_and_offsets() -> _Library:
    """Return PyTorch's functions, and the offsets of the type and of the tensor in a Python object."""
    import torch

    # The offsets are undocumented: the tensor is expected after the object header, and verified by its address.
    types = (torch.Tensor, torch.nn.Parameter)
    word, header = ctypes.sizeof(ctypes.c_void_p), object.__basicsize__
    for kind in types:
        sample = kind(torch.zeros(2))
        found = [ctypes.c_void_p.from_address(id(sample) + at).value for at in (header - word, header)]
        if type(sample) is not kind or found != [id(kind), sample._cdata]:
            raise LookupError(f"torch {torch.__version__}: expected a tensor after the header of a {kind.__name__}")
    exported = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    try:
        asked = [ctypes.cast(getattr(exported, _PREFIX + name), ctypes.c_void_p).value for name in _ASKED]
    except AttributeError as err:
        raise LookupError(f"torch {torch.__version__}: {err}") from err
    item = ctypes.cast(ctypes.pythonapi.PyTuple_GetItem, ctypes.c_void_p).value
    functions, addresses = (ctypes.c_void_p * 7)(item, *asked), (ctypes.c_void_p * 2)(*map(id, types))
    host = _call_number_function("device_type", functions, torch.zeros(2))
    return _Library(functions, header, header - word, host, addresses)


def _call_number_function(name: str, functions: Any, tensor: Any) -> int:
    """Call one of PyTorch's functions on a tensor and return its integer result."""
    number, handle = ctypes.c_int32(), ctypes.c_void_p(tensor._cdata)
    ask = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)(functions[1 + _ASKED.index(name)])
    if ask(ctypes.addressof(handle), ctypes.addressof(number)):
        raise LookupError(f"torch: {_PREFIX}{name} failed")
    return number.value


def _dtype_number(dtype: np.dtype[Any]) -> int:
    import torch

    return _call_number_function("dtype", torch_functions_and_offsets().functions, torch.from_numpy(np.zeros(1, dtype)))


@functools.cache
def _load_address_function() -> Any:
    """Return ``roller_addresses``, which is called with the GIL held because it reads Python objects."""
    image = load_or_build_library((SOURCE,), lambda: compile_library(SOURCE, "looking at tensors"))
    with scratch_folder() as folder:
        path = Path(folder, "places.so")
        path.write_bytes(image)
        look = ctypes.PyDLL(str(path)).roller_addresses
    look.restype = ctypes.c_int64
    look.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64,
                     ctypes.c_void_p)  # fmt: skip
    return look
