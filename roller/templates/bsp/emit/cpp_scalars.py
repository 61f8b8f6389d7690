"""Scalar trees as C++ code for a worker, which reads its unit's copies of tensors."""

from __future__ import annotations

import math
from collections.abc import Callable

from roller.errors import BuildError
from roller.expr import Index, Scalar, TensorExpr
from roller.expr.evaluate import constant_in_dtype
from roller.expr.rounded_enclosures import dtype_of_call
from roller.expr.scalar import Cast, Const, IndexValue, Load
from roller.tile.superstep_schedule import codelet_name

#: C++ type of each dtype in which a unit computes.
TYPES = {
    "float16": "half", "float32": "float", "float64": "double", "int8": "int8_t", "uint8": "uint8_t",
    "int16": "int16_t", "uint16": "uint16_t", "int32": "int32_t", "uint32": "uint32_t", "int64": "int64_t",
    "uint64": "uint64_t", "bool": "bool",
}  # fmt: skip
_INFIX = {"add": "+", "sub": "-", "mul": "*", "eq": "==", "lt": "<", "le": "<=", "bitand": "&", "bitor": "|",
          "bitxor": "^", "shl": "<<", "shr": ">>"}  # fmt: skip
#: Names of the prelude's function templates, by scalar function.
_OWN = {"max": "largest", "min": "smallest", "idiv": "quotient", "imod": "remainder",
        "rsqrt": "inverse_root", "sigmoid": "logistic", "abs": "magnitude", "round": "nearest"}  # fmt: skip
