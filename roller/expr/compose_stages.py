"""Composition of stages: an element-wise stage is substituted into the load that reads it.

Transposes, slices, reshapes and broadcasts are expressed as indices; composing them with the reader's index removes the
copy if the result is an index again (:mod:`roller.expr.index_arithmetic`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from roller.expr.index_arithmetic import compose_index, invert_store_map, reshape_access, simplify_index
from roller.expr.scalar import (
    Bound,
    Call,
    Cast,
    Const,
    Index,
    IndexValue,
    Load,
    Scalar,
    loads,
    map_indices,
    walk_scalar_tree,
)
from roller.expr.tensor_expr import Stage
from roller_runtime.core.dtypes import DTYPES, INTEGERS, NARROW_INTEGERS, is_float, round_to_dtype

#: Functions whose result is a truth value.
LOGICAL = ("eq", "lt", "le", "isnan")
#: Functions computed in floating point for operands of any dtype.
_REAL = ("div", "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "tanh", "erf", "sigmoid", "pow")
#: Integer arithmetic that may overflow. Compilers assume that 32- and 64-bit arithmetic never overflows, so a widening
#: or a comparison may see a value that has not wrapped around, unless it was stored first.
_WRAPPING = ("add", "sub", "mul", "neg", "abs", "shl")
_WIDE = tuple(name for name in INTEGERS if name not in NARROW_INTEGERS)


def common_dtype_of_scalar(node: Scalar, tensors: Mapping[str, str]) -> str | None:
    """Return the dtype in which a scalar is computed, or ``None`` if the dtypes of its operands differ."""
    if isinstance(node, (Const, IndexValue, Cast)):
        return node.dtype
    if isinstance(node, Load):
        return tensors[node.tensor]
    if node.fn in LOGICAL:
        return "bool"
    kinds = {common_dtype_of_scalar(a, tensors) for a in (node.args[1:] if node.fn == "select" else node.args)}
    only = next(iter(kinds)) if len(kinds) == 1 else None
    return "float32" if node.fn in _REAL and only is not None and "float" not in only else only


def substitute_axes(body: Scalar, at: Mapping[str, Index], extents: Mapping[str, int]) -> Scalar | None:
    """Return ``body`` with its axes replaced by the indices of ``at``, or ``None`` if a result is not an index."""
    possible = True

    def index(i: Index) -> Index:
        nonlocal possible
        new = compose_index(i, at, extents)
        possible &= new is not None
        return i if new is None else new

    out = map_indices(body, index)
    return out if possible else None


def inline_producer(
    load: Load, shape: Sequence[int], extents: Mapping[str, int], producer: Stage, tensors: Mapping[str, str]
) -> Scalar | None:
    """Return what ``load`` reads from ``producer`` as a scalar of the reader, or ``None`` if it must be stored."""
    index = reshape_access(load.index, shape, producer.output.shape, extents)
    at = None if index is None else invert_store_map(producer.store, producer.extents, index, extents)
    value = None if at is None else substitute_axes(producer.body, at, extents)
    if value is None:
        return None
    value = (
        None
        if may_overflow_integers(value, producer.output.dtype)
        else _convert_to_stored_dtype(value, producer.output.dtype, tensors)
    )
    if value is None or not load.guard:
        return value
    guard = tuple(Bound(simplify_index(b.index, extents), b.low, b.high) for b in load.guard)
    if not _stays_same_after_conversions(load.outside, value, tensors):
        return None  # the value outside the guard already has the dtype after conversion
    return add_guard(value, guard, load.outside)


def _stays_same_after_conversions(number: float, value: Scalar, tensors: Mapping[str, str]) -> bool:
    """Return whether ``number``, the value outside a guard, is unchanged by the conversions applied to the load."""
    dtypes = list[str]()
    while isinstance(value, Cast):
        dtypes.append(value.dtype)
        value = value.arg
    if not dtypes or not isinstance(value, Load):
        return True
    met = number
    for dtype in (tensors[value.tensor], *reversed(dtypes)):
        if not _dtype_represents(dtype, met):
            return False
        met = float(round_to_dtype(met, dtype))
    return met == float(round_to_dtype(number, dtypes[0])) or (math.isnan(met) and math.isnan(number))


def _dtype_represents(dtype: str, number: float) -> bool:
    """Return whether ``dtype`` can represent ``number``, apart from rounding."""
    if is_float(dtype):
        return True
    low, high = DTYPES[dtype].integer_range if dtype in DTYPES else (0, -1)
    return math.isfinite(number) and number == int(number) and low <= number <= high


def may_overflow_integers(value: Scalar, dtype: str) -> bool:
    """Return whether ``value`` has 32- or 64-bit integer arithmetic on data, which may overflow; indices never do.

    Examples
    --------
    >>> may_overflow_integers(Call("add", (Load("x", ()), Const(1, "int32"))), "int32")
    True
    """
    if dtype not in _WIDE:
        return False
    return any(
        isinstance(n, Call) and n.fn in _WRAPPING and any(True for _ in loads(n)) for n in walk_scalar_tree(value)
    )


def _convert_to_stored_dtype(value: Scalar, dtype: str, tensors: Mapping[str, str]) -> Scalar | None:
    """Return ``value`` converted to ``dtype`` as storing it would, or ``None`` if it must actually be stored."""
    kind = common_dtype_of_scalar(value, tensors)
    if kind == dtype:
        moved = value.arg if isinstance(value, Cast) else value
        return None if dtype in NARROW_INTEGERS and isinstance(moved, Call) else value
    if dtype == "bool" or dtype in NARROW_INTEGERS:
        return None
    return Cast(dtype, value)


def add_guard(value: Scalar, guard: tuple[Bound, ...], outside: float) -> Scalar | None:
    """Return ``value`` with ``guard`` added; ``None`` if it is not a (converted) load, or has another value outside."""
    if isinstance(value, Cast):
        inner = add_guard(value.arg, guard, outside)
        return None if inner is None else Cast(value.dtype, inner)
    if not isinstance(value, Load) or (value.guard and value.outside != outside):
        return None
    bounds = (_bound_on_loaded_index(b, value.index) for b in (*guard, *value.guard))
    return replace(value, guard=tuple(dict.fromkeys(bounds)), outside=outside)


def _bound_on_loaded_index(bound: Bound, index: tuple[Index, ...]) -> Bound:
    """Rewrite a bound for a loaded index that differs from the bounded one by a constant (a padded slice), if any."""
    for i in index:
        if i.terms and i.terms == bound.index.terms:
            apart = i.const - bound.index.const
            return Bound(i, bound.low + apart, bound.high + apart)
    return bound
