"""Interval rules of scalar functions: bounds on the result from bounds on the arguments.

A monotone function maps both ends of the interval, a product or quotient maps the corners, and a periodic function also
maps its extrema; a condition that the interval does not decide gives both of its values. :func:`enclose_call` adds the
rounding of the function itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from roller.expr.evaluate import wrap_integers
from roller.expr.rounded_enclosures import EnclosedValues, enclosure_with_nan, integers_represent, round_enclosure
from roller.expr.scalar import FUNCTIONS
from roller_runtime.core.dtypes import is_float

_TRIGONOMETRIC = ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh")
#: Error in units in the last place: the worst among the libraries that our kernels call, plus one. CUDA's Programming
#: Guide ("Mathematical Functions") states 2 for exp, log, sin, cos, erf, tanh, atan and rsqrt, 3 for sinh, asinh and
#: atanh, 4 for tan, acosh and pow. The functions of :mod:`roller.templates.cpu.emit.mathlib` and the C library were
#: measured over 2**18 arguments from 1e-6 to 100: 2.4 for tanh and erf, below 1.5 for all others. A sigmoid divides by
#: a sum with an exponential, and a quotient may be a product with a rounded reciprocal.
ULPS = {
    **dict.fromkeys(("exp", "expm1", "log", "log1p", "tanh", "erf", "rsqrt", "pow", *_TRIGONOMETRIC), 5.0),
    "sigmoid": 6.0,
    "div": 2.0,
    "sqrt": 1.0,
}  # fmt: skip
#: Functions whose results are correctly rounded.
_ROUNDED = frozenset(("add", "sub", "mul"))
_INCREASING = ("exp", "expm1", "log", "log1p", "sqrt", "tanh", "sigmoid", "floor", "ceil", "trunc", "round", "sinh",
               "asin", "atan", "asinh", "acosh", "atanh")  # fmt: skip
_DECREASING = ("neg", "acos")

#: Functions whose result is known even for unbounded operands, and the function that returns one of its operands.
_ASKING = frozenset(("eq", "lt", "le", "isnan", "select"))
#: Conditions under which a zero argument gives an infinity whose sign is the sign of the zero.
_BY_ZERO: dict[str, Callable[..., Any]] = {
    "div": lambda a, b: (b == 0) & (a != 0),
    "rsqrt": lambda x: x == 0,
    "pow": lambda x, y: (x == 0) & (y < 0),
}

Rule = Callable[..., EnclosedValues]


def enclose_call(fn: str, args: Sequence[EnclosedValues], dtype: str, *, propagate_nan: bool = True) -> EnclosedValues:
    """Return bounds on a scalar function computed in ``dtype``; with ``propagate_nan``, an extremum with a NaN is NaN.

    Examples
    --------
    >>> x = EnclosedValues(np.array([2.0]), np.array([1.9]), np.array([2.1]))
    >>> half = enclose_call("floor", [x], "float32")
    >>> float(half.low[0]), float(half.high[0])
    (1.0, 2.0)
    >>> enclose_call("add", [EnclosedValues.point(np.array([1.0]))] * 2, "float32").high
    array([2.])
    """
    value = FUNCTIONS[fn].numpy(*(a.value for a in args))
    if not is_float(dtype) and fn not in _ASKING:
        value = wrap_integers(np.asarray(value), dtype)
    if all(a.is_point for a in args):
        out = EnclosedValues.point(value)
        if fn in _BY_ZERO:  # the sign of a zero depends on the order of additions and on underflow
            bad = _BY_ZERO[fn](*(a.value for a in args))
            out = _unbounded_where_unsure(~bad, out) if np.any(bad) else out
    else:
        out = _RULES[fn](value, *args)
        if fn not in _ASKING:
            out = _unbounded_where_operand_is(out, args)
            out = out if is_float(dtype) else _unbounded_where_unsure(integers_represent(dtype, out), out)
    if fn in ("max", "min"):
        out = _nan_where_operand_is(out, args) if propagate_nan else _unbounded_where_nan(out, args)
    if not is_float(dtype) or (fn not in ULPS and fn not in _ROUNDED):
        return out
    exactly = fn == "div" and bool(np.all(np.frexp(args[1].value)[0] == 0.5))  # its reciprocal is exact too
    return round_enclosure(out, dtype, 0.0 if exactly else ULPS.get(fn, 0.0))


def reduce_extremum(step: np.ufunc, body: EnclosedValues, *, propagate_nan: bool) -> EnclosedValues:
    """Reduce each row of ``(rows, terms)`` to its extremum: NaN if NaN propagates and a term is NaN.

    Examples
    --------
    >>> row = EnclosedValues.point(np.array([[1.0, np.nan]]))
    >>> ends = [reduce_extremum(np.maximum, row, propagate_nan=wins) for wins in (True, False)]
    >>> [(float(e.low[0]), float(e.high[0])) for e in ends]
    [(nan, nan), (-inf, inf)]
    """
    out = body.map(lambda a: step.reduce(a, axis=1))
    odd = np.isnan(body.value) | (False if body.is_point else body.unknown)
    if (body.is_point and propagate_nan) or not np.any(odd):
        return out
    sure = np.any(_is_certainly_nan(body), axis=1) & propagate_nan
    out = _unbounded_where_unsure(~np.any(odd, axis=1), out)
    return EnclosedValues(*(np.where(sure, np.nan, end) for end in (out.value, out.low, out.high)))


def enclosure_of_ends(value: Any, ends: Sequence[Any]) -> EnclosedValues:
    """Return the smallest enclosure of ``value`` and ``ends``, unbounded where some, but not all, of them are NaN."""
    low = high = value
    some = every = np.isnan(value)
    for e in ends:
        low, high = np.minimum(low, e), np.maximum(high, e)
        some, every = some | np.isnan(e), every & np.isnan(e)
    out = enclosure_with_nan(value, low, high)
    odd = some & ~every
    return _unbounded_where_unsure(~odd, out) if np.any(odd) else out


def _unbounded_where_operand_is(out: EnclosedValues, args: Sequence[EnclosedValues]) -> EnclosedValues:
    """Return ``out``, unbounded where an operand is unbounded, because that operand may be NaN."""
    odd: Any = False
    for a in args:
        odd = odd | (False if a.is_point else a.unknown)
    return _unbounded_where_unsure(~odd, out) if np.any(odd) else out


def _unbounded_where_unsure(sure: Any, e: EnclosedValues) -> EnclosedValues:
    """Return ``e`` where ``sure`` holds, and an unbounded result elsewhere."""
    return EnclosedValues(e.value, np.where(sure, e.low, -np.inf), np.where(sure, e.high, np.inf))


def _nan_where_operand_is(out: EnclosedValues, args: Sequence[EnclosedValues]) -> EnclosedValues:
    """Return ``out``, with NaN where an operand is certainly NaN."""
    if out.is_point:
        return out
    sure: Any = False
    for a in args:
        sure = sure | _is_certainly_nan(a)
    if not np.any(sure):
        return out
    return EnclosedValues(*(np.where(sure, np.nan, end) for end in (out.value, out.low, out.high)))


def _unbounded_where_nan(out: EnclosedValues, args: Sequence[EnclosedValues]) -> EnclosedValues:
    """Return ``out``, unbounded where an operand may be NaN, which the extremum may return or ignore."""
    odd: Any = False
    for a in args:
        odd = odd | np.isnan(a.value) | (False if a.is_point else a.unknown)
    return _unbounded_where_unsure(~odd, out) if np.any(odd) else out


def _monotone_rule(fn: str) -> Rule:
    f, falls = FUNCTIONS[fn].numpy, fn in _DECREASING

    def rule(value: Any, x: EnclosedValues) -> EnclosedValues:
        low, high = f(x.low), f(x.high)
        return enclosure_with_nan(value, *((high, low) if falls else (low, high)))

    return rule


def _rsqrt(value: Any, x: EnclosedValues) -> EnclosedValues:
    return _unbounded_where_unsure(
        (x.low > 0) | (x.high < 0), enclosure_with_nan(value, 1 / np.sqrt(x.high), 1 / np.sqrt(x.low))
    )


def _increasing_rule(fn: str) -> Rule:
    """Return the rule for a function that increases in both operands."""
    f = FUNCTIONS[fn].numpy
    return lambda value, a, b: enclosure_with_nan(value, f(a.low, b.low), f(a.high, b.high))


def _sub(value: Any, a: EnclosedValues, b: EnclosedValues) -> EnclosedValues:
    return enclosure_with_nan(value, a.low - b.high, a.high - b.low)


def _mul(value: Any, a: EnclosedValues, b: EnclosedValues) -> EnclosedValues:
    ends = [x * y for x in _ends_of_enclosure(a) for y in _ends_of_enclosure(b)]
    return enclosure_of_ends(value, ends)


def _div(value: Any, a: EnclosedValues, b: EnclosedValues) -> EnclosedValues:
    ends = [x / y for x in _ends_of_enclosure(a) for y in _ends_of_enclosure(b)]
    through = (b.low <= 0) & (b.high >= 0)
    return _unbounded_where_unsure(~through, enclosure_of_ends(value, ends))


def _ends_of_enclosure(e: EnclosedValues) -> tuple[Any, ...]:
    return (e.value,) if e.is_point else (e.low, e.high)


def _abs(value: Any, x: EnclosedValues) -> EnclosedValues:
    low = np.maximum(np.maximum(x.low, -x.high), 0)
    return enclosure_with_nan(value, low, np.maximum(np.abs(x.low), np.abs(x.high)))


def _cosh(value: Any, x: EnclosedValues) -> EnclosedValues:
    size = _abs(np.abs(x.value), x)
    return enclosure_with_nan(value, np.cosh(size.low), np.cosh(size.high))


def _erf(value: Any, x: EnclosedValues) -> EnclosedValues:
    # The slope is steepest nearest to zero; calling math.erf at both ends would triple the time.
    nearest = _abs(np.abs(x.value), x).low
    slope = 2 / np.sqrt(np.pi) * np.exp(-nearest * nearest)
    low, high = value - slope * (x.value - x.low), value + slope * (x.high - x.value)
    return enclosure_with_nan(value, np.maximum(low, -1.0), np.minimum(high, 1.0))


def _periodic_rule(fn: str, peak: float) -> Rule:
    """Return the rule for sine or cosine, whose maxima lie at ``peak`` plus multiples of the period."""
    f = FUNCTIONS[fn].numpy

    def passes(x: EnclosedValues, at: float) -> Any:
        return np.floor((x.high - at) / (2 * np.pi)) != np.floor((x.low - at) / (2 * np.pi))

    def rule(value: Any, x: EnclosedValues) -> EnclosedValues:
        out = enclosure_of_ends(value, [f(x.low), f(x.high)])
        low = np.where(passes(x, peak + np.pi), -1.0, out.low)
        out = enclosure_with_nan(value, low, np.where(passes(x, peak), 1.0, out.high))
        return _unbounded_where_unsure(np.isfinite(x.low) & np.isfinite(x.high), out)

    return rule


def _tan(value: Any, x: EnclosedValues) -> EnclosedValues:
    same = np.floor(x.low / np.pi + 0.5) == np.floor(x.high / np.pi + 0.5)
    return _unbounded_where_unsure(same, enclosure_with_nan(value, np.tan(x.low), np.tan(x.high)))


def _pow(value: Any, x: EnclosedValues, y: EnclosedValues) -> EnclosedValues:
    out = enclosure_of_ends(value, [np.power(a, b) for a in _ends_of_enclosure(x) for b in _ends_of_enclosure(y)])
    through = (x.low <= 0) & (x.high >= 0)
    whole = (y.low == y.high) & (np.floor(y.value) == y.value) & ((y.value >= 0) | ~through)
    # An interval through zero: an even power has its minimum at zero; a negative base needs a whole exponent.
    out = EnclosedValues(
        value, np.where(through, np.minimum(out.low, np.where(y.value == 0, 1.0, 0.0)), out.low), out.high
    )
    # One to any power, and any base to the power of zero, is one, for NaN too.
    lost = (np.isnan(y.value) & (x.low <= 1) & (x.high >= 1)) | (np.isnan(x.value) & (y.low <= 0) & (y.high >= 0))
    passing = (y.low != y.high) & (np.ceil(y.low) <= np.floor(y.high))  # contains a whole exponent
    return _unbounded_where_unsure((whole | (x.low > 0) | (np.isnan(value) & ~passing)) & ~lost, out)


def _fmod(value: Any, a: EnclosedValues, b: EnclosedValues) -> EnclosedValues:
    quotient = _div(a.value / b.value, a, b)
    same = (np.trunc(quotient.low) == np.trunc(quotient.high)) & (a.low * a.high >= 0)
    turns = np.trunc(quotient.value)
    moved = np.abs(a.high - a.low) + np.abs(turns) * np.abs(b.high - b.low)
    reach = np.maximum(np.abs(b.low), np.abs(b.high))
    low, high = np.where(a.low < 0, -reach, 0.0), np.where(a.high > 0, reach, 0.0)
    out = enclosure_with_nan(value, np.where(same, value - moved, low), np.where(same, value + moved, high))
    return _unbounded_where_unsure(np.isfinite(a.low) & np.isfinite(a.high) & ((b.low > 0) | (b.high < 0)), out)


def _comparison_rule(sure: Callable[[EnclosedValues, EnclosedValues], tuple[Any, Any]]) -> Rule:
    """Return the rule for a comparison; ``sure`` returns where it certainly holds and where it certainly fails."""

    def rule(value: Any, a: EnclosedValues, b: EnclosedValues) -> EnclosedValues:
        yes, no = sure(a, b)
        never = _is_certainly_nan(a) | _is_certainly_nan(b)
        yes, no = yes & ~never, no | never
        return EnclosedValues(value, yes.astype(np.int64), (~no).astype(np.int64))

    return rule


def _is_certainly_nan(e: EnclosedValues) -> Any:
    return np.isnan(e.low) & np.isnan(e.high)


def _isnan(value: Any, x: EnclosedValues) -> EnclosedValues:
    low = np.asarray(_is_certainly_nan(x)).astype(np.int64)
    return EnclosedValues(value, low, np.asarray(_is_certainly_nan(x) | x.unknown).astype(np.int64))


def _select(value: Any, condition: EnclosedValues, yes: EnclosedValues, no: EnclosedValues) -> EnclosedValues:
    c = np.asarray(condition.value).astype(bool)
    low, high = np.where(c, yes.low, no.low), np.where(c, yes.high, no.high)
    open_ = np.asarray(condition.low) != np.asarray(condition.high)
    if not np.any(open_):
        return enclosure_with_nan(value, low, high)
    both = enclosure_of_ends(value, [yes.low, yes.high, no.low, no.high])
    return EnclosedValues(value, np.where(open_, both.low, low), np.where(open_, both.high, high))


def _integer_bits_rule(value: Any, *args: EnclosedValues) -> EnclosedValues:
    """Return unbounded results for integer and bit operations unless every operand is exactly known."""
    same: Any = True
    for a in args:
        same = same & (a.low == a.high)
    return _unbounded_where_unsure(np.broadcast_to(same, np.shape(value)), EnclosedValues.point(value))


_RULES: dict[str, Rule] = {
    **{f: _monotone_rule(f) for f in (*_INCREASING, *_DECREASING)},
    **{f: _increasing_rule(f) for f in ("add", "max", "min")},
    "sub": _sub,
    "rsqrt": _rsqrt,
    "mul": _mul,
    "div": _div,
    "abs": _abs,
    "cosh": _cosh,
    "erf": _erf,
    "sin": _periodic_rule("sin", np.pi / 2),
    "cos": _periodic_rule("cos", 0.0),
    "tan": _tan,
    "pow": _pow,
    "fmod": _fmod,
    "eq": _comparison_rule(lambda a, b: ((a.low == a.high) & (b.low == b.high) & (a.low == b.low),
                                  (a.high < b.low) | (b.high < a.low))),
    "lt": _comparison_rule(lambda a, b: (a.high < b.low, a.low >= b.high)),
    "le": _comparison_rule(lambda a, b: (a.high <= b.low, a.low > b.high)),
    "isnan": _isnan,
    "select": _select,
    **dict.fromkeys(("idiv", "imod", "bitand", "bitor", "bitxor", "shl", "shr"), _integer_bits_rule),
}  # fmt: skip
