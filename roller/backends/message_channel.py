"""Messages between profiler and device processes: a JSON header and binary blobs, both length-prefixed.

Because pickle is not used, a damaged message cannot execute code. Arrays are blobs whose dtypes and shapes are in the
header.
"""

from __future__ import annotations

import json
import os
import select
import struct
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

_HEAD = struct.Struct("<Q")
#: Largest header or blob in bytes; a larger size means a damaged stream.
_LARGEST = 1 << 31


class ChannelClosed(Exception):
    """The other end is gone, or its data is not a message."""


class ChannelTimeout(Exception):
    """No complete message arrived in time."""


def send_message(fd: int, header: dict[str, Any], blobs: Sequence[bytes] = ()) -> None:
    """Write one message."""
    text = json.dumps({**header, "blobs": [len(b) for b in blobs]}).encode()
    try:
        for part in (_HEAD.pack(len(text)), text, *blobs):
            view = memoryview(part)
            while view:
                view = view[os.write(fd, view) :]
    except OSError as err:
        raise ChannelClosed(str(err)) from err


def receive_message(fd: int, timeout_s: float | None = None) -> tuple[dict[str, Any], list[bytes]]:
    """Read one message; raise an error if it is not complete within ``timeout_s``."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    (size,) = _HEAD.unpack(_read_bytes(fd, _HEAD.size, deadline))
    if size > _LARGEST:
        raise ChannelClosed("the stream is damaged")
    header: dict[str, Any] = json.loads(_read_bytes(fd, size, deadline))
    return header, [_read_bytes(fd, n, deadline) for n in header.pop("blobs")]


def _read_bytes(fd: int, size: int, deadline: float | None) -> bytes:
    out = bytearray()
    while len(out) < size:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                raise ChannelTimeout
        chunk = os.read(fd, min(size - len(out), 1 << 20))
        if not chunk:
            raise ChannelClosed("end of stream")
        out += chunk
    return bytes(out)


def pack_arrays(arrays: Sequence[np.ndarray]) -> tuple[list[list[Any]], list[bytes]]:
    """Return descriptions and blobs, from which :func:`unpack_arrays` restores the arrays."""
    return [[a.dtype.str, list(a.shape)] for a in arrays], [np.ascontiguousarray(a).tobytes() for a in arrays]


def unpack_arrays(descriptions: Sequence[Sequence[Any]], blobs: Sequence[bytes]) -> list[np.ndarray]:
    """Return the arrays packed by :func:`pack_arrays`, read-only."""
    pairs = zip(descriptions, blobs, strict=True)
    return [np.frombuffer(b, np.dtype(dtype)).reshape(shape) for (dtype, shape), b in pairs]
