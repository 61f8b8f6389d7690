"""Memory-mapped access to large weights inside a model file, while protobuf parses the rest.

Parsing and extraction each copy every byte of the weights; these copies take most of the time and memory of reading.
Files of unusual layout are left to protobuf.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # a warm compile only looks up where weights are stored
    import onnx

#: Minimum size of a mapped tensor in bytes, and maximum number of maps, because each map holds a file descriptor.
_LEAST_BYTES, _MOST_MAPS = 1 << 20, 256
#: Field numbers of ``ModelProto.graph``, ``GraphProto.initializer`` and ``TensorProto.raw_data``.
_GRAPH, _INITIALISER, _RAW = 7, 5, 9
#: Wire types: variable-length integer, 8 bytes, length-delimited bytes, 4 bytes.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True)
class MappedWeights:
    """Locations of a file's large initializers: offset and size in bytes, by index in the graph's initializers."""

    path: Path | None = None
    places: dict[int, tuple[int, int]] = field(default_factory=dict)

    def array(self, number: int, tensor: onnx.TensorProto) -> np.ndarray | None:
        """Return an initializer as a read-only map; if it must be parsed, restore its bytes and return ``None``."""
        from roller.models.onnx.onnx_types import dtype_name, onnx_dtype

        if number not in self.places or self.path is None:
            return None
        offset, nbytes = self.places[number]
        name, shape = dtype_name(tensor.data_type), tuple(tensor.dims)
        count = 1
        for dim in shape:
            count *= dim
        plain = tensor.data_location != tensor.EXTERNAL and min(shape, default=1) >= 0
        if plain and name is not None and "4" not in name[:4] and "int2" not in name:
            dtype = onnx_dtype(name)
            if count * dtype.itemsize == nbytes:
                return np.memmap(self.path, dtype, "r", offset, shape)
        with self.path.open("rb") as file:
            file.seek(offset)
            tensor.raw_data = file.read(nbytes)
        return None


def read_message_without_weights(path: Path) -> tuple[bytes, MappedWeights] | None:
    """Return a file's message without large weights, and their locations; ``None`` without any or for unusual files."""
    size = path.stat().st_size
    if size < _LEAST_BYTES:
        return None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            message, places = _remove_large_weights(data, max(_LEAST_BYTES, size // _MOST_MAPS))
        except (ValueError, IndexError):
            return None
    return (message, MappedWeights(path, places)) if places else None


def _remove_large_weights(data: mmap.mmap, least: int) -> tuple[bytes, dict[int, tuple[int, int]]]:
    """Return the message without weights of at least ``least`` bytes; raise ``ValueError`` for an unusual message."""
    outer, graphs, places = list[bytes](), 0, dict[int, tuple[int, int]]()
    for number, kind, start, first, last in _parse_fields(data, 0, len(data)):
        if number != _GRAPH or kind != _BYTES:
            outer.append(data[start:last])
            continue
        graphs += 1
        inner, count = list[bytes](), 0
        for part, form, begin, low, high in _parse_fields(data, first, last):
            if part != _INITIALISER or form != _BYTES:
                inner.append(data[begin:high])
                continue
            found = _split_off_raw_data(data, low, high, least)
            if found is None:
                inner.append(data[begin:high])
            else:
                places[count] = found[1]
                inner.append(_encode_field(_INITIALISER, found[0]))
            count += 1
        outer.append(_encode_field(_GRAPH, b"".join(inner)))
    if graphs != 1:
        raise ValueError("graphs that are merged")
    return b"".join(outer), places


def _split_off_raw_data(data: mmap.mmap, first: int, last: int, least: int) -> tuple[bytes, tuple[int, int]] | None:
    """Return a tensor without its raw data, and the data's location; ``None`` if the data are small or absent."""
    if last - first < least:
        return None
    rest, found = list[bytes](), list[tuple[int, int]]()
    for number, kind, start, low, high in _parse_fields(data, first, last):
        if number == _RAW and kind == _BYTES:
            found.append((low, high - low))
        else:
            rest.append(data[start:high])
    return (b"".join(rest), found[0]) if len(found) == 1 and found[0][1] >= least else None


def _parse_fields(data: mmap.mmap, at: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield the number, wire type, start, content start and content end of every field of a message."""
    while at < end:
        start = at
        tag, at = _parse_varint(data, at, end)
        kind, last = tag & 7, at
        if kind == _VARINT:
            _, last = _parse_varint(data, at, end)
        elif kind == _BYTES:
            length, at = _parse_varint(data, at, end)
            last = at + length
        elif kind in (_FIXED64, _FIXED32):
            last = at + (8 if kind == _FIXED64 else 4)
        else:
            raise ValueError("a wire type that ONNX does not use")
        if last > end:
            raise ValueError("a field that ends outside of its message")
        yield tag >> 3, kind, start, at, last
        at = last


def _parse_varint(data: mmap.mmap, at: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number that does not end")


def _encode_field(number: int, content: bytes) -> bytes:
    """Return an encoded length-delimited field."""
    out, length = bytearray([number << 3 | _BYTES]), len(content)
    while length > 127:
        out.append(length & 127 | 128)
        length >>= 7
    return bytes(out) + bytes([length]) + content
