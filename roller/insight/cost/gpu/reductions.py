"""Launches of reductions over some dimensions of a tensor, and of losses."""

from __future__ import annotations

import math
from collections.abc import Callable

from roller import ops
from roller.insight.cost.gpu.operator_view import OperatorView, distinct_bytes, element_count, itemsize, total_bytes
from roller.insight.cost.kernel_launch_types import Kernel, Launch, MemoryKernel
from roller_runtime.core.dtypes import DTYPE_BYTES


def reduction_launches_rule(kind: str) -> Callable[[OperatorView], tuple[Launch, ...]]:
    """Return the mapping for a reduction of the named kind."""
    # A reduction over contiguous rows is an expression. Other reductions also read their input once: libraries give
    # each thread its own columns, and split long columns, or the few rows of a large tensor, among blocks.

    def map_operator(view: OperatorView) -> tuple[Launch, ...]:
        x = view.inputs[0]
        given = view.argument("dim", ())
        dims = {d % max(1, len(x.shape)) for d in ((given,) if isinstance(given, int) else given)}
        dims = dims or set(range(len(x.shape)))
        length = math.prod(n for d, n in enumerate(x.shape) if d in dims)
        rows = element_count(x) // max(1, length)
        inner = {len(x.shape) - 1 - n for n in range(len(dims))}
        plain = x.dtype in _SUMMED and [t.dtype for t in view.outputs] == [x.dtype]
        if plain and dims == inner and rows >= _FEW_ROWS and distinct_bytes(x) == element_count(x) * itemsize(x.dtype):
            return (Kernel(ops.reduce(kind, (rows, length), (1,), dtype=x.dtype)),)
        return (MemoryKernel(total_bytes((x,)), total_bytes(view.outputs), 1 if rows >= _FEW_ROWS else 2),)

    return map_operator


#: Minimum number of rows for which each block reduces one row; fewer would leave a GPU idle, so libraries split them.
_FEW_ROWS = 1024
_SUMMED = frozenset(DTYPE_BYTES) & {"float16", "bfloat16", "float32", "float64"}


def nll_loss_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernel for a negative log-likelihood, which reads the classes and one memory sector per row."""
    target = view.tensor("target", 1) or view.inputs[-1]
    found = min(element_count(target) * _SECTOR_BYTES, total_bytes(view.inputs[:1]))
    return (MemoryKernel(float(found + total_bytes((target,))), total_bytes(view.outputs)),)


def nll_loss_backward_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernels for the loss's gradient: one fills it with zeros, and one writes one element per row."""
    target, whole = view.tensor("target", 2) or view.inputs[-1], total_bytes(view.outputs)
    return (
        MemoryKernel(0.0, whole),
        MemoryKernel(float(total_bytes((target,))), float(min(element_count(target) * _SECTOR_BYTES, whole))),
    )


def elementwise_loss_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernels for an element-wise loss and for its mean or sum if requested."""
    given = total_bytes(view.inputs)
    if view.argument("reduction", 1) == 0:
        return (MemoryKernel(given, total_bytes(view.outputs)),)
    each = total_bytes(view.inputs[:1])
    return (MemoryKernel(given, each), MemoryKernel(each, total_bytes(view.outputs), 1 if each < _SMALL_BYTES else 2))


#: Size in bytes below which a single block computes the sum.
_SMALL_BYTES = 1 << 16


def bce_with_logits_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernels for binary cross entropy with logits, composed of element-wise operators."""
    # In order: the logarithm of the sigmoid, one minus the target, its product with the input, the difference, the
    # weights and the mean.
    x, target, out = total_bytes(view.inputs[:1]), total_bytes(view.inputs[1:2]), total_bytes(view.outputs)
    weights = total_bytes(view.inputs[2:])
    averages = view.argument("reduction", 1) != 0
    more = (len(view.inputs) - 2) * x
    found = MemoryKernel(x + target + 4.0 * x + weights + more, 4.0 * x + more, 4 + len(view.inputs) - 2)
    return (found, MemoryKernel(x, out)) if averages else (found,)


def logsumexp_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernels for ``aten.logsumexp``: maximum, difference, exponential, sum, and small kernels."""
    x = float(total_bytes(view.inputs))
    return (MemoryKernel(4 * x, 2 * x + total_bytes(view.outputs), _LOG_OF_SUMS_KERNELS),)


#: Number of kernels: four over all elements, and absolute value, comparison, fill, logarithm and sum over the results.
_LOG_OF_SUMS_KERNELS = 9


#: Size in bytes of a sector, the smallest transaction of memory.
_SECTOR_BYTES = 32
