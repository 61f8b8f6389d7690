"""Widths of vector accesses to a tensor or a staged tile, for one program or for arrays of programs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from roller.expr import DTYPE_BYTES, Index, Load, Tensor, TensorExpr
from roller.tile.access import VECTOR_BYTES, Ints
from roller.tile.memory_strides import row_major_strides
from roller_runtime.core.dtypes import NARROW_FLOATS

#: Valid sizes of an asynchronous copy (bytes).
ASYNC_BYTES = (4, 8, 16)


def _flat_offsets(index: Sequence[Index], shape: Sequence[int], axis: str, values: np.ndarray) -> np.ndarray:
    """Return the flat offsets for ``values`` of one axis, with the other axes and constants at zero."""
    total = np.zeros(len(values), np.int64)
    for i, pitch in zip(index, row_major_strides(shape), strict=True):
        mine = Index(tuple(t for t in i.terms if t.axis == axis))
        total = total + pitch * np.asarray(mine({axis: values}))
    return total


def is_vectorizable(index: Sequence[Index], tensor: Tensor, axis: str, extent: int, width: int) -> bool:
    """Return whether every aligned chunk of ``width`` along ``axis`` is one aligned vector in memory."""
    # This must hold for all values of all other axes. The array itself must start at a multiple of the vector,
    # which the launcher checks. Bools are accessed one by one.
    if tensor.dtype == "bool" or width == 1 or extent % width or width * tensor.itemsize_bytes > VECTOR_BYTES:
        return False
    for i, pitch in zip(index, row_major_strides(tensor.shape), strict=True):
        if any(t.axis != axis and t.coef * pitch % width for t in i.terms):
            return False
    if sum(i.const * p for i, p in zip(index, row_major_strides(tensor.shape), strict=True)) % width:
        return False
    # Chunks repeat with the largest period of a quotient or remainder, so two periods are enough.
    period = max([1, *(t.div * max(t.mod, 1) for i in index for t in i.terms if t.axis == axis)])
    n = min(extent, -(-2 * max(period, width) // width) * width)
    flat = _flat_offsets(index, tensor.shape, axis, np.arange(n)).reshape(-1, width)
    return bool((flat[:, 0] % width == 0).all() and (flat == flat[:, :1] + np.arange(width)).all())


def is_in_memory(expr: TensorExpr, tensor: str) -> bool:
    """Return whether a tensor is in global memory; element-wise results are recomputed by their readers instead."""
    return all(s.name != tensor or s.combiner is not None for s in expr.stages)


def staged_itemsize(expr: TensorExpr, tensor: Tensor) -> int:
    """Return the number of bytes per element of a staged tile; narrow floats that the kernel computes stay float32."""
    narrow = tensor.dtype in NARROW_FLOATS and not is_in_memory(expr, tensor.name)
    return DTYPE_BYTES["float32"] if narrow else tensor.itemsize_bytes


@lru_cache(maxsize=4096)
def widest_vector_elements(index: tuple[Index, ...], tensor: Tensor, axis: str, extent: int) -> int:
    """Return the largest number of elements along ``axis`` such that every aligned chunk is one memory vector."""
    width = max(1, VECTOR_BYTES // tensor.itemsize_bytes)
    while width > 1 and not is_vectorizable(index, tensor, axis, extent, width):
        width //= 2
    return width


def access_elements_of_chunk(index: tuple[Index, ...], tensor: Tensor, axis: str, extent: int, chunk: int) -> int:
    """Return the number of elements per access that divides each chunk of ``chunk`` elements along ``axis`` evenly."""
    return math.gcd(chunk, widest_vector_elements(index, tensor, axis, extent))


@lru_cache(maxsize=4096)
def chunk_or_single_elements(index: tuple[Index, ...], tensor: Tensor, axis: str, extent: int, chunk: int) -> int:
    """Return the number of elements per access if a chunk is accessed either as one vector or element by element."""
    return chunk if is_vectorizable(index, tensor, axis, extent, chunk) else 1


def elements_per_tile_copy(
    load: Load,
    tensor: Tensor,
    extents: Mapping[str, int],
    tile: Mapping[str, int] | Mapping[str, Ints],
    row: tuple[str, int | Ints, int | Ints],
    padding: int | Ints = 0,
) -> int | Ints:
    """Return how many elements of a staged tile are copied at once: one number, or an array of shape ``(N,)``."""
    # Vectors must be aligned in the tensor and in the scratchpad, and must not straddle a bound.
    if tensor.dtype == "bool":  # TVM prints vectors of bools as vectors of two bytes per element
        return 1
    axis, elements, first = row
    bits = elements | padding | max(1, VECTOR_BYTES // tensor.itemsize_bytes)

    def start(a: str) -> int | Ints:
        """Return the greatest common divisor of all tile starts; 0 if there is only one tile, at 0."""
        return (tile[a] < extents[a]) * tile[a]

    if axis:
        guarded = any(axis in b.index.axes for b in load.guard)
        bits = bits | (1 if guarded else widest_vector_elements(load.index, tensor, axis, extents[axis])) | start(axis)
    elif load.index:
        last = load.index[-1]
        bits = bits | tensor.shape[-1] | (last.const - first)
        for t in last.terms:
            bits = bits | t.coef * start(t.axis)
        for b in load.guard:
            bits = bits | (b.low | b.high if b.index == last else 0)
    return bits & -bits


def may_copy_asynchronously(nbytes: int | Ints) -> bool | np.ndarray:
    """Return whether copying ``nbytes`` bytes at once may be asynchronous (elementwise)."""
    return np.isin(nbytes, ASYNC_BYTES)
