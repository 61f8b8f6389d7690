"""Products of matrices, alone, in batches and with a bias."""

from __future__ import annotations

import math
from collections.abc import Callable

from roller import ops
from roller.expr import TensorExpr
from roller.insight.cost.gpu.operator_view import View, total_bytes
from roller.insight.cost.gpu.pointwise import elementwise
from roller.insight.cost.launches import Kernel, Launch, Stream
from roller.insight.trace.trace import TensorRecord


def transposed(tensor: TensorRecord) -> bool:
    """Return whether a matrix is stored column by column."""
    rows, columns = tensor.stride[-2:]
    return columns != 1 and rows == 1 and min(tensor.shape[-2:]) > 1


def product(left: TensorRecord, right: TensorRecord, bias: bool = False) -> TensorExpr:
    """Return the product of two matrices, or of batches of them, as they lie in memory."""
    m, k = left.shape[-2:]
    n = right.shape[-1]
    batch = math.prod(left.shape[:-2]) if len(left.shape) > 2 else None
    return ops.matmul(
        m, n, k, None if batch == 1 else batch, transposed(left), transposed(right), dtype=left.dtype,
        epilogue=("bias",) if bias else (),
    )  # fmt: skip


def plain(first: str, second: str) -> Callable[[View], tuple[Launch, ...]]:
    """Return the mapping of a product of the operands of these names."""

    def mapped(view: View) -> tuple[Launch, ...]:
        return (Kernel(product(view.need(first, 0), view.need(second, 1))),)

    return mapped


def with_addend(first: str, second: str) -> Callable[[View], tuple[Launch, ...]]:
    """Return the mapping of ``self + first @ second``.

    A vector is added behind the sums, as cuBLASLt does; anything else is copied to the result before, which the
    product then reads and adds to.
    """

    def mapped(view: View) -> tuple[Launch, ...]:
        addend, left, right = view.need("self", 0), view.need(first, 1), view.need(second, 2)
        if view.arg("beta", 1) == 0:
            return (Kernel(product(left, right)),)
        if len(addend.shape) == 1 and len(left.shape) == 2 and addend.shape[0] == right.shape[-1]:
            return (Kernel(product(left, right, bias=True)),)
        copy = () if view.in_place else elementwise((), view.out, (addend,))
        return (*copy, Kernel(product(left, right)), *_added(view.out))

    return mapped


def _added(out: TensorRecord) -> tuple[Launch, ...]:
    """Return the bytes that a product reads of the result it adds to."""
    return (Stream(float(total_bytes((out,))), 0.0, 0),)


def matrix_vector(view: View) -> tuple[Launch, ...]:
    """Return the product of a matrix and a vector."""
    (m, k), dtype = view.inputs[-2].shape[-2:], view.inputs[-1].dtype
    return (Kernel(ops.matmul(m, 1, k, dtype=dtype)),)


def matrix_vector_added(view: View) -> tuple[Launch, ...]:
    """Return the product of a matrix and a vector, added to a copy of a third."""
    matrix, out = view.need("mat", 1), view.out
    copy = () if view.in_place else elementwise((), out, (view.need("self", 0),))
    return (*copy, Kernel(ops.matmul(matrix.shape[0], 1, matrix.shape[1], dtype=matrix.dtype)), *_added(out))


def dot(view: View) -> tuple[Launch, ...]:
    """Return the inner product of two vectors."""
    return (Kernel(ops.matmul(1, 1, math.prod(view.inputs[0].shape), dtype=view.inputs[0].dtype)),)
