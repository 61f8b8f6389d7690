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
from roller.templates.cpu.emit.tir_loop_constructors import Stmt

_LOG2E = math.log2(math.e)
#: ``ln 2`` in two parts (Cody and Waite); the first has few enough bits that ``n * part`` is exact.
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
#: Minimax polynomial of ``(exp(r) - 1) / r`` on ``|r| <= ln(2) / 2`` for the relative error of ``exp(r)`` (Remez
#: exchange, coefficients rounded to float32 one after another). That error is 3.3e-9, a twentieth of half an ulp.
_EXP = (0.0013838324, 0.0083691655, 0.041668102, 0.16666517, 0.49999994, 1.0)
#: 1.5 * 2^23, whose addition rounds numbers below 2^22 to integers, and the exponent bits of 2^0.
_WHOLE, _BIAS = 12582912.0, 127.0
#: Smallest argument whose exponential is a normal float32, and largest whose exponential does not overflow.
_EXP_LOW, _EXP_HIGH = -87.33654, 88.72283
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
        if name in _LIBRARY:
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


def _exp(x: Expr) -> Expr:
    """Return ``exp(x) = 2^n exp(r)`` with ``x = n ln 2 + r``; subnormal results are flushed to zero."""

    # Adding 1.5 * 2^23 rounds ``x / ln 2`` to an integer, whose two's complement is in the last bits of the sum;
    # shifted, they are added to the exponent of ``exp(r)``. Arguments without a normal result give an unusable value
    # that is not selected, so no argument is clipped.
    def result(v: Expr, shifted: Expr, r: Expr) -> Expr:
        mantissa = _polynomial(r, _EXP) * r + _float32_literal(1.0)
        raised = tirx.reinterpret("int32", mantissa) + (tirx.reinterpret("int32", shifted) << 23)
        # NaN fails every comparison and stays NaN.
        normal = tirx.Select(
            v <= _float32_literal(_EXP_HIGH), tirx.reinterpret("float32", raised), v + _float32_literal(math.inf)
        )
        return tirx.Select(v < _float32_literal(_EXP_LOW), _float32_literal(0.0), normal)

    return _reduce_exp_argument(x, _WHOLE, result)


def exp_of_nonpositive(x: Expr) -> Expr:
    """Return ``exp(x)`` for arguments that are at most zero, or NaN, without a check for overflow."""

    # The rounding sum includes the bias of the exponent, so its last bits, shifted, are ``2^n``; times NaN it is NaN.
    def scaled(v: Expr, r: Expr, power: Expr) -> Expr:
        return tirx.Select(
            v < _float32_literal(_EXP_LOW), _float32_literal(0.0), _polynomial(r, _EXP) * (r * power) + power
        )

    def result(v: Expr, shifted: Expr, r: Expr) -> Expr:
        power = tirx.reinterpret("float32", tirx.reinterpret("int32", shifted) << 23)
        return _let_expression(power, "exp_p", lambda p: scaled(v, r, p))

    return _reduce_exp_argument(x, _WHOLE + _BIAS, result)


def _reduce_exp_argument(x: Expr, whole: float, result: Callable[[Expr, Expr, Expr], Expr]) -> Expr:
    """Return ``result(x, sum, r)`` for the reduced argument ``r``; the last bits of the sum are ``n``."""

    def reduced(v: Expr, shifted: Expr) -> Expr:
        return _let_expression(
            shifted - _float32_literal(whole), "exp_n",
            lambda n: _let_expression(v - n * _float32_literal(_LN2_HIGH) - n * _float32_literal(_LN2_LOW), "exp_r",
                                      lambda r: result(v, shifted, r)),
        )  # fmt: skip

    return _let_expression(
        x,
        "exp_v",
        lambda v: _let_expression(
            v * _float32_literal(_LOG2E) + _float32_literal(whole), "exp_s", lambda s: reduced(v, s)
        ),
    )


def _sigmoid(x: Expr) -> Expr:
    return _float32_literal(1.0) / (_float32_literal(1.0) + _exp(-x))


def _odd_rational_function(limit: float, p: Sequence[float], q: Sequence[float]) -> Callable[[Expr], Expr]:
    """Return the odd function ``x p(x^2) / q(x^2)``, 1 and -1 beyond ``limit``; NaN stays NaN."""

    def apply(x: Expr) -> Expr:
        def value(v: Expr) -> Expr:
            # Beyond the limit, the quotient may overflow but is not selected, so the argument is not clipped.
            inside = _let_expression(v * v, "odd_s", lambda s: v * _polynomial(s, p) / _polynomial(s, q))
            return tirx.Select(
                v > _float32_literal(limit),
                _float32_literal(1.0),
                tirx.Select(v < _float32_literal(-limit), _float32_literal(-1.0), inside),
            )

        return _let_expression(x, "odd_v", value)

    return apply


#: C functions for the functions that TVM does not lower, or lowers to a formula that loses digits near zero.
_LIBRARY = {f"tirx.{n}": n for n in ("sinh", "cosh", "atanh", "fmod")}

_REPLACEMENTS: dict[str, Callable[[Expr], Expr]] = {
    "tirx.exp": _exp,
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
