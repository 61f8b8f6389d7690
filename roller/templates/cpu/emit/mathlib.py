"""Transcendental functions as vectorizable float32 arithmetic, accurate to a few ulp.

LLVM turns a vector ``exp`` into one library call per lane; this arithmetic vectorizes and keeps infinities and NaN.
float64 keeps the library's functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from roller.te.compat import dtype_of, structural_map, tirx, tvm
from roller.te.emit_tvm_expressions import Expr
from roller.te.functions_near_zero import C_FUNCTIONS
from roller.templates.cpu.emit.tir_loop_constructors import Stmt

_LOG2E = math.log2(math.e)
#: ``ln 2`` in two parts (Cody and Waite); the first has few enough bits that ``n * part`` is exact.
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
#: Minimax polynomial of ``(exp(r) - 1) / r`` on ``|r| <= ln(2) / 2`` for the relative error of ``exp(r)`` (Remez
#: exchange, coefficients rounded to float32 one after another). That error is 3.3e-9, a twentieth of half an ulp.
_EXP = (0.0013838324, 0.0083691655, 0.041668102, 0.16666517, 0.49999994, 1.0)
#: 1.5 * 2^23, whose addition rounds numbers below 2^22 to integers, and the exponent bits of 2^0.
_WHOLE, _BIAS = 12582912.0, 127.0
#: Arguments that are clipped to these have the exponentials zero and infinity, or round ``exp(x) - 1`` to -1.
_EXP_LOW, _EXP_HIGH, _EXPM1_LOW = -104.0, 89.0, -20.0
#: Factor with which the exponentials of the smallest arguments are normal numbers.
_RAISED = 2.0**32
_EXPONENT_BITS, _SIGNIFICAND_BITS = 0x7F800000, 23
#: ``(log(1 + f) - f + f^2 / 2) / f^3`` on ``sqrt(1/2) - 1 <= f <= sqrt(2) - 1`` (Cephes, ``logf``), and the bits of 1
#: and of ``sqrt(1/2)``.
_LOG = (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
        2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1)  # fmt: skip
_ONE_BITS, _ROOT_HALF_BITS = 0x3F800000, 0x3F3504F3
#: Rational approximation of tanh on [-7.9, 7.9], with odd numerator and even denominator (Eigen's).
_TANH_LIMIT = 7.90531110763549805
_TANH_P = (-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08,
           1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03)  # fmt: skip
_TANH_Q = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
#: Rational approximation of erf on [-4, 4] (Eigen's).
_ERF_LIMIT = 4.0
_ERF_P = (-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
          -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02)  # fmt: skip
_ERF_Q = (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
          -1.42647390514189e-02)  # fmt: skip


def replace_math_library_calls(body: Stmt) -> Stmt:
    """Return ``body`` with the float32 functions of this module in place of library calls."""

    def replace(call: Any) -> Any:
        name = getattr(call.op, "name", "")
        if name not in _FUNCTIONS:
            return call  # addresses, for example, have no dtype
        dtype = dtype_of(call)
        if name in _LIBRARY and not (name in _REPLACEMENTS and dtype == "float32"):
            wide, suffix = (dtype, "") if dtype == "float64" else ("float32", "f")
            args = (a.astype(wide) for a in call.args)
            return tirx.call_pure_extern(wide, _LIBRARY[name] + suffix, *args).astype(dtype)
        if name == "tirx.tanh" and dtype == "float64":
            # TVM's own expansion subtracts exponentials and loses all digits near zero.
            return tirx.call_pure_extern(dtype, "tanh", call.args[0])
        fn = _REPLACEMENTS.get(name)
        return fn(call.args[0]) if fn is not None and dtype == "float32" else call

    return structural_map(body, (tvm.ir.Call, replace))


def _float32_literal(value: float) -> Expr:
    return tirx.const(value, "float32")


def _let_expression(value: Expr, name: str, body: Callable[[Expr], Expr]) -> Expr:
    """Return ``body(name)`` with ``value`` computed once."""
    var = tirx.Var(name, dtype_of(value))
    return tirx.Let(var, value, body(var))


def _polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    total = _float32_literal(coefficients[0])
    for c in coefficients[1:]:
        total = total * x + _float32_literal(c)
    return total


def _float_of_bits(bits: Expr) -> Expr:
    return tirx.reinterpret("float32", bits)


def _bits_of_float(x: Expr) -> Expr:
    return tirx.reinterpret("int32", x)


def _at_least(low: float, x: Expr) -> Expr:
    return tirx.Select(x < _float32_literal(low), _float32_literal(low), x)  # NaN stays NaN


def _at_most(high: float, x: Expr) -> Expr:
    return tirx.Select(x > _float32_literal(high), _float32_literal(high), x)


def _exp(x: Expr) -> Expr:
    """Return ``exp(x) = 2^n exp(r)`` with ``x = n ln 2 + r``; subnormal results are rounded once more."""

    # Adding 1.5 * 2^23 rounds ``x / ln 2`` to an integer, whose two's complement is in the last bits of the sum. The
    # exponents of normal and subnormal results do not fit in one power of two: the sum includes two biases, and each
    # of two powers gets half of it.
    def result(_: Expr, shifted: Expr, r: Expr) -> Expr:
        bits = _bits_of_float(shifted)
        half = (bits << (_SIGNIFICAND_BITS - 1)) & tirx.const(_EXPONENT_BITS, "int32")
        return _let_expression(half, "exp_h", lambda h: scaled(r, _float_of_bits(h), (bits << _SIGNIFICAND_BITS) - h))

    def scaled(r: Expr, power: Expr, rest: Expr) -> Expr:
        return _let_expression(power, "exp_p", lambda p: (_polynomial(r, _EXP) * (r * p) + p) * _float_of_bits(rest))

    return _reduce_exp_argument(x, _EXP_LOW, _EXP_HIGH, _WHOLE + 2 * _BIAS, result)


def exp_of_nonpositive(x: Expr, *, raised: bool = False) -> Expr:
    """Return ``exp(x)``, or its product with a power of two, for arguments that are at most zero, or NaN."""
    return _use_raised_exp(x, lambda e: e if raised else e * _float32_literal(1 / _RAISED))


def _use_raised_exp(x: Expr, use: Callable[[Expr], Expr]) -> Expr:
    """Return ``use(_RAISED * exp(x))`` for arguments that are at most zero, or NaN."""

    # The rounding sum includes the bias of the exponent, so its last bits, shifted, are a power of two; times NaN it is
    # NaN.
    def result(_: Expr, shifted: Expr, r: Expr) -> Expr:
        power = _float_of_bits(_bits_of_float(shifted) << _SIGNIFICAND_BITS)
        return _let_expression(power, "exp_p", lambda p: use(_polynomial(r, _EXP) * (r * p) + p))

    return _reduce_exp_argument(x, _EXP_LOW, None, _WHOLE + _BIAS + math.log2(_RAISED), result)


def _expm1(x: Expr) -> Expr:
    """Return ``exp(x) - 1 = 2^n (exp(r) - 1) + (2^n - 1)``."""

    # The power is half of ``2^n``, which overflows for the largest results. The sum loses the sign of zero.
    def result(v: Expr, shifted: Expr, r: Expr) -> Expr:
        power = _float_of_bits(_bits_of_float(shifted) << _SIGNIFICAND_BITS)
        return _let_expression(power, "exp_p", lambda p: scaled(v, r, p))

    def scaled(v: Expr, r: Expr, p: Expr) -> Expr:
        less = _polynomial(r, _EXP) * (r * p) + (p - _float32_literal(0.5))
        return tirx.call_llvm_pure_intrin("float32", "llvm.copysign", less * _float32_literal(2.0), v)

    return _reduce_exp_argument(x, _EXPM1_LOW, _EXP_HIGH, _WHOLE + _BIAS - 1.0, result)


def _reduce_exp_argument(
    x: Expr, low: float, high: float | None, whole: float, result: Callable[[Expr, Expr, Expr], Expr]
) -> Expr:
    """Return ``result(v, sum, r)`` for the clipped argument ``v = n ln 2 + r``; the last bits of the sum are ``n``."""

    def reduced(v: Expr, shifted: Expr) -> Expr:
        return _let_expression(
            shifted - _float32_literal(whole), "exp_n",
            lambda n: _let_expression(v - n * _float32_literal(_LN2_HIGH) - n * _float32_literal(_LN2_LOW), "exp_r",
                                      lambda r: result(v, shifted, r)),
        )  # fmt: skip

    def rounded(v: Expr) -> Expr:
        return _let_expression(v * _float32_literal(_LOG2E) + _float32_literal(whole), "exp_s", lambda s: reduced(v, s))

    def clipped(v: Expr) -> Expr:
        return _let_expression(_at_least(low, v), "exp_v", rounded)

    if high is None:
        return _let_expression(x, "exp_x", clipped)
    return _let_expression(x, "exp_x", lambda v: _let_expression(_at_most(high, v), "exp_u", clipped))


def _sigmoid(x: Expr) -> Expr:
    """Return ``1 / (1 + e)``, or ``e / (1 + e)`` for negative ``x``, with ``e = exp(-|x|)``, which cannot overflow."""

    def of_power(v: Expr, e: Expr) -> Expr:
        one = _float32_literal(_RAISED)
        return tirx.Select(v < _float32_literal(0.0), e, one) / (one + e)

    def of_argument(v: Expr) -> Expr:
        return _use_raised_exp(-tirx.abs(v), lambda e: _let_expression(e, "sig_e", lambda e: of_power(v, e)))

    return _let_expression(x, "sig_v", of_argument)


def _log1p(x: Expr) -> Expr:
    """Return ``log(1 + x) = e ln 2 + log(1 + f)`` with ``1 + x = 2^e (1 + f)``."""

    def value(v: Expr) -> Expr:
        return _let_expression(v + _float32_literal(1.0), "log_u", lambda u: of_sum(v, u))

    def of_sum(v: Expr, u: Expr) -> Expr:
        exponent = (_bits_of_float(u) - tirx.const(_ROOT_HALF_BITS, "int32")) & tirx.const(
            -(1 << _SIGNIFICAND_BITS), "int32"
        )
        return _let_expression(exponent, "log_e", lambda e: of_exponent(v, u, e))

    def of_exponent(v: Expr, u: Expr, e: Expr) -> Expr:
        # The sum's rounding error matters only for small exponents; the scale of larger ones is no normal number.
        lost = v - (u - _float32_literal(1.0))
        small = tirx.min(e, tirx.const(64 << _SIGNIFICAND_BITS, "int32"))
        scale = _float_of_bits(tirx.const(_ONE_BITS, "int32") - small)
        fraction = _float_of_bits(_bits_of_float(u) - e) - _float32_literal(1.0)
        n = (e >> _SIGNIFICAND_BITS).astype("float32")
        return _let_expression(
            n, "log_n", lambda n: _let_expression(lost * scale + fraction, "log_f", lambda f: of_fraction(v, n, f))
        )

    def of_fraction(v: Expr, n: Expr, f: Expr) -> Expr:
        square = f * f
        tail = _polynomial(f, _LOG) * f * square + n * _float32_literal(_LN2_LOW) - square * _float32_literal(0.5)
        inside = tail + f + n * _float32_literal(_LN2_HIGH)
        pole = tirx.Select(v.equal(_float32_literal(-1.0)), _float32_literal(-math.inf), _float32_literal(math.nan))
        finite = tirx.Select(v < _float32_literal(math.inf), inside, v)
        outside = tirx.Select(v > _float32_literal(-1.0), finite, pole)
        return tirx.Select(tirx.abs(v) < _float32_literal(2.0**-25), v, outside)  # keeps the sign of zero

    return _let_expression(x, "log_v", value)


def _odd_rational_function(limit: float, p: Sequence[float], q: Sequence[float]) -> Callable[[Expr], Expr]:
    """Return the odd function ``x p(x^2) / q(x^2)``, 1 and -1 beyond ``limit``; NaN stays NaN."""

    def apply(x: Expr) -> Expr:
        def value(v: Expr) -> Expr:
            # Beyond the limit, the quotient may overflow but is not selected, so the argument is not clipped.
            # The quotient first: ``v * p`` would lose the digits of the smallest numbers.
            inside = _let_expression(v * v, "odd_s", lambda s: v * (_polynomial(s, p) / _polynomial(s, q)))
            return tirx.Select(
                v > _float32_literal(limit),
                _float32_literal(1.0),
                tirx.Select(v < _float32_literal(-limit), _float32_literal(-1.0), inside),
            )

        return _let_expression(x, "odd_v", value)

    return apply


#: C functions for the functions that TVM does not lower, or lowers to a formula that loses digits near zero.
_LIBRARY = {**{f"tirx.{n}": n for n in ("sinh", "cosh", "atanh", "fmod")}, **C_FUNCTIONS}

_REPLACEMENTS: dict[str, Callable[[Expr], Expr]] = {
    "tirx.exp": _exp,
    "roller.expm1": _expm1,
    "roller.log1p": _log1p,
    "tirx.sigmoid": _sigmoid,
    "tirx.tanh": _odd_rational_function(_TANH_LIMIT, _TANH_P, _TANH_Q),
    "tirx.erf": _odd_rational_function(_ERF_LIMIT, _ERF_P, _ERF_Q),
    # TVM emits these one lane at a time; LLVM's rounding is an instruction, and the other function is LLVM's own
    # expansion.
    "tirx.nearbyint": lambda x: tirx.call_llvm_pure_intrin("float32", "llvm.nearbyint", x),
    "tirx.rsqrt": lambda x: _float32_literal(1.0) / tirx.sqrt(x),
}

#: Functions that may be computed differently than by TVM.
_FUNCTIONS = frozenset(_REPLACEMENTS) | frozenset(_LIBRARY) | {
    f"tirx.{n}" for n in ("sin", "cos", "tan", "asin", "acos", "atan", "asinh", "acosh", "log", "sqrt", "pow")
}  # fmt: skip
