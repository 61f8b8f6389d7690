"""External tensor data, memory-mapped from files below the model's folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import onnx

from roller.errors import ModelError
from roller.models.onnx.onnx_types import dtype_name, onnx_dtype


class ExternalData:
    """The external files of one model; only files below ``folder`` are opened, and none if it is ``None``."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = None if folder is None else Path(os.path.realpath(folder))
        self._sizes: dict[str, tuple[Path, int]] = {}
        self._arrays: dict[tuple[object, ...], np.ndarray] = {}

    def array(self, tensor: onnx.TensorProto) -> np.ndarray:
        """Return a tensor as a read-only memory map; tensors at the same location share one array."""
        where = f"external data of '{tensor.name}'"
        details = {e.key: e.value for e in tensor.external_data}
        path, size = self._checked_file(details.get("location", ""), where)
        dtype, shape = dtype_name(tensor.data_type), tuple(tensor.dims)
        if dtype is None or min(shape, default=1) < 0:
            raise ModelError(f"{where}: expected a numeric type and a shape, got {tensor.data_type} and {list(shape)}.")
        element = onnx_dtype(dtype)
        if "int4" in dtype or "float4" in dtype or "int2" in dtype:
            raise ModelError(f"{where}: packed elements ({dtype}) are not read from files. Convert them to int8.")
        offset = _parse_byte_count(details.get("offset", "0"), "offset", where)
        count = 1
        for dim in shape:
            count *= dim
        length = (
            _parse_byte_count(details["length"], "length", where) if details.get("length") else count * element.itemsize
        )
        if length != count * element.itemsize or offset + length > size:
            raise ModelError(
                f"{where}: expected {count * element.itemsize} bytes at offset {offset}, got length {length} in a file "
                f"of {size} bytes. The file is damaged or belongs to another model."
            )
        key = (path, offset, dtype, shape)
        if key not in self._arrays:
            self._arrays[key] = np.memmap(path, element, "r", offset, shape) if count else np.zeros(shape, element)
        return self._arrays[key]

    def _checked_file(self, location: str, where: str) -> tuple[Path, int]:
        """Return a file's path and its size in bytes; raise an error if the file must not be opened."""
        if location in self._sizes:
            return self._sizes[location]
        if self.folder is None:
            raise ModelError(f"{where}: the model came without a path. Pass `base_dir=`, the folder of its data.")
        parts = Path(location.replace("\\", "/")).parts
        if not location or "\0" in location or Path(location).is_absolute() or ".." in parts:
            raise ModelError(f"{where}: expected a path below the model's folder, got {location!r}. It was not opened.")
        path = Path(os.path.realpath(self.folder / location))
        if not path.is_relative_to(self.folder):
            raise ModelError(f"{where}: {location!r} is a link that leaves the model's folder. It was not opened.")
        try:
            found = path.stat()
        except OSError as error:
            raise ModelError(f"{where}: cannot read {location!r}: {error.strerror}.") from None
        if not stat.S_ISREG(found.st_mode):
            raise ModelError(f"{where}: expected a plain file, got {location!r}. It was not opened.")
        if found.st_nlink > 1:
            # Its other names may lie outside the folder; onnx's own checker refuses hard links too.
            raise ModelError(
                f"{where}: expected a file of one name, got {location!r} with {found.st_nlink} hard links, one of "
                "which may lie outside the model's folder. It was not opened. Put a copy of the file in its place."
            )
        self._sizes[location] = path, found.st_size
        return self._sizes[location]


def _parse_byte_count(text: str, what: str, where: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ModelError(f"{where}: expected a number of bytes as its {what}, got {text!r}.")
    return int(text)
