"""An independent judge: the description of an expression computed in NumPy, as intervals every right kernel lies in.

Nothing of roller is used. Each value is the interval of what arithmetic in the dtypes of the description may give:
every
operation of floats widens it by its rounding, comparisons that rounding may turn take both branches, integers wrap.
A load is only made where the conditions around it hold, and must lie inside its tensor there: a generator that breaks
this
has made no case (:class:`Invalid`).
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.fuzz.language import Data, dtype_of, dtypes_of

EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7,
           "float8_e4m3fn": 2.0**-3, "float8_e5m2": 2.0**-2}  # fmt: skip
TINY = {"float64": 2.0**-1022, "float32": 2.0**-126, "float16": 2.0**-24, "bfloat16": 2.0**-126,
        "float8_e4m3fn": 2.0**-9, "float8_e5m2": 2.0**-16}  # fmt: skip
LARGEST = {
    "float64": 1.7976931348623157e308,
    "float32": 3.4028234663852886e38,
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
    "float8_e4m3fn": 448.0,
    "float8_e5m2": 57344.0,
}
#: Units in the last place that a function may be off; what is exact in every dtype is off by none.
_EXACT = {"neg", "abs", "max", "min", "floor", "ceil", "trunc", "nearbyint"}
_FUNCTION_ULPS = 12.0
#: Bounds of an integer of which nothing is known; sums of a few do not overflow.
_ANYTHING = 2**60
_erf = np.vectorize(math.erf, otypes=[np.float64])


class Invalid(Exception):
    """The description reads outside a tensor, or divides integers by zero: it is no case."""


@dataclass(frozen=True)
class Interval:
    """Between ``low`` and ``high`` (float64 or int64, equal shapes); NaN where anything is right."""

    low: np.ndarray
    high: np.ndarray

    @staticmethod
    def exact(value: Any) -> Interval:
        """Return the interval of one value."""
        return Interval(np.asarray(value), np.asarray(value))


def interpret(expression: Data, arrays: Mapping[str, np.ndarray]) -> dict[str, Interval]:
    """Return the outputs of an expression on the given inputs."""
    dtypes = dtypes_of(expression)
    known = {n: Interval.exact(_wide(a, dtypes[n])) for n, a in arrays.items()}
    with np.errstate(all="ignore"):
        for stage in expression["stages"]:
            known[stage["name"]] = _Stage(stage, known, dtypes).value()
    return {n: known[n] for n in expression["outputs"]}


def difference(got: np.ndarray, expected: Interval, dtype: str) -> str:
    """Say where an output is not what it must be, or return an empty text."""
    value = _wide(got, dtype)
    if value.shape != expected.low.shape:
        return f"shape {value.shape}, not {expected.low.shape}"
    free = np.isnan(expected.low) | np.isnan(expected.high) if value.dtype.kind == "f" else np.zeros(value.shape, bool)
    if value.dtype.kind == "f":  # a value beyond the dtype, or infinities that cancel
        free = free | (np.isnan(value) & (np.isinf(expected.low) | np.isinf(expected.high)))
    else:  # what is undefined in C may be anything, also beyond what stands for that here
        free = free | (expected.high.astype(np.float64) - expected.low.astype(np.float64) >= _ANYTHING)
    wrong = ~free & ~((value >= expected.low) & (value <= expected.high))
    if not wrong.any():
        return ""
    at = tuple(int(x) for x in np.argwhere(wrong)[0])
    lo, hi = expected.low[at], expected.high[at]
    return f"{int(wrong.sum())} of {wrong.size} elements, first {list(at)}: expected {lo!r}..{hi!r}, got {value[at]!r}"


def _wide(a: np.ndarray, dtype: str) -> np.ndarray:
    return np.asarray(a).astype(np.float64 if "float" in dtype else np.int64)


def rounded(v: Interval, dtype: str, ulps: float = 1.0) -> Interval:
    """Return what an operation in ``dtype`` makes of its exact result: off by so many units, wrapped, or infinite."""
    if "float" not in dtype:
        return _wrapped(v, dtype)
    e, tiny, most = ulps * EPSILON[dtype], TINY[dtype], LARGEST[dtype]
    low, high = v.low - e * np.abs(v.low) - tiny, v.high + e * np.abs(v.high) + tiny
    # One operation on known numbers whose result the dtype holds is exact, however it is contracted.
    still = (v.low == v.high) & (held(v.low, dtype) if ulps <= 1 else v.low == 0)
    low, high = np.where(still, v.low, low), np.where(still, v.low, high)
    low = np.where(low < -most, -np.inf, np.where(low > most, most, low))
    return Interval(low, np.where(high > most, np.inf, np.where(high < -most, -most, high)))


def held(value: np.ndarray, dtype: str) -> np.ndarray:
    """Say which numbers a float dtype holds exactly."""
    narrow = np.dtype(getattr(importlib.import_module("ml_dtypes"), dtype, dtype))
    return np.asarray(value.astype(narrow).astype(np.float64) == value)


def _wrapped(v: Interval, dtype: str) -> Interval:
    if dtype == "int64":
        return v
    if dtype == "bool":
        return Interval((v.low != 0).astype(np.int64), (v.high != 0).astype(np.int64))
    info = np.iinfo(dtype)
    inside = (v.low >= info.min) & (v.high <= info.max)
    low, high = v.low.astype(dtype).astype(np.int64), v.high.astype(dtype).astype(np.int64)
    apart = ~inside & (v.low != v.high)
    return Interval(np.where(apart, info.min, low), np.where(apart, info.max, high))


class _Stage:
    def __init__(self, stage: Data, known: Mapping[str, Interval], dtypes: Mapping[str, str]) -> None:
        self.stage, self.known, self.dtypes = stage, known, dtypes
        axes = [*stage["axes"], *stage["reduce"]]
        self.extents = tuple(n for _, n in axes)
        self.env = {
            name: np.arange(n, dtype=np.int64).reshape([-1 if k == d else 1 for k in range(len(axes))])
            for d, (name, n) in enumerate(axes)
        }

    def value(self) -> Interval:
        body = self.scalar(self.stage["body"], np.True_)
        dtype = self.dtypes[self.stage["name"]]
        if self.stage["reduce"] and "int" in dtype:
            body = _wrapped(body, dtype)  # sums of what may be anything would leave 64 bits
        low, high = (np.broadcast_to(x, self.extents) for x in (body.low, body.high))
        if not self.stage["reduce"]:
            return Interval(np.array(low), np.array(high))
        rows = tuple(n for _, n in self.stage["axes"])
        low, high = low.reshape(*rows, -1), high.reshape(*rows, -1)
        return _combined(self.stage["combine"], low, high, dtype)

    def index(self, i: Data) -> Any:
        if isinstance(i, int):
            return np.int64(i)
        if isinstance(i, str):
            return self.env[i]
        a, b = self.index(i[1]), self.index(i[2])
        return {"+": np.add, "-": np.subtract, "*": np.multiply, "//": np.floor_divide, "%": np.remainder}[i[0]](a, b)

    def condition(self, c: Data, mask: Any) -> tuple[Any, Any]:
        """Return where a condition surely holds, and where it may."""
        if c[0] in ("all", "any", "not"):
            parts = [self.condition(x, mask) for x in c[1:]]
            if c[0] == "not":
                sure, may = parts[0]
                return ~may, ~sure
            fold = np.logical_and if c[0] == "all" else np.logical_or
            sure, may = parts[0]
            for s, m in parts[1:]:
                sure, may = fold(sure, s), fold(may, m)
            return sure, may
        if c[0] == "less":
            a, b = self.scalar(c[1], mask), self.scalar(c[2], mask)
            return a.high < b.low, ~(a.low >= b.high)
        compare = {
            "lt": np.less,
            "le": np.less_equal,
            "gt": np.greater,
            "ge": np.greater_equal,
            "eq": np.equal,
            "ne": np.not_equal,
        }[c[0]]
        holds = np.asarray(compare(self.index(c[1]), self.index(c[2])))
        return holds, holds

    def scalar(self, s: Data, mask: Any) -> Interval:
        """Return a scalar at every point; loads are made where ``mask`` holds."""
        kind = s[0]
        if kind == "load":
            return self.load(s, mask)
        if kind == "const":
            exact = Interval.exact(np.asarray(s[1], np.float64 if "float" in s[2] else np.int64))
            return rounded(exact, s[2], 0.5) if "float" in s[2] else _wrapped(exact, s[2])
        if kind == "position":
            return _cast(Interval.exact(np.asarray(self.index(s[1]), np.int64)), "int32", s[2])
        if kind == "cast":
            return _cast(self.scalar(s[2], mask), dtype_of(s[2], self.dtypes), s[1])
        if kind == "choose":
            return self.choose(s, mask)
        dtype = dtype_of(s, self.dtypes)
        return _call(s[1], [self.scalar(a, mask) for a in s[2:]], dtype)

    def load(self, s: Data, mask: Any) -> Interval:
        tensor = self.known[s[1]]
        at = []
        for i, n in zip(s[2], tensor.low.shape, strict=True):
            value = self.index(i)
            if np.any(mask & ((value < 0) | (value >= n))):
                raise Invalid(f"{s} leaves its tensor")
            at.append(np.clip(value, 0, n - 1))
        return Interval(tensor.low[tuple(at)], tensor.high[tuple(at)])

    def choose(self, s: Data, mask: Any) -> Interval:
        sure, may = self.condition(s[2], mask)
        yes, no = self.scalar(s[3], mask & may), self.scalar(s[4], mask & ~sure)
        low = np.where(sure, yes.low, np.where(may, np.minimum(yes.low, no.low), no.low))
        return Interval(low, np.where(sure, yes.high, np.where(may, np.maximum(yes.high, no.high), no.high)))


def _combined(combiner: str, low: np.ndarray, high: np.ndarray, dtype: str) -> Interval:
    """Combine the last axis; partial results may be kept in any order."""
    terms = low.shape[-1]
    if combiner in ("max", "min"):
        fold = np.max if combiner == "max" else np.min
        return Interval(fold(low, axis=-1), fold(high, axis=-1))
    is_float = "float" in dtype
    if combiner == "sum":
        if dtype == "bool":  # a sum of truths is a truth
            return Interval(low.max(axis=-1), high.max(axis=-1))
        total = Interval(low.sum(axis=-1), high.sum(axis=-1))
        if not is_float:
            return _wrapped(total, dtype)
        size = np.maximum(np.abs(low), np.abs(high)).sum(axis=-1)
        # Where a partial sum may exceed the dtype anything may come out.
        size = np.where(size > LARGEST[dtype], np.inf, size)
        slack = min(terms, 8 * math.sqrt(terms)) * EPSILON[dtype] * size
        return rounded(Interval(total.low - slack, total.high + slack), dtype)
    total = Interval.exact(np.ones(low.shape[:-1], low.dtype))
    for k in range(terms):
        total = _call("mul", [total, Interval(low[..., k], high[..., k])], dtype)
    if is_float:  # in another order a partial product may overflow, or vanish
        size = np.maximum(np.maximum(np.abs(low), np.abs(high)), 1.0).prod(axis=-1)
        small = np.minimum(np.minimum(np.abs(low), np.abs(high)), 1.0).prod(axis=-1)
        free = (size > LARGEST[dtype]) | ((small < TINY[dtype] * 2**30) & (total.high != 0))
        total = Interval(np.where(free, np.nan, total.low), np.where(free, np.nan, total.high))
    return total


def _cast(v: Interval, before: str, to: str) -> Interval:
    if before == to:
        return v
    if to == "bool":
        zero = (v.low <= 0) & (v.high >= 0)
        sure = ~zero | np.isnan(v.low)
        maybe = ~((v.low == 0) & (v.high == 0))
        return Interval(sure.astype(np.int64), maybe.astype(np.int64))
    if "float" in to:
        return (
            rounded(Interval(v.low.astype(np.float64), v.high.astype(np.float64)), to)
            if _narrows(before, to)
            else Interval(v.low.astype(np.float64), v.high.astype(np.float64))
        )
    if "float" not in before:
        return _wrapped(v, to)
    info = np.iinfo(to)
    low, high = np.trunc(v.low), np.trunc(v.high)
    # What does not fit the integer is undefined in C: anything is right.
    free = ~((low >= info.min) & (high <= float(info.max)))
    if to == "int64":
        free = free | (high >= 2.0**63)
    low, high = np.where(free, 0.0, low), np.where(free, 0.0, high)
    # A compiler may even keep a number the integer cannot be (a cast back to floats then gives that).
    return Interval(np.where(free, -_ANYTHING, low.astype(np.int64)), np.where(free, _ANYTHING, high.astype(np.int64)))


def _narrows(before: str, to: str) -> bool:
    return (
        "int" in before or before == "bool" or EPSILON[before] < EPSILON[to] or {before, to} == {"float16", "bfloat16"}
    )


def _products(a: Interval, b: Interval, fn: Callable[[Any, Any], Any]) -> Interval:
    ends = [fn(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    low, high = ends[0], ends[0]
    for e in ends[1:]:
        low, high = np.minimum(low, e), np.maximum(high, e)
    return Interval(np.asarray(low), np.asarray(high))


def _call(fn: str, a: list[Interval], dtype: str) -> Interval:
    out = _exactly(fn, a, dtype)
    if fn in _EXACT and "float" in dtype:
        return out
    return rounded(out, dtype, 1.0 if fn in ("add", "sub", "mul", "div") else _FUNCTION_ULPS)


def _exactly(fn: str, a: list[Interval], dtype: str) -> Interval:
    x = a[0]
    if fn in ("add", "sub"):
        y = a[1] if fn == "add" else Interval(-a[1].high, -a[1].low)
        return Interval(x.low + y.low, x.high + y.high)
    if fn == "mul":
        return _products(x, a[1], np.multiply)
    if fn in ("max", "min"):
        fold = np.maximum if fn == "max" else np.minimum
        return Interval(fold(x.low, a[1].low), fold(x.high, a[1].high))
    if fn == "neg":
        return Interval(-x.high, -x.low)
    if fn == "abs":
        inside = (x.low <= 0) & (x.high >= 0)
        low = np.where(inside, 0, np.minimum(np.abs(x.low), np.abs(x.high)))
        return Interval(low, np.maximum(np.abs(x.low), np.abs(x.high)))
    if "float" not in dtype:
        return _integers(fn, x, a[1], dtype)
    if fn == "div":
        out = _products(x, a[1], np.divide)
        crosses = (a[1].low <= 0) & (a[1].high >= 0)
        return Interval(np.where(crosses, np.nan, out.low), np.where(crosses, np.nan, out.high))
    if fn == "power":
        out = _products(x, a[1], np.power)
        unsure = (x.low <= 0) | np.isnan(out.low) | np.isnan(out.high)
        return Interval(np.where(unsure, np.nan, out.low), np.where(unsure, np.nan, out.high))
    return _function(fn, x)


_ROUNDING = {"floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "nearbyint": np.rint}
_MONOTONE = {
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "erf": _erf,
    "sinh": np.sinh,
    "asin": np.arcsin,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
    **_ROUNDING,
}
_FALLING = {"rsqrt": lambda x: 1.0 / np.sqrt(x), "acos": np.arccos}
#: Functions whose argument rounding may push over an end of their domain: nothing is claimed close to it.
_ENDS = {
    "log": (0.0,),
    "log1p": (-1.0,),
    "sqrt": (0.0,),
    "rsqrt": (0.0,),
    "asin": (-1.0, 1.0),
    "acos": (-1.0, 1.0),
    "acosh": (1.0,),
    "atanh": (-1.0, 1.0),
}


def _function(fn: str, x: Interval) -> Interval:
    if fn in _MONOTONE:
        out = Interval(np.asarray(_MONOTONE[fn](x.low)), np.asarray(_MONOTONE[fn](x.high)))
    elif fn in _FALLING:
        out = Interval(_FALLING[fn](x.high), _FALLING[fn](x.low))
    elif fn == "cosh":
        most = np.maximum(np.abs(x.low), np.abs(x.high))
        least = np.where((x.low <= 0) & (x.high >= 0), 0.0, np.minimum(np.abs(x.low), np.abs(x.high)))
        out = Interval(np.cosh(least), np.cosh(most))
    else:  # sin, cos, tan: by their slope; anything where the argument is large or near a pole
        middle, reach = (x.low + x.high) / 2, (x.high - x.low) / 2
        value = {"sin": np.sin, "cos": np.cos, "tan": np.tan}[fn](middle)
        # Absolute, not relative: near a zero the argument's reduction is what rounds.
        slope = (1.0 if fn != "tan" else 1.0 + value**2) * (reach + 1e-6 * np.abs(middle)) * 1.5
        far = (np.abs(middle) > 1e4) | (slope > 0.1)
        return Interval(np.where(far, np.nan, value - slope), np.where(far, np.nan, value + slope))
    near = np.zeros(np.shape(x.low), bool)
    for end in _ENDS.get(fn, ()):
        near = near | ((x.low <= end) & (x.high >= end) & (x.low != x.high))
    return Interval(np.where(near, np.nan, out.low), np.where(near, np.nan, out.high))


def _integers(fn: str, x: Interval, y: Interval, dtype: str) -> Interval:
    """Compute integers that are exactly known; of others anything the dtype holds is right."""
    known = (x.low == x.high) & (y.low == y.high)
    a, b = x.low, y.low
    if fn in ("truncdiv", "truncmod"):
        divisor = np.where(b == 0, 1, b)
        quotient = np.sign(a) * np.sign(divisor) * (np.abs(a) // np.abs(divisor))
        out = np.where(b == 0, 0, quotient if fn == "truncdiv" else a - quotient * divisor)
    else:
        out = {"bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor}[fn](a, b)
    info = np.iinfo(dtype) if dtype != "bool" else np.iinfo(np.int8)
    return Interval(np.where(known, out, info.min), np.where(known, out, info.max))
