"""Reads named arrays from a NumPy file; checks their sizes before it allocates memory for them."""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from roller.errors import MALFORMED, ArtifactError
from roller_runtime.core.files import open_regular_file

_MAGIC_BYTES = len(np.lib.format.MAGIC_PREFIX) + 2


def read_arrays(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return all arrays in an ``.npz`` file by name; arrays that are not in ``names`` are not read and are empty."""
    try:
        with open_regular_file(path) as raw:
            if raw.read(_MAGIC_BYTES)[:-2] == np.lib.format.MAGIC_PREFIX:
                raise ValueError("it holds one array without a name")
            with zipfile.ZipFile(raw) as file:
                members = {m.filename.removesuffix(".npy"): m for m in file.infolist()}
                return {n: _read_checked_array(file, m) if n in names else np.empty(0) for n, m in members.items()}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, MemoryError,
            RuntimeError, tokenize.TokenError, *MALFORMED) as err:  # fmt: skip
        raise ArtifactError(
            f"--inputs: expected arrays by name in {path}, got '{err}'. Write it with np.savez."
        ) from err


def _read_checked_array(file: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """Return an array after checking that its header's size equals the stored bytes."""
    with file.open(member) as data:
        shape, dtype = _read_npy_header(data)
        size, held = math.prod(shape) * dtype.itemsize, member.file_size - data.tell()
        if size != held:
            raise ValueError(f"'{member.filename}' has {held} bytes, but its header gives {size}")
    with file.open(member) as data:
        found: np.ndarray = np.lib.format.read_array(data, allow_pickle=False)
    return found


def _read_npy_header(data: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(data)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"format {version} of an array")
    shape, _, dtype = read(data)
    if dtype.hasobject:
        raise ValueError("objects instead of numbers")
    return shape, dtype
