"""Reductions over any set of dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from roller.errors import ExprError, counted, shown
from roller.expr import (
    REDUCTION,
    SPATIAL,
    Axis,
    Call,
    Const,
    Index,
    IndexValue,
    Load,
    Scalar,
    Stage,
    Tensor,
    TensorExpr,
    Term,
)
from roller.ops.build import Types, dimensions, finish, flag, indices, one_of, rows_of, types
from roller.ops.registry import operator

#: Combiner of each kind.
_COMBINER = {"sum": "sum", "mean": "sum", "max": "max", "min": "min", "prod": "prod", "argmax": "max"}


@operator("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ArgMax")
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
        Dimensions to reduce, negative ones counted from the end; ``None`` for all. ``argmax`` takes one
        dimension, or all (the index into the flattened tensor).
    keepdims
        Whether reduced dimensions stay, with extent 1.
    dtype, acc_dtype, out_dtype, epilogue
        As for :func:`roller.ops.matmul`; ``argmax`` stores ``out_dtype`` (int64 unless int32).

    Returns
    -------
    TensorExpr
        Axes ``d0 d1 ...``, spatial ones first; a mean is a sum and a fused multiplication; ``argmax`` a
        maximum and the smallest position that attains it.

    Raises
    ------
    ExprError
        Where the kind is unknown or an axis is out of range or repeated.

    Examples
    --------
    >>> import roller
    >>> str(roller.ops.reduce("sum", (8, 16, 4), axes=(1,)))
    'reduce[d0=8 d2=4 d1=16] float32'
    """
    where = "reduce"
    one_of(where, "kind", kind, sorted(_COMBINER), "kind")
    keepdims = flag(where, "keepdims", keepdims)
    dims = dimensions(where, shape)
    reduced = normalize_axes(where, axes, len(dims))
    widens = kind in ("sum", "mean", "prod")
    t = types(where, dtype, acc_dtype, out_dtype, widens=widens)
    if kind == "mean" and not t.is_float:
        raise ExprError(f"{where}: a mean needs a floating-point accumulator, got '{t.acc}'. Pass acc_dtype='float32'.")
    gone = tuple(Axis(f"d{d}", e, REDUCTION) for d, e in enumerate(dims) if d in reduced)
    kept = tuple(Axis(f"d{d}", e, SPATIAL) for d, e in enumerate(dims) if d not in reduced)
    everything = indices([f"d{d}" for d in range(len(dims))])
    if keepdims:
        kept = tuple(Axis(f"one{d}", 1, SPATIAL) if d in reduced else Axis(f"d{d}", e) for d, e in enumerate(dims))
    axes_all = (*rows_of(kept), *gone)
    out_shape, store = tuple(a.extent for a in kept), indices(kept)
    source = Tensor("X", dims, dtype)
    body = t.load("X", everything)
    if kind == "argmax":
        if len(reduced) not in (1, len(dims)):
            raise ExprError(f"{where}: argument 'axes': argmax takes one axis or all, got {reduced}. Use one axis.")
        _check_positions(where, out_dtype or "int64", gone)
        stages = _argmax(axes_all, gone, Tensor("Y", out_shape, out_dtype or "int64"), store, body, t)
        final = Types(t.storage, out_dtype or "int64", out_dtype or "int64")
        return finish(where, (source,), stages, final, epilogue=epilogue)
    stage = Stage(Tensor("Y", out_shape, t.out), axes_all, store, body, _COMBINER[kind], t.acc)
    scale = Const(1.0 / math.prod(a.extent for a in gone), t.acc)
    own = (lambda value: Call("mul", (value, scale))) if kind == "mean" and scale.value != 1 else None
    return finish(where, (source,), (stage,), t, epilogue=epilogue, own=own)


def normalize_axes(where: str, axes: Sequence[int] | int | None, rank: int, argument: str = "axes") -> tuple[int, ...]:
    """Return the reduced dimensions, sorted and non-negative; ``None`` means all; ``argument`` is named in errors."""
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


def _check_positions(where: str, dtype: str, gone: tuple[Axis, ...]) -> None:
    """Refuse an output that cannot hold every position of the reduced axes."""
    last = math.prod(a.extent for a in gone) - 1
    if "int" not in dtype or np.iinfo(dtype).max < last:
        raise ExprError(f"{where}: argument 'out_dtype': expected an integer dtype that holds positions up to {last}, "
                        f"got '{dtype}'. Pass out_dtype='int64'.")  # fmt: skip


def _argmax(
    axes: tuple[Axis, ...], gone: tuple[Axis, ...], out: Tensor, store: tuple[Index, ...], body: Scalar, t: Types
) -> tuple[Stage, Stage]:
    """Two reductions: the maximum, then the smallest position whose element equals it.

    The combiner of two plain reductions needs no tuple; ``eq`` is exact since both sides are the same
    stored element.
    """
    largest = Tensor("X_max", out.shape, t.acc)
    first = Stage(largest, axes, store, body, "max", t.acc)
    terms, stride = [], 1
    for a in reversed(gone):
        terms.append(Term(a.name, stride))
        stride *= a.extent
    position = IndexValue(Index(tuple(reversed(terms))), out.dtype)
    hit = Call("eq", (body, Load(largest.name, store)))
    value = Call("select", (hit, position, Const(np.iinfo(out.dtype).max, out.dtype)))
    return first, Stage(out, axes, store, value, "min", out.dtype)
