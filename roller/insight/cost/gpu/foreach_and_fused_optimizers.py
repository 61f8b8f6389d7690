"""Operators over lists of tensors: ``_foreach`` operators and fused optimizers."""

from __future__ import annotations

import math
from collections.abc import Callable

from roller.insight.cost.gpu.operator_view import OperatorView, element_count, total_bytes
from roller.insight.cost.kernel_launch_types import Launch, MemoryKernel

#: Number of elements in a block's chunk, maximum number of blocks in a kernel, and maximum number of tensors in a
#: kernel by its number of lists (PyTorch's ``MultiTensorApply.cuh``).
CHUNK_ELEMENTS, BLOCKS_PER_KERNEL = 65536, 320
TENSORS_PER_KERNEL = (110, 64, 48, 36, 30)


def foreach_kernel_count(sizes: tuple[int, ...], lists: int) -> int:
    """Return the number of kernels that process ``lists`` lists of tensors with ``sizes`` elements.

    Examples
    --------
    >>> foreach_kernel_count((10,) * 111, 1), foreach_kernel_count((65536 * 640,), 1)
    (2, 2)
    """
    most = TENSORS_PER_KERNEL[min(lists, len(TENSORS_PER_KERNEL)) - 1]
    chunks = sum(math.ceil(n / CHUNK_ELEMENTS) for n in sizes)
    return max(1, math.ceil(len(sizes) / most), math.ceil(chunks / BLOCKS_PER_KERNEL))


def foreach_launches_rule(more: int = 0) -> Callable[[OperatorView], tuple[Launch, ...]]:
    """Return the mapping for a ``_foreach`` operator, which reads every list and writes every result."""
    # ``more`` counts further kernels, such as those that add the partial norms of blocks.

    def map_operator(view: OperatorView) -> tuple[Launch, ...]:
        first = view.tensors("self") or view.inputs
        sizes = tuple(element_count(t) for t in first)
        lists = max(1, round(len(view.inputs) / max(1, len(first)))) + (not view.in_place)
        written = total_bytes(view.outputs or first)
        return (MemoryKernel(total_bytes(view.inputs), written, foreach_kernel_count(sizes, lists) + more),)

    return map_operator


def foreach_fill_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernels that fill lists of tensors without reading any."""
    sizes = tuple(element_count(t) for t in view.inputs)
    return (MemoryKernel(0.0, total_bytes(view.inputs), foreach_kernel_count(sizes, 1)),)


def foreach_copy_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernels that copy one list to another."""
    source = view.tensors("src") or view.inputs[len(view.inputs) // 2 :]
    sizes = tuple(element_count(t) for t in source)
    return (MemoryKernel(total_bytes(source), total_bytes(view.outputs or source), foreach_kernel_count(sizes, 2)),)


def block_wise_optimizer_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernel that updates one parameter and its states; paged states move in both directions."""
    paged = float(view.argument("paged_bytes") or 0)
    written = total_bytes((*view.tensors("parameter"), *view.tensors("states")))
    return (MemoryKernel(total_bytes(view.inputs) + paged, written + paged),)


def fused_optimizer_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernels for a fused optimizer, which reads all lists and writes all but the gradients."""
    # If the optimizer unscales the gradients, it also writes them.
    first = view.tensors("self") or view.inputs
    sizes = tuple(element_count(t) for t in first)
    counts, scale = view.tensors("state_steps"), view.tensor("grad_scale")
    kept = (*counts, scale, view.tensor("found_inf"), *(() if scale else view.tensors("grads")))
    every = total_bytes(view.inputs)
    lists = max(1, round((len(view.inputs) - len(counts)) / max(1, len(first))))
    return (MemoryKernel(every, float(every - total_bytes(kept)), foreach_kernel_count(sizes, lists)),)
