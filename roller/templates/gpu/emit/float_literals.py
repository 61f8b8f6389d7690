"""Floating-point literals that survive printing.

TVM prints a float64 in a CUDA kernel with 15 decimals and no exponent: 1/77 loses three digits, and 1e-20 becomes zero.
Such literals become calls with their bits after all other passes, and then hexadecimal literals in the source.
Infinities and NaN of bfloat16, which TVM prints as ``inff`` and ``nanf``, are converted from float32.
"""

from __future__ import annotations

import math
import re
import struct
from typing import Any

from roller.te.compat import dtype_of, structural_map, tirx, tvm

_OF_BITS = "__longlong_as_double"


def prints_exactly(value: float) -> bool:
    """Return whether TVM's text of a float64 reads back as the same number.

    Examples
    --------
    >>> prints_exactly(0.5), prints_exactly(1 / 77), prints_exactly(1e-20), prints_exactly(float("inf"))
    (True, False, False, True)
    """
    return not math.isfinite(value) or float(f"{value:.15f}") == value


def replace_inexact_literals(module: Any) -> Any:
    """Return a device module whose floating-point literals are printed without loss."""

    def exact(literal: Any) -> Any:
        dtype, value = dtype_of(literal), float(literal.value)
        if dtype == "bfloat16" and not math.isfinite(value):
            return tirx.Cast(dtype, tirx.const(value, "float32"))
        if dtype != "float64" or prints_exactly(value):
            return literal
        (bits,) = struct.unpack("<q", struct.pack("<d", value))
        return tirx.call_pure_extern("float64", _OF_BITS, tirx.const(bits, "int64"))

    functions = {}
    for name, function in module.functions.items():
        body = structural_map(function.body, (tirx.FloatImm, exact))
        functions[name] = function if body.same_as(function.body) else function.with_body(body)
    return tvm.IRModule(functions, attrs=module.attrs)


def print_hexadecimal_literals(source: str) -> str:
    """Return a source with doubles given by their bits as hexadecimal literals, with decimals in comments.

    Examples
    --------
    >>> print_hexadecimal_literals("(x * __longlong_as_double((int64_t)4578640125057721278))")
    '(x * 0x1.a98ef606a63bep-7/*0.012987012987012988*/)'
    """

    def literal(found: re.Match[str]) -> str:
        (value,) = struct.unpack("<d", struct.pack("<q", int(found[1])))
        return f"{value.hex()}/*{value!r}*/"

    return re.sub(_OF_BITS + r"\(\(int64_t\)(-?\d+)\)", literal, source)
