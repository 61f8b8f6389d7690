"""Where PyTorch's tensors lie in each call: asked through the stable C functions of its library, some 25 ns apiece."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roller.core.scratch import scratch_folder
from roller.errors import BuildError
from roller.models.session.native_build import compile_library, kept_library

SOURCE = Path(__file__).with_name("places.c")
#: ``Expected`` of places.c.
_EXPECTED = np.dtype([("position", "i8"), ("ndim", "i8"), ("shape", "u8"), ("dtype", "i4"), ("itemsize", "i4")])
#: What PyTorch exports for compiled code (torch/csrc/inductor/aoti_torch/c/shim.h), in the order of ``Library``.
_PREFIX, _ASKED = "aoti_torch_get_", ("data_ptr", "dim", "sizes", "strides", "dtype", "device_type")
#: No tensor is left that cannot be read as it is.
ALL = -1


@dataclass(frozen=True)
class Wanted:
    """What an argument has to be.

    Parameters
    ----------
    position
        Among the arguments.
    shape, dtype
        A contiguous tensor of the host, aligned to its elements.
    """

    position: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class _Library(ctypes.Structure):
    """``Library`` of places.c."""

    _fields_ = (
        ("functions", ctypes.c_void_p * 7), ("tensor_offset", ctypes.c_int64), ("type_offset", ctypes.c_int64),
        ("host", ctypes.c_int64), ("types", ctypes.c_void_p * 2),
    )  # fmt: skip


class Places:
    """Looks where the tensors among arguments lie.

    Parameters
    ----------
    wanted
        In the order of the inputs.

    Raises
    ------
    LookupError
        Where this release of PyTorch or of Python is not understood, or there is no C compiler.
    """

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        self._library = library()
        try:
            self._look = _function()
        except BuildError as err:
            raise LookupError(str(err)) from err
        shapes = [np.array(w.shape or (1,), np.int64) for w in wanted]
        rows = [(w.position, len(w.shape), s.ctypes.data, _dtype_number(w.dtype), w.dtype.itemsize)
                for w, s in zip(wanted, shapes, strict=True)]  # fmt: skip
        self._table = np.array(rows, _EXPECTED)
        self._kept, self._expected, self.count = shapes, self._table.ctypes.data, len(rows)
        self._address = ctypes.addressof(self._library)

    def look(self, arguments: tuple[Any, ...], addresses: int, first: int = 0) -> int:
        """Write addresses of inputs from number ``first`` on; return the first that has none, or ``ALL``.

        What is strided, misaligned or otherwise unexpected has none: kernels cannot read it where it is.
        """
        found: int = self._look(self._address, arguments, self._expected, first, self.count, addresses)
        return found


@functools.cache
def library() -> _Library:
    """Return PyTorch's functions, and where a Python object has its type and its tensor.

    The latter is not documented: a tensor is looked for where the header of an object ends, and compared with the
    address that PyTorch tells.
    """
    import torch

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
    host = _asked("device_type", functions, torch.zeros(2))
    return _Library(functions, header, header - word, host, addresses)


def _asked(name: str, functions: Any, tensor: Any) -> int:
    """Return a number that a function gives of a tensor."""
    number, handle = ctypes.c_int32(), ctypes.c_void_p(tensor._cdata)
    ask = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)(functions[1 + _ASKED.index(name)])
    if ask(ctypes.addressof(handle), ctypes.addressof(number)):
        raise LookupError(f"torch: {_PREFIX}{name} failed")
    return number.value


def _dtype_number(dtype: np.dtype[Any]) -> int:
    import torch

    return _asked("dtype", library().functions, torch.from_numpy(np.zeros(1, dtype)))


@functools.cache
def _function() -> Any:
    """Return ``roller_addresses``, called with the interpreter's lock held: it looks at Python's objects."""
    image = kept_library((SOURCE,), lambda: compile_library(SOURCE, "looking at tensors"))
    with scratch_folder() as folder:
        path = Path(folder, "places.so")
        path.write_bytes(image)
        look = ctypes.PyDLL(str(path)).roller_addresses
    look.restype = ctypes.c_int64
    look.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64,
                     ctypes.c_void_p)  # fmt: skip
    return look
