"""Numerically stable softmax along one dimension."""

from __future__ import annotations

from collections.abc import Sequence

from roller.errors import ExprError, shown
from roller.expr import Call, Stage, Tensor, TensorExpr
from roller.ops.operator_argument_checks import check_shape, compose_epilogue, resolve_dtypes
from roller.ops.reduce import normalize_axes
from roller.ops.registry import register_operator
from roller.ops.tensor_rows import TensorRows, axes_of_dimensions


@register_operator("Softmax")
def softmax(
    shape: Sequence[int] | int,
    axis: int = -1,
    *,
    dtype: str = "float32",
    acc_dtype: str | None = None,
    out_dtype: str | None = None,
    epilogue: Sequence[str] | str = (),
) -> TensorExpr:
    """Return ``exp(x - max(x)) / sum(exp(x - max(x)))`` along ``axis``.

    Parameters
    ----------
    shape
        Shape of ``X`` (elements).
    axis
        The dimension along which the results sum to one; negative values count from the end.
    dtype, acc_dtype, out_dtype, epilogue
        See :func:`roller.ops.matmul`.

    Returns
    -------
    TensorExpr
        Stages ``X_max``, ``X_sum`` (reductions over ``k``) and ``Y`` (element-wise); the exponential is
        recomputed rather than stored, so that a row needs no scratch tensor.

    Raises
    ------
    ExprError
        If the axis is out of range or the dtype is an integer.

    Examples
    --------
    >>> import roller
    >>> [s.name for s in roller.ops.softmax((8, 100)).stages]
    ['X_max', 'X_sum', 'Y']
    """
    where = "softmax"
    dims = check_shape(where, shape)
    if axis is None or isinstance(axis, (tuple, list)):
        raise ExprError(f"{where}: argument 'axis': expected one dimension, got {shown(axis)}. Reshape the tensor so "
                        "that they are one.")  # fmt: skip
    (along,) = normalize_axes(where, axis, len(dims), "axis")
    t = resolve_dtypes(where, dtype, acc_dtype, out_dtype)
    t.require_float(where)
    x = Tensor("X", dims, dtype)
    rows = TensorRows(x, axes_of_dimensions(dims, (along,), "k"), t, "X_")
    return compose_epilogue(where, (x,), softmax_stages(rows, Tensor("Y", dims, t.out)), t, epilogue=epilogue)


def softmax_stages(rows: TensorRows, y: Tensor, *, logarithm: bool = False) -> tuple[Stage, ...]:
    """Return the stages for the maximum, the sum of exponentials, and the softmax ``y`` or its logarithm."""
    # The exponential is recomputed rather than stored, so that a row needs no scratch tensor.
    largest = rows.reduction("max", rows.element, "max")
    shift = rows.of(largest)
    total = rows.reduction("sum", Call("exp", (Call("sub", (rows.element, shift)),)))
    centred = Call("sub", (rows.here, shift))
    value = Call("div", (Call("exp", (centred,)), rows.of(total)))
    if logarithm:
        value = Call("sub", (centred, Call("log", (rows.of(total),))))
    return largest, total, rows.pointwise(y, value)
