"""Operators that move whole tensors or gather parts of them: joins, indices, embeddings, sorts."""

from __future__ import annotations

import math
from collections.abc import Callable

from roller.insight.cost.gpu.operator_view import View, elements, itemsize, total_bytes
from roller.insight.cost.launches import Launch, Stream, Wait
from roller.insight.trace.trace import TensorRecord

#: Bits of a key that one pass of a radix sort orders, and kernels of a pass.
_RADIX_BITS, _KERNELS_PER_PASS = 8, 2
#: Bits of the keys of a sort by table row: rows of an embedding.
_ROW_BITS = 32
#: Rows up to which the gradient of a table adds as they come, without a sort (PyTorch's ``Embedding.cu``).
_MOST_UNSORTED = 3072
#: Tensors that one kernel of PyTorch joins (``CAT_ARRAY_BATCH_SIZE``).
_JOINED_TOGETHER = 128


def joined(view: View) -> tuple[Launch, ...]:
    """Return the kernels that copy tensors behind each other."""
    moved = total_bytes(view.outputs)
    return (Stream(moved, moved, math.ceil(len(view.inputs) / _JOINED_TOGETHER)),)


def stream_all(reads: float = 1.0, writes: float = 1.0, launches: int = 1) -> Callable[[View], tuple[Launch, ...]]:
    """Return the mapping of an operator that goes so many times through all it is given, and through its results."""

    def mapped(view: View) -> tuple[Launch, ...]:
        return (Stream(reads * total_bytes(view.inputs), writes * total_bytes(view.outputs), launches),)

    return mapped


def shaped(*names: str) -> Callable[[View], tuple[Launch, ...]]:
    """Return the mapping of a gradient that reads the tensors named; of others it needs the shape alone."""

    def mapped(view: View) -> tuple[Launch, ...]:
        read = [view.tensor(name) for name in names]
        return (Stream(total_bytes(read), total_bytes(view.outputs)),)

    return mapped


def part_backward(view: View) -> tuple[Launch, ...]:
    """Return the kernels of the gradient of a part: zeros for the whole, and the part over them."""
    part = total_bytes(view.inputs[:1])
    return (Stream(0.0, total_bytes((view.out,))), Stream(part, part))


def gathered(view: View) -> tuple[Launch, ...]:
    """Return the kernel that reads the elements of its result, and where they lie: a part of the table alone."""
    indices = sum(total_bytes((t,)) for t in view.inputs[1:] if t.dtype in ("int64", "int32", "bool"))
    moved = total_bytes(view.outputs)
    return (Stream(moved + indices, moved),)


def embedding_backward(view: View) -> tuple[Launch, ...]:
    """Return the kernels of the gradient of a table: zeros, a sort of the indices, sums of equal rows.

    Few rows are added as they come, each by the block that owns the table's row.
    """
    gradient, indices = view.need("grad_output", 0), view.need("indices", 1)
    whole, rows = total_bytes((view.out,)), elements(indices) * view.out.shape[-1] * itemsize(gradient.dtype)
    summed = min(rows, whole)
    zeros = Stream(0.0, whole)
    if elements(indices) <= _MOST_UNSORTED and not view.arg("scale_grad_by_freq", False):
        return (zeros, Stream(total_bytes((gradient, indices)) + summed, summed))
    return (zeros, sorted_rows(indices), Stream(total_bytes((gradient,)), summed))


def sorted_rows(indices: TensorRecord) -> Stream:
    """Return the kernels that sort rows of a table by number, to add equal ones in one place."""
    passes = _ROW_BITS // _RADIX_BITS
    moved = passes * elements(indices) * (itemsize(indices.dtype) + 8.0)
    return Stream(moved, moved, _KERNELS_PER_PASS * passes)


def sort(view: View) -> tuple[Launch, ...]:
    """Return the kernels of a radix sort of keys and their positions."""
    keys = view.inputs[0]
    passes = max(1, 8 * itemsize(keys.dtype) // _RADIX_BITS)
    moved = passes * elements(keys) * (itemsize(keys.dtype) + 8)
    return (Stream(moved, moved, _KERNELS_PER_PASS * passes),)


def waited(view: View) -> tuple[Launch, ...]:
    """Return what reading a value on the host does."""
    return (Wait(total_bytes(view.inputs)),)


def dynamic_size(view: View) -> tuple[Launch, ...]:
    """Return what an operator does whose result's size depends on values: kernels, and the host reads a count."""
    return (Stream(2 * total_bytes(view.inputs), total_bytes(view.outputs), 3), Wait(8.0))


def selected(view: View) -> tuple[Launch, ...]:
    """Return what selecting by a mask does: its true places are counted and listed, then gathered from."""
    mask, found = view.inputs[-1], view.out
    places = 8.0 * elements(found) * len(mask.shape)
    count = Stream(2.0 * total_bytes((mask,)), places, 3)
    return (count, Wait(8.0), Stream(places + total_bytes((found,)), total_bytes((found,))))


def unique(view: View) -> tuple[Launch, ...]:
    """Return what finding different values does: a sort, then the ends of runs are counted and listed."""
    return (*sort(view), *dynamic_size(view))


def nothing(view: View) -> tuple[Launch, ...]:
    """Return no launch: storage is handed out, or a view is made."""
    return ()