_MATH = ("exp", "expm1", "log", "log1p", "sqrt", "tanh", "erf", "pow", "floor", "ceil", "trunc", "sin", "cos", "tan",
         "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "fmod")  # fmt: skip
PRELUDE = """\
#include <poplar/Vertex.hpp>
#include <cmath>
#include <cstdint>

namespace {
static inline int least(int a, int b) { return a < b ? a : b; }
template <class T> T largest(T a, T b) { return a > b || a != a ? a : b; }
template <class T> T smallest(T a, T b) { return a < b || a != a ? a : b; }
template <class T> T quotient(T a, T b) { return b == 0 ? T(0) : T(a / b); }
template <class T> T remainder(T a, T b) { return b == 0 ? T(0) : T(a % b); }
template <class T> T magnitude(T a) { return a < T(0) ? T(-a) : a; }
template <class T> T inverse_root(T a) { return T(1) / std::sqrt(a); }
template <class T> T nearest(T a) { return std::nearbyint(a); }
template <class T> T logistic(T a) {
  const T e = std::exp(a < T(0) ? a : -a);
  return (a < T(0) ? e : T(1)) / (T(1) + e);
}
}  // namespace
"""


def cpp_type(dtype: str, where: str) -> str:
    """Return the C++ type of a dtype."""
    if dtype not in TYPES:
        raise BuildError(f"{where}: expected a dtype of {sorted(TYPES)}, got '{dtype}'. Convert the tensors.")
    return TYPES[dtype]


class ScalarPrinter:
    """Prints the scalar trees of an expression; ``place(tensor, index)`` returns the offset in the unit's copy."""

    def __init__(self, expr: TensorExpr, place: Callable[[str, tuple[Index, ...]], str]) -> None:
        self.expr, self.place = expr, place

    def scalar(self, node: Scalar) -> tuple[str, str]:
        """Return a tree as C++ code, and the dtype of its value."""
        if isinstance(node, Const):
            return cpp_literal(node.value, node.dtype), node.dtype
        if isinstance(node, IndexValue):
            return f"{self._type(node.dtype)}({cpp_index(node.index)})", node.dtype
        if isinstance(node, Load):
            return self._load(node)
        if isinstance(node, Cast):
            code, _ = self.scalar(node.arg)
            return (f"({code} != 0)" if node.dtype == "bool" else f"{self._type(node.dtype)}({code})"), node.dtype
        args, kinds = zip(*(self.scalar(a) for a in node.args), strict=True)
        dtype = dtype_of_call(node.fn, kinds)
        return self._call(node.fn, args, kinds, dtype), dtype

    def _type(self, dtype: str) -> str:
        return cpp_type(dtype, self.expr.name)

    def _load(self, node: Load) -> tuple[str, str]:
        dtype = self.expr.tensors[node.tensor].dtype
        code = f"{self._type(dtype)}(t_{codelet_name(node.tensor)}[{self.place(node.tensor, node.index)}])"
        if not node.guard:
            return code, dtype
        tests = [f"{cpp_index(b.index)} >= {b.low} && {cpp_index(b.index)} < {b.high}" for b in node.guard]
        return f"({' && '.join(tests)} ? {code} : {cpp_literal(node.outside, dtype)})", dtype

    def _call(self, fn: str, args: tuple[str, ...], kinds: tuple[str, ...], dtype: str) -> str:
        if fn == "select":
            chosen = [f"{self._type(dtype)}({a})" for a in args[1:]]
            return f"({args[0]} ? {chosen[0]} : {chosen[1]})"
        if fn == "isnan":
            return f"({args[0]} != {args[0]})"
        wide = kinds[0] if dtype == "bool" else dtype
        for k in kinds[1:] if dtype == "bool" else ():
            wide = dtype_of_call("add", [wide, k])
        own = self._type(wide)
        given = [f"{own}({a})" for a in args]
        if fn in _INFIX:
            made = f"({given[0]} {_INFIX[fn]} {given[1]})"
        elif fn == "div":
            made = f"({given[0]} / {given[1]})"
        elif fn == "neg":
            made = f"(-{given[0]})"
        elif fn in _OWN or fn in _MATH:
            # Functions of half-precision values are computed in single precision and rounded.
            single = "float" if wide == "float16" and fn not in ("max", "min", "abs") else own
            name = f"{_OWN[fn]}<{single}>" if fn in _OWN else f"std::{fn}"
            made = f"{name}({', '.join(f'{single}({a})' for a in given)})"
        else:
            raise BuildError(f"{self.expr.name}: expected a function of codelets, got '{fn}'. Use another one.")
        return made if dtype == "bool" else f"{self._type(dtype)}({made})"


def cpp_literal(value: float, dtype: str) -> str:
    """Return ``value`` as a C++ literal of a dtype.

    Examples
    --------
    >>> cpp_literal(0.5, "float32"), cpp_literal(float("-inf"), "int8")
    ('float(0.5)', 'int8_t(-128)')
    """
    exact = float(constant_in_dtype(value, dtype)) if "float" in dtype else int(constant_in_dtype(value, dtype))
    if isinstance(exact, float) and not math.isfinite(exact):
        text = "NAN" if math.isnan(exact) else "HUGE_VAL" if exact > 0 else "-HUGE_VAL"
    else:
        text = f"{exact!r}" + ("u" * (exact > 2**31 - 1) + "ll" if abs(exact) >= 2**31 and dtype[-2:] == "64" else "")
    return f"{TYPES[dtype]}({text})"


def cpp_index(i: Index) -> str:
    """Return an index as a C++ expression over the axes' identifiers.

    Examples
    --------
    >>> from roller.expr.scalar import Term
    >>> cpp_index(Index((Term("x", 2), Term("y", 1, 4, 3)), -1))
    '(2 * x_x + x_y / 4 % 3 - 1)'
    """
    words = []
    for t in i.terms:
        axis = axis_identifier(t.axis) + (f" / {t.div}" if t.div != 1 else "") + (f" % {t.mod}" if t.mod else "")
        axis = f"({axis})" if not t.is_affine and t.coef != 1 else axis
        words.append(axis if t.coef == 1 else f"{t.coef} * {axis}")
    text = " + ".join(words)
    if i.const or not words:
        text = f"{text} {'-' if i.const < 0 else '+'} {abs(i.const)}" if words else str(i.const)
    return f"({text})"


def axis_identifier(axis: str) -> str:
    """Return a C++ identifier for an axis; names of fused axes contain symbols, and no name may be a keyword.

    Examples
    --------
    >>> axis_identifier("ho*wo")
    'x_ho_2a_wo'
    """
    return "x_" + codelet_name(axis)
