"""Matrix multiplication, optionally batched and transposed."""

from __future__ import annotations

from collections.abc import Sequence

from roller.expr import Axis, Call, Stage, Tensor, TensorExpr
from roller.ops.build import extent, finish, flag, indices, reduction, spatial, types
from roller.ops.registry import operator


@operator("MatMul", "Gemm")
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
        Whether ``A`` is stored ``(k, m)`` and ``B`` is stored ``(n, k)``.
    dtype, acc_dtype, out_dtype
        Storage, accumulator and output dtype; int8 stores its int32 sums unless told otherwise.
    epilogue
        Element-wise steps after the sum; ``"bias"`` adds a vector over ``j``.

    Returns
    -------
    TensorExpr
        Axes ``(b) i j k``; inputs ``A``, ``B``, then the epilogue's operands; output ``C``.

    Raises
    ------
    ExprError
        Where an extent is not a positive integer.

    Examples
    --------
    >>> import roller
    >>> str(roller.ops.matmul(128, 64, 32, epilogue=("bias", "relu")))
    'matmul[i=128 j=64 k=32] float32, epilogue relu(C_acc + bias)'
    """
    m, n, k = extent("matmul", "m", m), extent("matmul", "n", n), extent("matmul", "k", k)
    transpose_a, transpose_b = flag("matmul", "transpose_a", transpose_a), flag("matmul", "transpose_b", transpose_b)
    t = types("matmul", dtype, acc_dtype, out_dtype, widens=True)
    b: tuple[Axis, ...] = () if batch is None else spatial(("b", extent("matmul", "batch", batch)))
    (i, j), (r,) = spatial(("i", m), ("j", n)), reduction(("k", k))

    def operand(name: str, axes: tuple[Axis, Axis], transposed: bool) -> tuple[Tensor, tuple[Axis, ...]]:
        order = (*b, *(reversed(axes) if transposed else axes))
        return Tensor(name, tuple(a.extent for a in order), dtype), order

    left, left_axes = operand("A", (i, r), transpose_a)
    right, right_axes = operand("B", (r, j), transpose_b)
    body = Call("mul", (t.load("A", indices(left_axes)), t.load("B", indices(right_axes))))
    out = (*b, i, j)
    stage = Stage(Tensor("C", tuple(a.extent for a in out), t.out), (*out, r), indices(out), body, "sum", t.acc)
    return finish("matmul", (left, right), (stage,), t, epilogue=epilogue)
