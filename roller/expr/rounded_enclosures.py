"""Enclosures of the values that correct kernels may compute, and the rounding of each dtype.

A correct kernel may keep more digits than its dtype has (fused multiply-add, half precision computed in single) or
round; enclosures contain both results. Subnormal results may be flushed to zero, overflow gives infinity, and the
enclosure of an unknown result has infinite ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from roller.expr.scalar import Call, Load, Scalar
from roller_runtime.core.dtypes import DTYPES, FLOATS, NARROW_FLOATS, is_float, round_to_dtype

#: Distance from one to the next larger number.
EPS = {name: DTYPES[name].epsilon for name in FLOATS}
#: Magnitudes below this value may be stored as zero.
FLUSHED = {name: DTYPES[name].flush_threshold for name in FLOATS}
#: Smallest normal number.
NORMAL = {name: DTYPES[name].smallest_normal for name in FLOATS}
#: Dtypes whose conversions always round, in whatever dtype the kernel computes.
NARROW = NARROW_FLOATS
_LOGICAL = ("eq", "lt", "le", "isnan")
#: Functions computed in floating point for operands of any dtype.
_REAL = frozenset((
    "div", "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "tanh", "erf", "sigmoid", "pow", "floor", "ceil", "trunc",
    "round", "sin", "cos", "tan", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh",
))  # fmt: skip
#: Both the reference and the kernel round a float64 operation, which doubles the error.
_REFERENCE_ULPS = 2.0
#: Relative error that a value may have before it is rounded from float32 to a narrow dtype.
_TWICE = 2.0**-22


@dataclass(frozen=True)
class EnclosedValues:
    """Exact values and bounds on a correct kernel's values, in arrays of one shape; a point's bounds are ``value``."""

    value: Any
    low: Any
    high: Any

    @classmethod
    def point(cls, value: Any) -> EnclosedValues:
        """Return values that every correct kernel computes exactly."""
        return cls(value, value, value)

    @property
    def is_point(self) -> bool:
        """Whether every correct kernel computes exactly ``value``."""
        return self.low is self.value and self.high is self.value

    @property
    def unknown(self) -> Any:
        """Mask of elements for which any value is correct."""
        return np.isneginf(self.low) & np.isposinf(self.high)

    def decides(self, dtype: str) -> np.ndarray:
        """Return the mask of elements whose correct results of ``dtype`` differ from wrong ones.

        Examples
        --------
        >>> value = np.array([1.0, np.nan, 1e6, 1e-9])
        >>> round_enclosure(EnclosedValues.point(value), "float16").decides("float16").tolist()
        [True, False, False, False]
        """
        # NaN, possible overflow, results so small that zero is correct, and unknown results decide nothing.
        value, low, high = (np.asarray(a, np.float64) for a in (self.value, self.low, self.high))
        finite = np.isfinite(low) & np.isfinite(high)
        found = (finite | (np.isinf(value) & (low == value) & (high == value))) & ~np.isnan(value)
        if dtype == "bool":
            return np.asarray(found & (low == high))
        vanished = (value != 0) & (np.abs(value) < FLUSHED.get(dtype, 0.0))
        return np.asarray(found & ~vanished)

    def wrong(self, i: int, got: Any) -> str:
        """Return the message that element ``i`` is ``got`` instead of its expected value, with the error bound."""
        reference, low, high = (np.asarray(a).reshape(-1)[i] for a in (self.value, self.low, self.high))
        bound = float(high) - float(reference) if got > reference else float(reference) - float(low)
        return f"expected {reference!r}, got {got!r}, error bound {bound:.3g}"

    def map(self, fn: Any) -> EnclosedValues:
        """Apply ``fn``, which may move elements but not change them, to all three arrays."""
        if self.is_point:
            return EnclosedValues.point(fn(self.value))
        return EnclosedValues(fn(self.value), fn(self.low), fn(self.high))


def enclosure_with_nan(value: Any, low: Any, high: Any) -> EnclosedValues:
    """Return an enclosure from ends that may be NaN: unbounded there, unless value and both ends are NaN."""
    odd = (np.isnan(low) | np.isnan(high)) & ~(np.isnan(low) & np.isnan(high) & np.isnan(value))
    if np.any(odd):
        low, high = np.where(odd, -np.inf, low), np.where(odd, np.inf, high)
    return EnclosedValues(value, low, high)


def promote_dtypes(one: str, other: str) -> str:
    """Return the dtype in which an operation on both dtypes is computed, according to TVM's promotion rules.

    Examples
    --------
    >>> promote_dtypes("int32", "float16"), promote_dtypes("float16", "float32"), promote_dtypes("int8", "int32")
    ('float16', 'float32', 'int32')
    """
    if one == other:
        return one
    if is_float(one) != is_float(other):
        return one if is_float(one) else other
    return max(one, other, key=lambda d: DTYPES[d].rank)


def computation_dtype(node: Scalar, dtypes: Mapping[str, str]) -> str:
    """Return the dtype in which a scalar is computed."""
    if isinstance(node, Load):
        return dtypes[node.tensor]
    if not isinstance(node, Call):
        return node.dtype
    return dtype_of_call(node.fn, [computation_dtype(a, dtypes) for a in node.args])


def dtype_of_call(fn: str, kinds: Sequence[str]) -> str:
    """Return the dtype in which a function is computed, given the dtypes of its operands.

    Examples
    --------
    >>> dtype_of_call("select", ["bool", "int8", "int32"]), dtype_of_call("div", ["int32", "int32"])
    ('int32', 'float32')
    """
    if fn in _LOGICAL:
        return "bool"
    if fn == "select":
        kinds = kinds[1:]
    if fn in _REAL:
        kinds = [k if is_float(k) else "float32" for k in kinds]
    out = kinds[0]
    for k in kinds[1:]:
        out = promote_dtypes(out, k)
    return out


def round_enclosure(e: EnclosedValues, dtype: str, ulps: float = 0.0) -> EnclosedValues:
    """Return the bounds on an operation in ``dtype`` whose exact result is ``e``; integers are exact."""
    if not is_float(dtype):
        return e
    if e.is_point and not ulps:
        value = np.asarray(e.value, np.float64)
        if (
            dtype != "float64"
            and np.array_equal(round_to_dtype(value, dtype), value, equal_nan=True)
            and _has_no_subnormals(value, dtype)
        ):
            return EnclosedValues.point(value)
    low, high = np.asarray(e.low, np.float64), np.asarray(e.high, np.float64)
    slack = ulps * EPS[dtype] + (_REFERENCE_ULPS * EPS["float64"] if dtype == "float64" else 0.0)
    if slack:
        low, high = _widen_relatively(low, high, slack)
    twice = _TWICE if dtype in NARROW else 0.0
    down, up = _widen_relatively(low, high, twice) if twice else (low, high)
    return enclosure_with_nan(
        e.value,
        *_widen_for_flush_to_zero(
            np.minimum(low, round_to_dtype(down, dtype)), np.maximum(high, round_to_dtype(up, dtype)), dtype
        ),
    )


def convert_to_narrow_float(e: EnclosedValues, source: str, to: str) -> EnclosedValues:
    """Return the bounds on ``e`` after conversion to a narrow float, which always rounds.

    Examples
    --------
    >>> float(convert_to_narrow_float(EnclosedValues.point(np.array(1.001)), "float32", "bfloat16").high)
    1.0
    """
    value, low, high = (np.asarray(a, np.float64) for a in (e.value, e.low, e.high))
    twice = source in ("float64", "int32", "uint32", "int64", "uint64")  # the conversion may go through float32
    if e.is_point and not twice and _has_no_subnormals(value, to):
        return EnclosedValues.point(round_to_dtype(value, to))
    low, high = _widen_relatively(low, high, _TWICE) if twice else (low, high)
    return enclosure_with_nan(
        round_to_dtype(value, to), *_widen_for_flush_to_zero(round_to_dtype(low, to), round_to_dtype(high, to), to)
    )


def _widen_for_flush_to_zero(low: Any, high: Any, dtype: str) -> tuple[Any, Any]:
    """Return both ends widened where numbers may be flushed to zero."""
    flushed = FLUSHED[dtype]
    small = (low < flushed) & (high > -flushed) & ((low != 0) | (high != 0))
    if not np.any(small):
        return low, high
    return np.where(small, low - flushed, low), np.where(small, high + flushed, high)


def _has_no_subnormals(value: Any, dtype: str) -> bool:
    """Return whether no number in an array may be flushed to zero."""
    return bool(np.all((value == 0) | (np.abs(value) >= FLUSHED[dtype]) | np.isnan(value)))


def _widen_relatively(low: Any, high: Any, relative: float) -> tuple[Any, Any]:
    """Return both ends moved outwards by ``relative`` of their magnitudes; infinite ends stay."""
    down = np.where(np.isfinite(low), low - relative * np.abs(low), low)
    return down, np.where(np.isfinite(high), high + relative * np.abs(high), high)


def integers_represent(dtype: str, e: EnclosedValues) -> Any:
    """Return the mask of elements for which ``dtype`` represents every integer from ``e.low`` to ``e.high``."""
    low, high = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    # The float64 nearest to the largest int64 is 2**63, which does not fit.
    return (e.low > low - 1.0) & (e.high < high + 1.0) & (e.low >= float(low)) & (e.high < float(high) + 1.0)


def error_to_bound_ratios(got: np.ndarray, e: EnclosedValues) -> np.ndarray:
    """Return the ratio of error to bound for each element: at most 1 inside the enclosure, 0 for the reference."""
    reference = np.asarray(e.value)
    whole_numbers = np.issubdtype(got.dtype, np.integer) or got.dtype == np.bool_
    if whole_numbers and e.is_point:
        return np.where(got.astype(np.int64) == reference.astype(np.int64), 0.0, np.inf)
    value, reference = got.astype(np.float64), reference.astype(np.float64)
    low, high = np.asarray(e.low, np.float64), np.asarray(e.high, np.float64)
    with np.errstate(all="ignore"):
        above = value > reference
        room = np.where(above, high - reference, reference - low)
        ratio = np.abs(value - reference) / room
        within = (value >= low) & (value <= high)
        # The ends are rounded too: a value between them is correct, whatever the quotient.
        ratio = np.where(within, np.minimum(np.where(np.isnan(ratio), 0.0, ratio), 1.0), np.maximum(ratio, 1.0 + 1e-9))
    same = (value == reference) | (np.isnan(value) & (np.isnan(reference) | e.unknown)) | e.unknown
    ratio = np.where(same, 0.0, ratio)
    return np.where(np.isnan(ratio), np.inf, ratio)


def as_reference_dtype(found: Any) -> np.ndarray:
    """Return elements in the dtype in which the reference computes."""
    array = np.asarray(found)
    return array.astype(np.int64 if array.dtype.kind in "iub" else np.float64)
