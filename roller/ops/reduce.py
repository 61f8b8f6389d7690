"""Reductions over any set of dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from roller.errors import ExprError, counted, shown
from roller.expr import Call, Const, Index, IndexValue, Scalar, Stage, Tensor, TensorExpr, Term
from roller.ops.operator_argument_checks import (
    OperatorDtypes,
    check_choice,
    check_flag,
    check_shape,
    compose_epilogue,
    reduction_and_ending_stages,
    resolve_dtypes,
)
from roller.ops.registry import register_operator
from roller.ops.tensor_rows import TensorRows, axes_of_dimensions

#: Function that maps the total of a reduction to its result.
Ending = Callable[[Scalar], Scalar]

_KINDS = ("argmax", "max", "mean", "min", "prod", "sum")
#: Combiners of the kinds that do not sum.
COMBINERS = {"max": "max", "min": "min", "prod": "prod"}


@register_operator("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ArgMax")
def reduce(
    kind: str,
    shape: Sequence[int] | int,
    axes: Sequence[int] | int | None = None,
    keepdims: bool = False,
    *,
    dtype: str = "float32",
    acc_dtype: str | None = None,
    out_dtype: str | None = None,
    epilogue: Sequence[str] | str = (),
) -> TensorExpr:
    """Reduce ``X`` over some of its dimensions.

    Parameters
    ----------
    kind
        ``sum``, ``mean``, ``max``, ``min``, ``prod`` or ``argmax``.
    shape
        Shape of ``X`` (elements).
    axes
        Dimensions to reduce, counted from the end if negative; ``None`` for all. ``argmax`` takes one dimension, or all
        of them to return the index into the flattened tensor.
    keepdims
        Whether reduced dimensions remain, with extent 1.
    dtype, acc_dtype, out_dtype, epilogue
        See :func:`roller.ops.matmul`; ``argmax`` stores positions in ``out_dtype``, int64 by default.

    Returns
    -------
    TensorExpr
        Axes ``d0 d1 ...``, spatial ones first; a mean is a sum and a fused multiplication; ``argmax`` is a maximum
        followed by a search for the smallest position that attains it, or for the first NaN, as in NumPy.

    Raises
    ------
    ExprError
        If the kind is unknown, or an axis is out of range or repeated.

    Examples
    --------
    >>> import roller
    >>> str(roller.ops.reduce("sum", (8, 16, 4), axes=(1,)))
    'reduce[d0=8 d2=4 d1=16] float32'
    """
    where = "reduce"
    check_choice(where, "kind", kind, _KINDS, "kind")
    keepdims = check_flag(where, "keepdims", keepdims)
    dims = check_shape(where, shape)
    reduced = normalize_axes(where, axes, len(dims))
    widens = kind in ("sum", "mean", "prod")
    t = resolve_dtypes(where, dtype, acc_dtype, out_dtype, widens=widens)
    if kind == "mean" and not t.is_float:
        raise ExprError(f"{where}: a mean needs a floating-point accumulator, got '{t.acc}'. Pass acc_dtype='float32'.")
    source = Tensor("X", dims, dtype)
    rows = TensorRows(source, axes_of_dimensions(dims, reduced, "d{}"), t, "X_", keepdims)
    if kind == "argmax":
        if len(reduced) not in (1, len(dims)):
            raise ExprError(f"{where}: argument 'axes': argmax takes one axis or all, got {reduced}. Use one axis.")
        position = out_dtype or "int64"
        _check_positions(where, position, rows.count)
        stages: tuple[Stage, ...] = extreme_and_position_stages(rows, Tensor("Y", rows.shape, position), part="max")
        return compose_epilogue(
            where, (source,), stages, OperatorDtypes(t.storage, position, position), epilogue=epilogue
        )
    body, ending = summand_and_ending(kind, rows.element, rows.count, t)
    stages = reduction_and_ending_stages(
        Tensor("Y", rows.shape, t.out), rows.axes, rows.at, body, COMBINERS.get(kind, "sum"), t, ending
    )
    return compose_epilogue(where, (source,), stages, t, epilogue=epilogue)


def summand_and_ending(kind: str, element: Scalar, count: int, t: OperatorDtypes) -> tuple[Scalar, Ending | None]:
    """Return a reduction's summand and the function to apply to its total (or ``None``), including for l1 and l2."""
    if kind in ("l1", "l2"):
        return p_norm_summand_and_ending(t, int(kind[1]), element)
    if kind == "sum_square":
        return Call("mul", (element, element)), None
    if kind == "log_sum":
        return element, lambda total: Call("log", (total,))
    if kind == "mean" and count > 1:
        return element, lambda total: Call("mul", (total, t.const(1 / count)))
    return element, None


