"""Arrays of another library by where they lie in each call: asked through DLPack's C exchange table, 50 ns apiece."""

from __future__ import annotations

import ctypes
import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roller.errors import BuildError
from roller.model.native_build import compile_library, kept_library
from roller.scratch import scratch_folder

SOURCE = Path(__file__).with_name("exchange.c")
#: ``Expected`` of exchange.c.
_EXPECTED = np.dtype([("position", "i8"), ("ndim", "i8"), ("shape", "u8"), ("code", "i4"), ("bits", "i4")])
#: DLPack's type codes by NumPy's kinds.
CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
#: Attribute of a class and name of its capsule, as DLPack 1.2 and later have it, and the version this file reads.
_TABLE, _CAPSULE, _MAJOR = "__dlpack_c_exchange_api__", b"dlpack_exchange_api", 1
#: No member is left that cannot be read as it is.
ALL = -1


class _Version(ctypes.Structure):
    _fields_ = (("major", ctypes.c_uint32), ("minor", ctypes.c_uint32))


class _Table(ctypes.Structure):
    """``DLPackExchangeAPI``."""

    _fields_ = (
        ("version", _Version), ("previous", ctypes.c_void_p), ("allocate", ctypes.c_void_p),
        ("managed_from_object", ctypes.c_void_p), ("managed_to_object", ctypes.c_void_p),
        ("view_of_object", ctypes.c_void_p), ("stream", ctypes.c_void_p),
    )  # fmt: skip


class Placed(ABC):
    """Inputs of one call that a native frame takes by their addresses; as arrays only where a step runs in Python."""

    @abstractmethod
    def place(self, addresses: int) -> None:
        """Write the address of every input, 8 bytes each, to where ``addresses`` points."""

    @abstractmethod
    def __getitem__(self, number: int) -> np.ndarray:
        """Return an input as a contiguous array."""


@dataclass(frozen=True)
class Wanted:
    """What a member of the arguments has to be.

    Parameters
    ----------
    position
        Among the arguments.
    shape, dtype
        A contiguous array of the host, aligned to its elements.
    """

    position: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Places:
    """Looks where arguments of one class lie.

    Parameters
    ----------
    kind
        Class of the arguments.
    wanted
        In the order of the inputs.

    Raises
    ------
    LookupError
        Where the class has no table that is understood here, or this interpreter no C compiler to ask it with.
    """

    def __init__(self, kind: type, wanted: Sequence[Wanted]) -> None:
        self._view = view_of(kind)
        try:
            self._look = _library()
        except BuildError as err:
            raise LookupError(str(err)) from err
        shapes = [np.array(w.shape or (1,), np.int64) for w in wanted]
        rows = [(w.position, len(w.shape), s.ctypes.data, CODES[w.dtype.kind], 8 * w.dtype.itemsize)
                for w, s in zip(wanted, shapes, strict=True)]  # fmt: skip
        self._table = np.array(rows, _EXPECTED)
        self._kept, self._expected, self.count = shapes, self._table.ctypes.data, len(rows)
        self._item = ctypes.cast(ctypes.pythonapi.PyTuple_GetItem, ctypes.c_void_p).value

    def look(self, arguments: tuple[Any, ...], addresses: int, first: int = 0) -> int:
        """Write addresses of inputs from number ``first`` on; return the first that has none, or ``ALL``.

        What is strided, misaligned or otherwise unexpected has none: kernels cannot read it where it is.
        """
        found: int = self._look(self._item, self._view, arguments, self._expected, first, self.count, addresses)
        return found


@functools.cache
def view_of(kind: type) -> int:
    """Return the address of the function that describes an object of a class without owning it.

    Raises
    ------
    LookupError
        Where the class offers none.
    """
    capsule = getattr(kind, _TABLE, None)
    if capsule is None:
        raise LookupError(f"{kind.__name__}: expected an attribute {_TABLE}, got none. Install a later release of it.")
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    at = pointer(capsule, _CAPSULE)
    while at:
        table = _Table.from_address(at)
        if table.version.major == _MAJOR:
            if table.view_of_object:
                return int(table.view_of_object)
            break
        at = table.previous
    raise LookupError(f"{kind.__name__}: expected an exchange table of DLPack {_MAJOR} with views, got none.")


@functools.cache
def _library() -> Any:
    """Return ``roller_addresses``, called with the interpreter's lock held: it looks at Python's objects."""
    image = kept_library((SOURCE,), lambda: compile_library(SOURCE, "looking at arrays of other libraries"))
    with scratch_folder() as folder:
        path = Path(folder, "exchange.so")
        path.write_bytes(image)
        look = ctypes.PyDLL(str(path)).roller_addresses
    look.restype = ctypes.c_int64
    look.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p, ctypes.c_int64,
                     ctypes.c_int64, ctypes.c_void_p)  # fmt: skip
    return look
