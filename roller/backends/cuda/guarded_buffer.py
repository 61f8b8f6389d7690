"""Device memory of the profiler: guarded buffers, inputs filled by tiled copies, and single elements read back.

This module uses only copies and memsets, because CuPy would compile its own kernels on first use and the machine may
have no compiler.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from roller.backends.cuda.cupy_runtime import allocate
from roller.backends.periodic_inputs import PeriodicInput

#: Bytes before and after every buffer, which a correct kernel never writes.
GUARD_BYTES = 1 << 16
_GUARD, _POISON = 0xA5, 0xFF
#: Number of compared elements above which an output is copied whole.
_ONE_BY_ONE = 4096


class GuardedBuffer:
    """Device memory of ``nbytes`` bytes between two guards."""

    def __init__(self, cp: Any, nbytes: int) -> None:
        self._cp = cp
        self.nbytes = nbytes
        # The rear guard starts right after the last byte.
        self._memory = allocate(cp, nbytes + 2 * GUARD_BYTES)
        self.ptr = self._memory.ptr + GUARD_BYTES
        self._memory.memset(_GUARD, nbytes + 2 * GUARD_BYTES)

    def poison(self) -> None:
        """Fill the buffer with a pattern that is NaN as a float, so that unwritten elements are wrong."""
        (self._memory + GUARD_BYTES).memset(_POISON, self.nbytes)

    def describe_overrun(self) -> str | None:
        """Return a text that says how many bytes of a guard were overwritten, and where; ``None`` if none were."""
        for name, start in (("before its start", 0), ("past its end", GUARD_BYTES + self.nbytes)):
            seen = self.read(start - GUARD_BYTES, GUARD_BYTES)
            written = int(np.count_nonzero(seen != _GUARD))
            if written:
                return f"{written} bytes {name}"
        return None

    def read(self, offset: int, nbytes: int) -> np.ndarray:
        """Return ``nbytes`` bytes from ``offset`` on, copied to the host."""
        out = np.empty(nbytes, np.uint8)
        self._cp.cuda.runtime.memcpy(
            out.ctypes.data, self.ptr + offset, nbytes, self._cp.cuda.runtime.memcpyDeviceToHost
        )
        return out

    def write(self, offset: int, data: np.ndarray) -> None:
        """Copy a host array to ``offset``."""
        data = np.ascontiguousarray(data)
        kind = self._cp.cuda.runtime.memcpyHostToDevice
        self._cp.cuda.runtime.memcpy(self.ptr + offset, data.ctypes.data, data.nbytes, kind)

    def move(self, to: int, source: int, nbytes: int) -> None:
        """Copy data on the device from address ``source`` to offset ``to``."""
        runtime = self._cp.cuda.runtime
        runtime.memcpy(self.ptr + to, source, nbytes, runtime.memcpyDeviceToDevice)

    def fill(self, x: PeriodicInput) -> None:
        """Write an input: copy one period from the host, and the rest on the device."""
        self.repeat(x.first())

    def repeat(self, first: np.ndarray) -> None:
        """Fill the buffer with repetitions of ``first``; each copy doubles the filled part."""
        self.write(0, first.view(np.uint8).reshape(-1)[: self.nbytes])
        done = min(first.nbytes, self.nbytes)
        while done < self.nbytes:
            # ``done`` is a multiple of the period here, so a prefix continues the sequence.
            n = min(done, self.nbytes - done)
            self.move(done, self.ptr, n)
            done += n

    def elements(self, points: np.ndarray, shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray:
        """Return the elements at ``points``, shape ``(P, rank)``, of the array of ``shape`` stored here."""
        flat = np.ravel_multi_index(tuple(points.T), tuple(shape)) if len(shape) else np.zeros(len(points), np.int64)
        if len(flat) > _ONE_BY_ONE:
            whole = self.read(0, math.prod(shape) * dtype.itemsize).view(dtype)
            return np.asarray(whole[flat])
        out = np.empty(len(flat), dtype)
        copy, kind = self._cp.cuda.runtime.memcpy, self._cp.cuda.runtime.memcpyDeviceToHost
        for n, i in enumerate(flat.tolist()):
            copy(out.ctypes.data + n * dtype.itemsize, self.ptr + i * dtype.itemsize, dtype.itemsize, kind)
        return out
