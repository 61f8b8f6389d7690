"""Operators over lists of tensors: what grouped and fused optimizers run."""

from __future__ import annotations

import math
from collections.abc import Callable

from roller.insight.cost.gpu.operator_view import View, elements, total_bytes
from roller.insight.cost.launches import Launch, Stream

#: Elements of a block's chunk, blocks of a kernel at most, and tensors of a kernel by lists it walks
#: (PyTorch's ``MultiTensorApply.cuh``).
CHUNK_ELEMENTS, BLOCKS_PER_KERNEL = 65536, 320
TENSORS_PER_KERNEL = (110, 64, 48, 36, 30)


def kernels_of(sizes: tuple[int, ...], lists: int) -> int:
    """Return how many kernels walk ``lists`` lists of tensors of ``sizes`` elements: each has room for so many.

    Examples
    --------
    >>> kernels_of((10,) * 111, 1), kernels_of((65536 * 640,), 1)
    (2, 2)
    """
    most = TENSORS_PER_KERNEL[min(lists, len(TENSORS_PER_KERNEL)) - 1]
    chunks = sum(math.ceil(n / CHUNK_ELEMENTS) for n in sizes)
    return max(1, math.ceil(len(sizes) / most), math.ceil(chunks / BLOCKS_PER_KERNEL))


def grouped(more: int = 0) -> Callable[[View], tuple[Launch, ...]]:
    """Return the mapping of an operator over lists: every element of every list is read, every result written.

    Parameters
    ----------
    more
        Kernels behind: those that join the blocks' parts of a norm.
    """

    def mapped(view: View) -> tuple[Launch, ...]:
        first = view.tensors("self") or view.inputs
        sizes = tuple(elements(t) for t in first)
        lists = max(1, round(len(view.inputs) / max(1, len(first)))) + (not view.in_place)
        written = total_bytes(view.outputs or first)
        return (Stream(total_bytes(view.inputs), written, kernels_of(sizes, lists) + more),)

    return mapped


def grouped_fill(view: View) -> tuple[Launch, ...]:
    """Return the kernels that write lists and read none: zeros."""
    sizes = tuple(elements(t) for t in view.inputs)
    return (Stream(0.0, total_bytes(view.inputs), kernels_of(sizes, 1)),)


def grouped_copy(view: View) -> tuple[Launch, ...]:
    """Return the kernels that copy one list to another."""
    source = view.tensors("src") or view.inputs[len(view.inputs) // 2 :]
    sizes = tuple(elements(t) for t in source)
    return (Stream(total_bytes(source), total_bytes(view.outputs or source), kernels_of(sizes, 2)),)


def fused(view: View) -> tuple[Launch, ...]:
    """Return the kernels of a whole optimizer: it reads all lists, and writes all but the gradients.

    Where the gradients are to be unscaled, they are written too.
    """
    first = view.tensors("self") or view.inputs
    sizes = tuple(elements(t) for t in first)
    counts, scale = view.tensors("state_steps"), view.tensor("grad_scale")
    kept = (*counts, scale, view.tensor("found_inf"), *(() if scale else view.tensors("grads")))
    every = total_bytes(view.inputs)
    lists = max(1, round((len(view.inputs) - len(counts)) / max(1, len(first))))
    return (Stream(every, float(every - total_bytes(kept)), kernels_of(sizes, lists)),)
