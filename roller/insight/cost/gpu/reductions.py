"""Reductions over some dimensions of a tensor, losses, and norms of whole tensors."""

from __future__ import annotations

import math
from collections.abc import Callable

from roller import ops
from roller.core.dtypes import DTYPE_BYTES
from roller.insight.cost.gpu.operator_view import View, distinct_bytes, elements, itemsize, total_bytes
from roller.insight.cost.launches import Kernel, Launch, Stream


def reduced(kind: str) -> Callable[[View], tuple[Launch, ...]]:
    """Return the mapping of a reduction of the named kind.

    Rows that lie in one piece are an expression. Other dimensions are read once, all the same: libraries give each
    thread columns of its own, and split long ones among blocks; so they split the few rows of a large tensor.
    """

    def mapped(view: View) -> tuple[Launch, ...]:
        x = view.inputs[0]
        given = view.arg("dim", ())
        dims = {d % max(1, len(x.shape)) for d in ((given,) if isinstance(given, int) else given)}
        dims = dims or set(range(len(x.shape)))
        length = math.prod(n for d, n in enumerate(x.shape) if d in dims)
        rows = elements(x) // max(1, length)
        inner = {len(x.shape) - 1 - n for n in range(len(dims))}
        plain = x.dtype in _SUMMED and [t.dtype for t in view.outputs] == [x.dtype]
        if plain and dims == inner and rows >= _FEW_ROWS and distinct_bytes(x) == elements(x) * itemsize(x.dtype):
            return (Kernel(ops.reduce(kind, (rows, length), (1,), dtype=x.dtype)),)
        return (Stream(total_bytes((x,)), total_bytes(view.outputs), 1 if rows >= _FEW_ROWS else 2),)

    return mapped


#: Rows from which on each is a block's own; fewer leave a GPU idle, and libraries split them.
_FEW_ROWS = 1024
_SUMMED = frozenset(DTYPE_BYTES) & {"float16", "bfloat16", "float32", "float64"}


def loss(view: View) -> tuple[Launch, ...]:
    """Return the kernel of a loss that takes one element of each row: a sector of memory each, and the classes."""
    target = view.tensor("target", 1) or view.inputs[-1]
    found = min(elements(target) * _SECTOR_BYTES, total_bytes(view.inputs[:1]))
    return (Stream(float(found + total_bytes((target,))), total_bytes(view.outputs)),)


def loss_backward(view: View) -> tuple[Launch, ...]:
    """Return the kernels of its gradient: zeros, and one element of each row."""
    target, whole = view.tensor("target", 2) or view.inputs[-1], total_bytes(view.outputs)
    return (
        Stream(0.0, whole),
        Stream(float(total_bytes((target,))), float(min(elements(target) * _SECTOR_BYTES, whole))),
    )


def averaged_loss(view: View) -> tuple[Launch, ...]:
    """Return the kernels of a loss of every element, which is written whole where its mean or sum is asked for."""
    given = total_bytes(view.inputs)
    if view.arg("reduction", 1) == 0:
        return (Stream(given, total_bytes(view.outputs)),)
    each = total_bytes(view.inputs[:1])
    return (Stream(given, each), Stream(each, total_bytes(view.outputs), 1 if each < _SMALL_BYTES else 2))


#: Bytes below which one block sums all.
_SMALL_BYTES = 1 << 16


def logits_loss(view: View) -> tuple[Launch, ...]:
    """Return the kernels of the binary cross entropy of logits: it is put together of element-wise operators.

    The logarithm of the sigmoid; one minus the target; that by the input; the difference; then weights and the mean.
    """
    x, target, out = total_bytes(view.inputs[:1]), total_bytes(view.inputs[1:2]), total_bytes(view.outputs)
    weights = total_bytes(view.inputs[2:])
    averages = view.arg("reduction", 1) != 0
    more = (len(view.inputs) - 2) * x
    found = Stream(x + target + 4.0 * x + weights + more, 4.0 * x + more, 4 + len(view.inputs) - 2)
    return (found, Stream(x, out)) if averages else (found,)


def log_of_sums(view: View) -> tuple[Launch, ...]:
    """Return the kernels of a logarithm of summed exponentials: greatest, difference, exponential, sum, small ones."""
    x = float(total_bytes(view.inputs))
    return (Stream(4 * x, 2 * x + total_bytes(view.outputs), _LOG_OF_SUMS_KERNELS),)


#: Four over all elements; absolute value, comparison, fill, logarithm and sum over the results.
_LOG_OF_SUMS_KERNELS = 9


#: Bytes that memory brings at least.
_SECTOR_BYTES = 32