def p_norm_summand_and_ending(t: OperatorDtypes, p: float, element: Scalar) -> tuple[Scalar, Ending | None]:
    """Return the summand of a p-norm, and the function that maps the sum to the norm (or ``None``)."""
    if p == 1:
        return Call("abs", (element,)), None
    if p == 2:
        return Call("mul", (element, element)), lambda total: Call("sqrt", (total,))
    power = Call("pow", (Call("abs", (element,)), t.const(p)))
    return power, lambda total: Call("pow", (total, t.const(1 / p)))


def normalize_axes(where: str, axes: Sequence[int] | int | None, rank: int, argument: str = "axes") -> tuple[int, ...]:
    """Return the reduced dimensions, sorted and non-negative; ``None`` means all."""
    if axes is None:
        return tuple(range(rank))
    listed = tuple(axes) if isinstance(axes, (tuple, list)) else (axes,)
    out = []
    for a in listed:
        if isinstance(a, bool) or not isinstance(a, (int, np.integer)) or not -rank <= a < rank:
            raise ExprError(f"{where}: argument '{argument}': expected dimensions in {-rank}..{rank - 1}, "
                            f"got {shown(a)}. The tensor has {counted(rank, 'dimension')}.")  # fmt: skip
        out.append(int(a) % rank)
    if len(set(out)) != len(out) or not out:
        raise ExprError(f"{where}: argument '{argument}': expected distinct dimensions, got {shown(list(listed))}. "
                        "Name each once.")  # fmt: skip
    return tuple(sorted(out))


def _check_positions(where: str, dtype: str, count: int) -> None:
    if "int" not in dtype or np.iinfo(dtype).max < count - 1:
        raise ExprError(f"{where}: argument 'out_dtype': expected an integer dtype that holds positions up to "
                        f"{count - 1}, got '{dtype}'. Pass out_dtype='int64'.")  # fmt: skip


def extreme_and_position_stages(
    rows: TensorRows, y: Tensor, *, largest: bool = True, last: bool = False, part: str = "extreme"
) -> tuple[Stage, Stage]:
    """Return two reductions: the extremum of each row, and the extremum's first (or ``last``) position."""
    # Two plain reductions need no tuple combiner; eq is exact, because both sides are the same stored element. A NaN is
    # the extremum, as in NumPy, but equals nothing, so isnan finds its position.
    extreme = rows.reduction(part, rows.element, "max" if largest else "min")
    hit: Scalar = Call("eq", (rows.element, rows.of(extreme)))
    if rows.t.is_float:
        hit = Call("select", (Call("isnan", (rows.element,)), Const(1, "bool"), hit))
    terms, pitch = [], 1
    for a in reversed(rows.reduced):
        terms.append(Term(a.name, pitch))
        pitch *= a.extent
    position = IndexValue(Index(tuple(reversed(terms))), y.dtype)
    # A valid position even if nothing equals the extreme: a fused operand may be rounded differently on a second read.
    missing = Const(0 if last else rows.count - 1, y.dtype)
    value = Call("select", (hit, position, missing))
    return extreme, Stage(y, rows.axes, rows.at, value, "max" if last else "min", y.dtype)
