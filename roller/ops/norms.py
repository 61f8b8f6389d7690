"""Layer and root-mean-square normalisation over the last dimension."""

from __future__ import annotations

from collections.abc import Sequence

from roller.expr import REDUCTION, SPATIAL, Axis, Call, Load, Scalar, Stage, Tensor, TensorExpr
from roller.ops.build import Types, dimensions, finish, indices, number, rows_of, types
from roller.ops.registry import operator


@operator("LayerNormalization")
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
        Added to the (population) variance.
    dtype, acc_dtype, out_dtype, epilogue
        As for :func:`roller.ops.matmul`.

    Returns
    -------
    TensorExpr
        Stages ``X_sum``, ``X_var`` (reductions over ``k``; two passes: the variance of centred values does
        not cancel) and ``Y``; inputs ``X``, ``gamma``, ``beta``.

    Raises
    ------
    ExprError
        Where the shape is empty, ``eps`` is negative or the dtype is an integer.

    Examples
    --------
    >>> import roller
    >>> [t.name for t in roller.ops.layer_norm((8, 64), 1e-5).inputs]
    ['X', 'gamma', 'beta']
    """
    dims, t, rows, every, k = _axes("layer_norm", shape, eps, dtype, acc_dtype, out_dtype)
    at, row_shape = indices(rows), tuple(a.extent for a in rows)
    scale = t.const(1.0 / k.extent)
    total, spread = Tensor("X_sum", row_shape, t.acc), Tensor("X_var", row_shape, t.acc)
    mean = Call("mul", (Load(total.name, at), scale))
    inside = t.load("X", (*at, *indices([k])))
    centred = Call("sub", (inside, mean))
    variance = Call("mul", (Load(spread.name, at), scale))
    factor = Call("rsqrt", (Call("add", (variance, t.const(eps))),))
    last = indices(every[-1:])
    value = Call("mul", (Call("sub", (t.load("X", indices(every)), mean)), factor))
    value = Call("add", (Call("mul", (value, t.load("gamma", last))), t.load("beta", last)))
    stages = (
        Stage(total, (*rows_of(rows), k), at, inside, "sum", t.acc),
        Stage(spread, (*rows_of(rows), k), at, Call("mul", (centred, centred)), "sum", t.acc),
        Stage(Tensor("Y", dims, t.out), every, indices(every), value, None, t.acc),
    )
    inputs = (Tensor("X", dims, dtype), Tensor("gamma", dims[-1:], dtype), Tensor("beta", dims[-1:], dtype))
    return finish("layer_norm", inputs, stages, t, epilogue=epilogue)


@operator("RMSNormalization", "SimplifiedLayerNormalization")
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
        Added to the mean square.
    dtype, acc_dtype, out_dtype, epilogue
        As for :func:`roller.ops.matmul`.

    Returns
    -------
    TensorExpr
        Stages ``X_square`` (reduction over ``k``) and ``Y``; inputs ``X``, ``gamma``.

    Raises
    ------
    ExprError
        Where the shape is empty, ``eps`` is negative or the dtype is an integer.

    Examples
    --------
    >>> import roller
    >>> [s.name for s in roller.ops.rms_norm((8, 64), 1e-6).stages]
    ['X_square', 'Y']
    """
    dims, t, rows, every, k = _axes("rms_norm", shape, eps, dtype, acc_dtype, out_dtype)
    at = indices(rows)
    squares = Tensor("X_square", tuple(a.extent for a in rows), t.acc)
    inside = t.load("X", (*at, *indices([k])))
    mean = Call("mul", (Load(squares.name, at), t.const(1.0 / k.extent)))
    factor: Scalar = Call("rsqrt", (Call("add", (mean, t.const(eps))),))
    value = Call("mul", (Call("mul", (t.load("X", indices(every)), factor)), t.load("gamma", indices(every[-1:]))))
    stages = (
        Stage(squares, (*rows_of(rows), k), at, Call("mul", (inside, inside)), "sum", t.acc),
        Stage(Tensor("Y", dims, t.out), every, indices(every), value, None, t.acc),
    )
    return finish("rms_norm", (Tensor("X", dims, dtype), Tensor("gamma", dims[-1:], dtype)), stages, t,
                  epilogue=epilogue)  # fmt: skip


def _axes(
    where: str, shape: Sequence[int] | int, eps: float, dtype: str, acc_dtype: str | None, out_dtype: str | None
) -> tuple[tuple[int, ...], Types, tuple[Axis, ...], tuple[Axis, ...], Axis]:
    """Shape, dtypes, row axes, all axes, and the reduction axis ``k`` over the last dimension."""
    dims = dimensions(where, shape)
    t = types(where, dtype, acc_dtype, out_dtype)
    t.require_float(where)
    number(where, "eps", eps)
    every = tuple(Axis(f"d{d}", e, SPATIAL) for d, e in enumerate(dims))
    return dims, t, every[:-1], every, Axis("k", dims[-1], REDUCTION)
