"""Layer and root-mean-square normalization over the last dimension."""

from __future__ import annotations

from collections.abc import Sequence

from roller.expr import Call, Scalar, Stage, Tensor, TensorExpr
from roller.ops.operator_argument_checks import check_finite_number, check_shape, compose_epilogue, resolve_dtypes
from roller.ops.registry import register_operator
from roller.ops.tensor_rows import TensorRows, axes_of_dimensions


@register_operator("LayerNormalization")
def layer_norm(
    shape: Sequence[int] | int,
    eps: float = 1e-5,
    *,
    dtype: str = "float32",
    acc_dtype: str | None = None,
    out_dtype: str | None = None,
    epilogue: Sequence[str] | str = (),
) -> TensorExpr:
    """Return ``(x - mean) / sqrt(var + eps) * gamma + beta`` over the last dimension.

    Parameters
    ----------
    shape
        Shape of ``X`` (elements); ``gamma`` and ``beta`` have its last extent.
    eps
        Constant added to the (population) variance.
    dtype, acc_dtype, out_dtype, epilogue
        See :func:`roller.ops.matmul`.

    Returns
    -------
    TensorExpr
        Stages ``X_sum`` and ``X_var`` (reductions over ``k``; the variance takes a second pass, over centred values, to
        avoid cancellation) and ``Y``; inputs ``X``, ``gamma``, ``beta``.

    Raises
    ------
    ExprError
        If the shape is empty, ``eps`` is negative or the dtype is an integer.

    Examples
    --------
    >>> import roller
    >>> [t.name for t in roller.ops.layer_norm((8, 64), 1e-5).inputs]
    ['X', 'gamma', 'beta']
    """
    rows = _check_and_make_rows("layer_norm", shape, eps, dtype, acc_dtype, out_dtype)
    x, t, last = rows.x, rows.t, rows.point[-1:]
    stages, value, _, _ = standardise_rows(rows, eps)
    value = Call("add", (Call("mul", (value, t.load("gamma", last))), t.load("beta", last)))
    inputs = (x, Tensor("gamma", x.shape[-1:], dtype), Tensor("beta", x.shape[-1:], dtype))
    stages = (*stages, rows.pointwise(Tensor("Y", x.shape, t.out), value))
    return compose_epilogue("layer_norm", inputs, stages, t, epilogue=epilogue)


@register_operator("RMSNormalization", "SimplifiedLayerNormalization")
def rms_norm(
    shape: Sequence[int] | int,
    eps: float = 1e-6,
    *,
    dtype: str = "float32",
    acc_dtype: str | None = None,
    out_dtype: str | None = None,
    epilogue: Sequence[str] | str = (),
) -> TensorExpr:
    """Return ``x / sqrt(mean(x * x) + eps) * gamma`` over the last dimension.

    Parameters
    ----------
    shape
        Shape of ``X`` (elements); ``gamma`` has its last extent.
    eps
        Constant added to the mean square.
    dtype, acc_dtype, out_dtype, epilogue
        See :func:`roller.ops.matmul`.

    Returns
    -------
    TensorExpr
        Stages ``X_square`` (reduction over ``k``) and ``Y``; inputs ``X``, ``gamma``.

    Raises
    ------
    ExprError
        If the shape is empty, ``eps`` is negative or the dtype is an integer.

    Examples
    --------
    >>> import roller
    >>> [s.name for s in roller.ops.rms_norm((8, 64), 1e-6).stages]
    ['X_square', 'Y']
    """
    rows = _check_and_make_rows("rms_norm", shape, eps, dtype, acc_dtype, out_dtype)
    x, t = rows.x, rows.t
    squares, value = root_mean_square_normalise(rows, eps)
    value = Call("mul", (value, t.load("gamma", rows.point[-1:])))
    stages = (squares, rows.pointwise(Tensor("Y", x.shape, t.out), value))
    return compose_epilogue("rms_norm", (x, Tensor("gamma", x.shape[-1:], dtype)), stages, t, epilogue=epilogue)


def _check_and_make_rows(
    where: str, shape: Sequence[int] | int, eps: float, dtype: str, acc_dtype: str | None, out_dtype: str | None
) -> TensorRows:
    dims = check_shape(where, shape)
    t = resolve_dtypes(where, dtype, acc_dtype, out_dtype)
    t.require_float(where)
    check_finite_number(where, "eps", eps)
    return TensorRows(Tensor("X", dims, dtype), axes_of_dimensions(dims, (len(dims) - 1,), "k"), t, "X_")


def mean_and_variance_stages(rows: TensorRows) -> tuple[tuple[Stage, Stage], Scalar, Scalar]:
    """Return the stages for the mean and the (population) variance of each row, and both values at a point."""
    # Two passes: summing the squares of centred values avoids cancellation.
    share = rows.t.const(1 / rows.count)
    total = rows.reduction("sum", rows.element)
    mean = Call("mul", (rows.of(total), share))
    centred = Call("sub", (rows.element, mean))
    spread = rows.reduction("var", Call("mul", (centred, centred)))
    return (total, spread), mean, Call("mul", (rows.of(spread), share))


def standardise_rows(rows: TensorRows, epsilon: float) -> tuple[tuple[Stage, ...], Scalar, Scalar, Scalar]:
    """Return the stages, ``(x - mean) / sqrt(var + epsilon)`` at a point, and the mean and scale factor of a row."""
    stages, mean, variance = mean_and_variance_stages(rows)
    factor = Call("rsqrt", (Call("add", (variance, rows.t.const(epsilon))),))
    return stages, Call("mul", (Call("sub", (rows.here, mean)), factor)), mean, factor


def root_mean_square_normalise(rows: TensorRows, epsilon: float) -> tuple[Stage, Scalar]:
    """Return the stage that sums the squares of each row, and ``x / sqrt(mean(x * x) + epsilon)`` at a point."""
    squares = rows.reduction("square", Call("mul", (rows.element, rows.element)))
    mean = Call("mul", (rows.of(squares), rows.t.const(1 / rows.count)))
    factor = Call("rsqrt", (Call("add", (mean, rows.t.const(epsilon))),))
    return squares, Call("mul", (rows.here, factor))
