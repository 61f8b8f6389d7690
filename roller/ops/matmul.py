"""Matrix multiplication, optionally batched and transposed."""

from __future__ import annotations

from collections.abc import Sequence

from roller.errors import ExprError
from roller.expr import Axis, Call, Index, Stage, Tensor, TensorExpr
from roller.ops.operator_argument_checks import (
    check_flag,
    compose_epilogue,
    extent,
    identity_indices,
    make_reduction_axes,
    make_spatial_axes,
    resolve_dtypes,
)
from roller.ops.registry import register_operator
from roller.ops.tensor_rows import broadcast_index


@register_operator("MatMul", "Gemm")
def matmul(
    m: int,
    n: int,
    k: int,
    batch: int | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    *,
    dtype: str = "float32",
    acc_dtype: str | None = None,
    out_dtype: str | None = None,
    epilogue: Sequence[str] | str = (),
) -> TensorExpr:
    """Return ``C[b, i, j] = sum_k A[b, i, k] * B[b, k, j]``.

    Parameters
    ----------
    m, n, k
        Rows, columns and reduction length (elements).
    batch
        Extent of a leading batch axis ``b`` of all tensors; ``None`` for plain matrices.
    transpose_a, transpose_b
        Whether ``A`` is stored as ``(k, m)``, and whether ``B`` is stored as ``(n, k)``.
    dtype, acc_dtype, out_dtype
        Storage, accumulator and output dtypes; by default, int8 inputs give int32 outputs.
    epilogue
        Element-wise functions applied to the sum; ``"bias"`` adds a vector over ``j``.

    Returns
    -------
    TensorExpr
        Axes ``(b) i j k``; inputs ``A``, ``B``, then the epilogue's operands; output ``C``.

    Raises
    ------
    ExprError
        If an extent is not a positive integer, or a dtype or a function of the epilogue is unknown.

    Examples
    --------
    >>> import roller
    >>> str(roller.ops.matmul(128, 64, 32, epilogue=("bias", "relu")))
    'matmul[i=128 j=64 k=32] float32, epilogue relu(C_acc + bias)'
    """
    m, n, k = extent("matmul", "m", m), extent("matmul", "n", n), extent("matmul", "k", k)
    transpose_a, transpose_b = (
        check_flag("matmul", "transpose_a", transpose_a),
        check_flag("matmul", "transpose_b", transpose_b),
    )
    t = resolve_dtypes("matmul", dtype, acc_dtype, out_dtype, widens=True)
    b: tuple[Axis, ...] = () if batch is None else make_spatial_axes(("b", extent("matmul", "batch", batch)))
    lead = () if batch is None else (b[0].extent,)
    left, right = ((k, m) if transpose_a else (m, k)), ((n, k) if transpose_b else (k, n))
    inputs = Tensor("A", (*lead, *left), dtype), Tensor("B", (*lead, *right), dtype)
    axes, at_a, at_b = matrix_product(inputs[0].shape, inputs[1].shape, b, transpose_a, transpose_b)
    body = Call("mul", (t.load("A", at_a), t.load("B", at_b)))
    out = Tensor("C", tuple(a.extent for a in axes[:-1]), t.out)
    return compose_epilogue(
        "matmul", inputs, (Stage(out, axes, identity_indices(axes[:-1]), body, "sum", t.acc),), t, epilogue=epilogue
    )


def matrix_product(
    a: Sequence[int], b: Sequence[int], batch: Sequence[Axis], transpose_a: bool = False, transpose_b: bool = False
) -> tuple[tuple[Axis, ...], tuple[Index, ...], tuple[Index, ...]]:
    """Return the axes ``<batch> i j k`` of a matrix product and the indices of both operands."""
    if not a or not b:
        raise ExprError("matmul: expected operands of at least one dimension, got a scalar. Multiply instead.")
    (*rows, depth) = a[:-3:-1] if transpose_a else a[-2:]
    (other, *columns) = b[:-3:-1] if transpose_b else b[-2:]
    if depth != other:
        raise ExprError(f"matmul: expected equal inner extents, got shapes {tuple(a)} and {tuple(b)}, which do not "
                        "multiply. Transpose one, or change a shape.")  # fmt: skip
    i, j, k = (
        make_spatial_axes(*(("i", e) for e in rows)),
        make_spatial_axes(*(("j", e) for e in columns)),
        make_reduction_axes(("k", depth)),
    )

    def operand(shape: Sequence[int], inner: tuple[Axis, ...], transposed: bool) -> tuple[Index, ...]:
        lead = broadcast_index(shape[:-2], identity_indices(batch), [x.extent for x in batch])
        return (*lead, *identity_indices(inner[::-1] if transposed else inner))

    return (*batch, *i, *j, *k), operand(a, (*i, *k), transpose_a), operand(b, (*k, *j), transpose_b)
