"""Matrix products: single, batched, and with an addend."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from roller import ops
from roller.expr import TensorExpr
from roller.insight.cost.gpu.elementwise_launches import elementwise_launches
from roller.insight.cost.gpu.operator_view import OperatorView, itemsize, total_bytes
from roller.insight.cost.kernel_launch_types import FusedKernel, Kernel, Launch, MemoryKernel
from roller.insight.trace.trace import TensorRecord

#: Number of rows in a matrix unit's fragment for 16-bit operands (PTX ISA, ``mma.m16n8k16``).
_FRAGMENT_ROWS = 16


def is_column_major(tensor: TensorRecord) -> bool:
    """Return whether a matrix is stored column-major."""
    rows, columns = tensor.stride[-2:]
    return columns != 1 and rows == 1 and min(tensor.shape[-2:]) > 1


def matrix_product_expression(left: TensorRecord, right: TensorRecord, bias: bool = False) -> TensorExpr:
    """Return the expression for a product of two matrices or two batches of matrices, in their memory layouts."""
    m, k = left.shape[-2:]
    n = right.shape[-1]
    batch = math.prod(left.shape[:-2]) if len(left.shape) > 2 else None
    return ops.matmul(
        m, n, k, None if batch == 1 else batch, is_column_major(left), is_column_major(right), dtype=left.dtype,
        epilogue=("bias",) if bias else (),
    )  # fmt: skip


def _product_kernel(expr: TensorExpr) -> Kernel:
    return Kernel(expr, kind="product")


def matrix_product_launches_rule(first: str, second: str) -> Callable[[OperatorView], tuple[Launch, ...]]:
    """Return the mapping for a matrix product of two named operands."""

    def map_operator(view: OperatorView) -> tuple[Launch, ...]:
        left, right = view.required_tensor(first, 0), view.required_tensor(second, 1)
        if len(right.shape) == 3 and right.shape[0] > 1 and right.stride[0] == 0:
            return (_batch_times_one_matrix_kernel(left, right, view.out),)
        return (_product_kernel(matrix_product_expression(left, right)),)

    return map_operator


def _batch_times_one_matrix_kernel(left: TensorRecord, right: TensorRecord, out: TensorRecord) -> Launch:
    """Return the kernel for a batch times one expanded matrix: a linear layer on a tensor that no view flattens."""
    # The matrix stays in the shared cache; for 16-bit dtypes, each batch element is padded to whole fragments of a
    # matrix unit.
    batch, m, k = left.shape
    rows = -(-m // _FRAGMENT_ROWS) * _FRAGMENT_ROWS if itemsize(left.dtype) < 4 else m
    whole = replace(left, shape=(batch * rows, k), stride=left.stride[-2:])
    one = replace(right, shape=right.shape[1:], stride=right.stride[1:])
    product = matrix_product_expression(whole, one)
    return FusedKernel((product,), 0.0, total_bytes((left, right)), total_bytes((out,)), kind="product")


def product_plus_addend_launches_rule(first: str, second: str) -> Callable[[OperatorView], tuple[Launch, ...]]:
    """Return the mapping for ``self + first @ second``."""
    # cuBLASLt adds a vector in the epilogue; any other addend is first copied to the result, to which the product adds.

    def map_operator(view: OperatorView) -> tuple[Launch, ...]:
        addend, left, right = (
            view.required_tensor("self", 0),
            view.required_tensor(first, 1),
            view.required_tensor(second, 2),
        )
        if view.argument("beta", 1) == 0:
            return (_product_kernel(matrix_product_expression(left, right)),)
        if len(addend.shape) == 1 and len(left.shape) == 2 and addend.shape[0] == right.shape[-1]:
            return (_product_kernel(matrix_product_expression(left, right, bias=True)),)
        copy = () if view.in_place else elementwise_launches((), view.out, (addend,))
        return (*copy, _product_kernel(matrix_product_expression(left, right)), *_addend_result_read_launches(view.out))

    return map_operator


#: AMD's own 8-bit floats -> the standard 8-bit floats, which have a different exponent bias but the same rate.
_STANDARD = {"float8_e4m3fnuz": "float8_e4m3fn", "float8_e5m2fnuz": "float8_e5m2"}


def scaled_product_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return cuBLASLt's kernel for a scaled product of 8-bit floats with a result of a wider dtype."""
    # Its fragments have the first operand's dtype.
    left, right = (
        replace(t, dtype=_STANDARD.get(t.dtype, t.dtype))
        for t in (view.required_tensor("self", 0), view.required_tensor("mat2", 1))
    )
    expr = matrix_product_expression(left, right)
    named = sum(t.nbytes for t in expr.output_tensors)
    beside = total_bytes(t for t in view.inputs if t not in view.inputs[:2])  # scales and a bias
    return (_product_kernel(expr), MemoryKernel(float(beside), float(total_bytes((view.out,)) - named), 0))


def _addend_result_read_launches(out: TensorRecord) -> tuple[Launch, ...]:
    """Return the traffic for reading the result to which a product adds."""
    return (MemoryKernel(float(total_bytes((out,))), 0.0, 0),)


def matrix_vector_product_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernel for a matrix-vector product."""
    (m, k), dtype = view.inputs[-2].shape[-2:], view.inputs[-1].dtype
    return (_product_kernel(ops.matmul(m, 1, k, dtype=dtype)),)


def addmv_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernels for a matrix-vector product that is added to a copy of the addend."""
    matrix, out = view.required_tensor("mat", 1), view.out
    copy = () if view.in_place else elementwise_launches((), out, (view.required_tensor("self", 0),))
    return (
        *copy,
        _product_kernel(ops.matmul(matrix.shape[0], 1, matrix.shape[1], dtype=matrix.dtype)),
        *_addend_result_read_launches(out),
    )


def inner_product_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernel for an inner product of two vectors."""
    return (_product_kernel(ops.matmul(1, 1, math.prod(view.inputs[0].shape), dtype=view.inputs[0].dtype)),)
