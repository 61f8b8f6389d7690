"""Operators that move whole tensors or gather parts of them: concatenation, indexing, embeddings and sorts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from roller.insight.cost.gpu.operator_view import OperatorView, distinct_bytes, element_count, itemsize, total_bytes
from roller.insight.cost.kernel_launch_types import HostWait, Launch, MemoryKernel
from roller.insight.trace.convolution_layout import is_channels_last
from roller.insight.trace.trace import TensorRecord

#: Number of key bits that one pass of a radix sort orders, and number of kernels per pass.
_RADIX_BITS, _KERNELS_PER_PASS = 8, 2
#: Number of key bits when the indices of an embedding are sorted.
_ROW_BITS = 32
#: Maximum number of rows for which an embedding's gradient is added without a sort (PyTorch's ``Embedding.cu``).
_MOST_UNSORTED = 3072
#: Maximum number of tensors that one PyTorch kernel concatenates (``CAT_ARRAY_BATCH_SIZE``).
_JOINED_TOGETHER = 128


def concatenation_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernels that concatenate tensors."""
    moved = total_bytes(view.outputs)
    return (MemoryKernel(moved, moved, math.ceil(len(view.inputs) / _JOINED_TOGETHER)),)


def stream_all_launches_rule(
    reads: float = 1.0, writes: float = 1.0, launches: int = 1
) -> Callable[[OperatorView], tuple[Launch, ...]]:
    """Return the mapping that reads all inputs ``reads`` times and writes all outputs ``writes`` times."""

    def map_operator(view: OperatorView) -> tuple[Launch, ...]:
        return (MemoryKernel(reads * total_bytes(view.inputs), writes * total_bytes(view.outputs), launches),)

    return map_operator


def interpolation_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernel for an interpolation, with one thread per spatial point or per element."""
    # A thread loops over all samples and channels (``UpSampleBilinear2d.cu`` and similar files in ATen/native/cuda).
    # Two-dimensional linear interpolation with channels innermost has a different kernel, with one thread per element.
    x, out = view.inputs[0], view.out
    walks = not is_channels_last(x) or "bicubic" in view.packet
    return (MemoryKernel(total_bytes((x,)), total_bytes((out,)), threads=math.prod(out.shape[2:]) if walks else None),)


def stream_named_inputs_launches_rule(*names: str) -> Callable[[OperatorView], tuple[Launch, ...]]:
    """Return the mapping for a gradient that reads the named tensors but only the shapes of the others."""

    def map_operator(view: OperatorView) -> tuple[Launch, ...]:
        read = [view.tensor(name) for name in names]
        return (MemoryKernel(total_bytes(read), total_bytes(view.outputs)),)

    return map_operator


def generated_kernel_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return a compiler-generated kernel, which reads each input once and the overlap of views only once."""
    return (MemoryKernel(float(merged_span_bytes(view.inputs)), float(total_bytes(view.outputs))),)


def merged_span_bytes(tensors: Iterable[TensorRecord]) -> int:
    """Return the total size of tensors in bytes; each storage counts at most the range that its views span."""
    found: dict[int, list[TensorRecord]] = {}
    for t in dict.fromkeys(tensors):
        found.setdefault(t.storage, []).append(t)
    whole = 0
    for views in found.values():
        ends = [t.offset + 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride, strict=False)) for t in views]
        span = (max(ends) - min(t.offset for t in views)) * max(itemsize(t.dtype) for t in views)
        whole += min(span, sum(distinct_bytes(t) for t in views))
    return whole


def slice_backward_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernels for a slice's gradient: one fills the tensor with zeros, and one copies the slice into it."""
    part = total_bytes(view.inputs[:1])
    return (MemoryKernel(0.0, total_bytes((view.out,))), MemoryKernel(part, part))


def gather_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernel for a gather, which reads the indices and only the gathered elements of the table."""
    indices = sum(total_bytes((t,)) for t in view.inputs[1:] if t.dtype in ("int64", "int32", "bool"))
    moved = total_bytes(view.outputs)
    return (MemoryKernel(moved + indices, moved),)


def embedding_backward_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernels that zero an embedding's gradient, sort the indices, and sum rows of equal index."""
    # A small number of rows is not sorted; each is added by the block that owns the table's row.
    gradient, indices = view.required_tensor("grad_output", 0), view.required_tensor("indices", 1)
    whole, rows = total_bytes((view.out,)), element_count(indices) * view.out.shape[-1] * itemsize(gradient.dtype)
    summed = min(rows, whole)
    zeros = MemoryKernel(0.0, whole)
    if element_count(indices) <= _MOST_UNSORTED and not view.argument("scale_grad_by_freq", False):
        return (zeros, MemoryKernel(total_bytes((gradient, indices)) + summed, summed))
    return (zeros, row_sort_launch(indices), MemoryKernel(total_bytes((gradient,)), summed))


def row_sort_launch(indices: TensorRecord) -> MemoryKernel:
    """Return the kernels that sort the indices of table rows, so that equal indices become adjacent."""
    passes = _ROW_BITS // _RADIX_BITS
    moved = passes * element_count(indices) * (itemsize(indices.dtype) + 8.0)
    return MemoryKernel(moved, moved, _KERNELS_PER_PASS * passes)


def sort_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernels for a radix sort of keys and their positions."""
    keys = view.inputs[0]
    passes = max(1, 8 * itemsize(keys.dtype) // _RADIX_BITS)
    moved = passes * element_count(keys) * (itemsize(keys.dtype) + 8)
    return (MemoryKernel(moved, moved, _KERNELS_PER_PASS * passes),)


def host_read_wait_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the wait for an operator whose result the host reads."""
    return (HostWait(total_bytes(view.inputs)),)


def dynamic_size_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the launches for an operator with a data-dependent output size, which the host reads."""
    return (MemoryKernel(2 * total_bytes(view.inputs), total_bytes(view.outputs), 3), HostWait(8.0))


def masked_select_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the launches for a masked selection: true elements are counted, listed and gathered."""
    mask, found = view.inputs[-1], view.out
    places = 8.0 * element_count(found) * len(mask.shape)
    count = MemoryKernel(2.0 * total_bytes((mask,)), places, 3)
    return (count, HostWait(8.0), MemoryKernel(places + total_bytes((found,)), total_bytes((found,))))


def unique_values_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the launches that find unique values: a sort, then a count and a list of the runs of equal values."""
    return (*sort_launches(view), *dynamic_size_launches(view))


def no_launch(view: OperatorView) -> tuple[Launch, ...]:
    """Return no launches: the operator only allocates or returns a view."""
    return ()
