"""One file of arrays: written in order, each at a cache line, and mapped into memory to be read."""

from __future__ import annotations

import math
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from roller.core.dtypes import numpy_dtype
from roller.errors import ArtifactError

#: Where every array starts: at a multiple of this.
ALIGN_BYTES = 64
#: Threads that compute checksums, at memory's speed.
_VERIFIERS = 4


class ArrayWriter:
    """Appends arrays to a new file.

    Parameters
    ----------
    path
        The file.
    """

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("xb")
        self._at = 0

    def __enter__(self) -> ArrayWriter:
        """Return the writer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self._file.close()

    def add(self, array: np.ndarray) -> list[Any]:
        """Append an array; return where it lies: offset, shape, dtype and CRC-32 of its bytes."""
        padding = -self._at % ALIGN_BYTES
        self._file.write(bytes(padding))
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._file.write(flat.data)
        row = [self._at + padding, list(array.shape), array.dtype.name, zlib.crc32(flat.data)]
        self._at += padding + flat.nbytes
        return row

    def close(self) -> int:
        """Finish the file; return its bytes."""
        self._file.close()
        return self._at


class ArrayReader:
    """Arrays of a file, mapped into memory.

    Parameters
    ----------
    path
        The file.
    nbytes
        Bytes it must have.
    verify
        Whether every array is checked against its checksum when it is asked for; :meth:`check` does all at once.

    Raises
    ------
    ArtifactError
        Where it cannot be read, or has another size.
    """

    def __init__(self, path: Path, nbytes: int, verify: bool) -> None:
        self.path, self._verify = path, verify
        self._sums: list[tuple[int, np.ndarray, Any]] = []
        try:
            found = path.stat().st_size
            # A file of no bytes cannot be mapped.
            self._bytes = np.memmap(path, np.uint8, "r") if found else np.zeros(0, np.uint8)
        except (OSError, ValueError) as err:
            raise ArtifactError(f"{path}: cannot read it ({err}). Save the model again.") from err
        if found != nbytes:
            raise ArtifactError(f"{path}: expected {nbytes} bytes, got {found}. Copy the folder again.")

    def get(self, row: Any) -> np.ndarray:
        """Return an array, read-only."""
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
            raise self._damaged(start)
        self._sums.append((start, part, crc))
        return part.view(dtype).reshape(shape)

    def check(self) -> None:
        """Check all arrays that were asked for against their checksums, on several threads."""
        with ThreadPoolExecutor(_VERIFIERS) as pool:
            found = pool.map(lambda row: zlib.crc32(row[1].data), self._sums)
            for (start, _, wanted), crc in zip(self._sums, found, strict=True):
                if crc != wanted:
                    raise self._damaged(start)

    def _damaged(self, start: int) -> ArtifactError:
        return ArtifactError(
            f"{self.path}: checksum of the array at byte {start} does not match; the file is damaged. Copy the folder "
            "again."
        )
