"""Arrays between protected pages, and what they are filled with."""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_PAGE = mmap.PAGESIZE
_NO_ACCESS, _READ_ONLY = 0, 1
#: A part of the elements of an array that are NaN or infinite where a case says so.
_SPECIAL_SHARE = 0.02


@functools.cache
def _libc() -> ctypes.CDLL:
    found = ctypes.CDLL(None, use_errno=True)
    found.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return found


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return NumPy's dtype of a name."""
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name, name))


class Guarded:
    """An array whose memory ends (or begins) at a page that may not be touched; its other side has one a page away.

    Parameters
    ----------
    shape, dtype
        Of the array; it is writable and holds ones in every bit.
    at_end
        Whether the last byte (or the first one) lies next to the protected page.
    """

    def __init__(self, shape: Sequence[int], dtype: str, at_end: bool = True) -> None:
        kind = numpy_dtype(dtype)
        size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        pages = max(1, -(-size // _PAGE))
        self.memory = mmap.mmap(-1, (pages + 2) * _PAGE)
        whole = np.frombuffer(self.memory, np.uint8)
        start = whole.ctypes.data
        first = _PAGE + (pages * _PAGE - size if at_end else 0)
        self.array = whole[first : first + size].view(kind).reshape(tuple(shape))
        self.array.reshape(-1).view(np.uint8)[:] = 0xFF
        self._inner = (start + _PAGE, pages * _PAGE)
        for page in (start, start + (pages + 1) * _PAGE):
            if _libc().mprotect(page, _PAGE, _NO_ACCESS):
                raise OSError(ctypes.get_errno(), "mprotect")

    def protect(self) -> None:
        """Make the array itself read-only: whoever writes it ends the process."""
        _libc().mprotect(*self._inner, _READ_ONLY)


def filled(shape: Sequence[int], dtype: str, rng: np.random.Generator, special: bool = False) -> np.ndarray:
    """Return random numbers of a dtype.

    Floats are multiples of an eighth, so that adding and multiplying a few of them is exact, half of them after a
    draw from all exponents a kernel is likely to meet; ``special`` puts NaN and infinities among them.
    """
    shape = tuple(shape)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if "int" in dtype:
        low, high = (0, 16) if dtype == "uint8" else (-9, 10)
        return np.asarray(rng.integers(low, high, shape)).astype(dtype)
    plain = rng.integers(-24, 25, shape) / 8
    wild = rng.standard_normal(shape) * 2.0 ** rng.integers(-3, 2, shape)
    out = np.asarray(np.where(rng.integers(0, 2, shape) == 0, plain, wild))
    if special:
        marks = rng.random(shape) < max(_SPECIAL_SHARE, 1.5 / max(1, out.size))
        out = np.where(marks, rng.choice([np.nan, np.inf, -np.inf], shape), out)
    return np.asarray(out).astype(numpy_dtype(dtype))


def inputs_of(tensors: Sequence[tuple[str, Sequence[int], str]], seed: int, special: bool) -> dict[str, np.ndarray]:
    """Return arrays by name for ``(name, shape, dtype)``."""
    rng = np.random.default_rng(seed)
    return {name: filled(shape, dtype, rng, special) for name, shape, dtype in tensors}


def guarded(arrays: Mapping[str, np.ndarray], dtypes: Mapping[str, str], at_end: bool) -> dict[str, Guarded]:
    """Return read-only copies of arrays that end or begin at a protected page."""
    return {name: guarded_copy(a, dtypes[name], at_end) for name, a in arrays.items()}


def guarded_copy(a: np.ndarray, dtype: str, at_end: bool) -> Guarded:
    """Return a read-only copy of an array that ends or begins at a protected page."""
    out = Guarded(a.shape, dtype, at_end)
    out.array[...] = a
    out.protect()
    return out
