"""Softmax along one dimension, in its numerically stable form."""

from __future__ import annotations

from collections.abc import Sequence

from roller.errors import ExprError, shown
from roller.expr import REDUCTION, SPATIAL, Axis, Call, Load, Stage, Tensor, TensorExpr
from roller.ops.build import dimensions, finish, indices, rows_of, types
from roller.ops.reduce import normalize_axes
from roller.ops.registry import operator


@operator("Softmax")
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
        The dimension that sums to one; negative counts from the end.
    dtype, acc_dtype, out_dtype, epilogue
        As for :func:`roller.ops.matmul`.

    Returns
    -------
    TensorExpr
        Stages ``X_max``, ``X_sum`` (reductions over ``k``) and ``Y`` (element-wise); the exponential is
        recomputed rather than stored, so that a row needs no scratch tensor.

    Raises
    ------
    ExprError
        Where the axis is out of range or the dtype is an integer.

    Examples
    --------
    >>> import roller
    >>> [s.name for s in roller.ops.softmax((8, 100)).stages]
    ['X_max', 'X_sum', 'Y']
    """
    where = "softmax"
    dims = dimensions(where, shape)
    if axis is None or isinstance(axis, (tuple, list)):
        raise ExprError(f"{where}: argument 'axis': expected one dimension, got {shown(axis)}. Reshape the tensor so "
                        "that they are one.")  # fmt: skip
    (along,) = normalize_axes(where, axis, len(dims), "axis")
    t = types(where, dtype, acc_dtype, out_dtype)
    t.require_float(where)
    rows = tuple(Axis(f"d{d}", e, SPATIAL) for d, e in enumerate(dims) if d != along)
    every = tuple(Axis(f"d{d}", e, SPATIAL) for d, e in enumerate(dims))
    k = Axis("k", dims[along], REDUCTION)
    at = indices(rows)
    inside = indices([k.name if d == along else f"d{d}" for d in range(len(dims))])
    row_shape = tuple(a.extent for a in rows)
    largest, total = Tensor("X_max", row_shape, t.acc), Tensor("X_sum", row_shape, t.acc)
    shifted = Call("sub", (t.load("X", inside), Load(largest.name, at)))
    final = Call("exp", (Call("sub", (t.load("X", indices(every)), Load(largest.name, at))),))
    stages = (
        Stage(largest, (*rows_of(rows), k), at, t.load("X", inside), "max", t.acc),
        Stage(total, (*rows_of(rows), k), at, Call("exp", (shifted,)), "sum", t.acc),
        Stage(Tensor("Y", dims, t.out), every, indices(every), Call("div", (final, Load(total.name, at))), None, t.acc),
    )
    return finish(where, (Tensor("X", dims, dtype),), stages, t, epilogue=epilogue)
