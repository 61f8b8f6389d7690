"""A file of arrays, written in order at cache-line boundaries and read through a memory map."""

from __future__ import annotations

import math
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from roller_runtime.core.dtypes import numpy_dtype
from roller_runtime.errors import ArtifactError

#: Alignment of arrays in the file, in bytes.
ALIGN_BYTES = 64
#: Number of threads that compute checksums: enough to reach the memory bandwidth.
_VERIFIERS = 4


class ArrayWriter:
    """Appends arrays to a new file."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("xb")
        self._at = 0

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, array: np.ndarray) -> list[Any]:
        """Append an array; return the array's offset, shape, dtype and CRC-32 as a list."""
        padding = -self._at % ALIGN_BYTES
        self._file.write(bytes(padding))
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._file.write(flat.data)
        row = [self._at + padding, list(array.shape), array.dtype.name, zlib.crc32(flat.data)]
        self._at += padding + flat.nbytes
        return row

    def close(self) -> int:
        """Close the file; return its size in bytes."""
        self._file.close()
        return self._at


class ArrayReader:
    """Memory-mapped arrays of a file; raises :class:`ArtifactError` unless the file is readable and ``nbytes`` long.

    Parameters
    ----------
    verify
        Whether :meth:`get` verifies the checksum of each array; :meth:`check` verifies all at once.
    """

    def __init__(self, path: Path, nbytes: int, verify: bool) -> None:
        self.path, self._verify = path, verify
        self._sums: dict[tuple[int, int], tuple[int, np.ndarray, Any]] = {}
        try:
            found = path.stat().st_size
            # A file of no bytes cannot be mapped.
            self._bytes = np.memmap(path, np.uint8, "r") if found else np.zeros(0, np.uint8)
        except (OSError, ValueError) as err:
            raise ArtifactError(f"{path}: cannot read it ({err}). Save the model again.") from err
        if found != nbytes:
            raise ArtifactError(f"{path}: expected {nbytes} bytes, got {found}. Copy the folder again.")

    def get(self, row: Any) -> np.ndarray:
        """Return the array that ``row``, a result of :meth:`ArrayWriter.add`, describes; it is read-only."""
        start, shape, name, crc = row
        dtype = numpy_dtype(str(name))
        whole = all(type(x) is int and x >= 0 for x in (start, *shape))
        size = math.prod(shape) * dtype.itemsize if whole else 0
        if not whole or start % ALIGN_BYTES or start + size > self._bytes.nbytes:
            raise ArtifactError(
                f"{self.path}: an array of shape {shape} at byte {start} lies outside the file of {self._bytes.nbytes} "
                "bytes. Save the model again."
            )
        part = np.asarray(self._bytes[start : start + size])
        if self._verify and zlib.crc32(part.data) != crc:
            raise self._checksum_error(start)
        self._sums[start, size] = (start, part, crc)
        return part.view(dtype).reshape(shape)

    def check(self) -> None:
        """Verify the checksums of all returned arrays, on several threads."""
        with ThreadPoolExecutor(_VERIFIERS) as pool:
            found = pool.map(lambda row: zlib.crc32(row[1].data), self._sums.values())
            for (start, _, wanted), crc in zip(self._sums.values(), found, strict=True):
                if crc != wanted:
                    raise self._checksum_error(start)

    def _checksum_error(self, start: int) -> ArtifactError:
        return ArtifactError(
            f"{self.path}: checksum of the array at byte {start} does not match; the file is damaged. Copy the folder "
            "again."
        )
