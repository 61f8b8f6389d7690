"""Counts the elements and bytes of traced tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable

from roller.insight.trace.trace import TensorRecord
from roller_runtime.core.dtypes import DTYPE_BYTES

#: Bytes per element of dtypes in which roller does not compute.
_OTHER_BYTES = {"complex64": 8, "complex128": 16, "complex32": 4, "float8_e5m2fnuz": 1, "float8_e4m3fnuz": 1,
                "uint16": 2, "uint32": 4, "uint64": 8}  # fmt: skip


def itemsize(dtype: str) -> int:
    """Return the size of one element in bytes; 4 if the dtype is unknown."""
    return DTYPE_BYTES.get(dtype) or _OTHER_BYTES.get(dtype, 4)


def element_count(tensor: TensorRecord) -> int:
    """Return the number of elements in a tensor."""
    return math.prod(tensor.shape)


def distinct_bytes(tensor: TensorRecord) -> int:
    """Return the number of bytes that a tensor occupies; repeated elements of an expanded dimension count once."""
    if len(tensor.stride) != len(tensor.shape):
        return element_count(tensor) * itemsize(tensor.dtype)
    own = (n for n, s in zip(tensor.shape, tensor.stride, strict=True) if s != 0 or n <= 1)
    return math.prod(own) * itemsize(tensor.dtype)


def total_bytes(tensors: Iterable[TensorRecord | None]) -> int:
    """Return the number of bytes that tensors occupy; ``None`` counts as 0, and a repeated tensor counts once."""
    return sum(distinct_bytes(t) for t in dict.fromkeys(tensors) if t is not None)
