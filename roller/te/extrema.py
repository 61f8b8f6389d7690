"""Maxima and minima of floating point in which NaN wins, as NumPy and PyTorch have them.

A processor's maximum compares: ``a > b ? a : b`` is the second operand where either is NaN (x86's ``maxps``). So an
operand that is certainly not NaN, a literal say, comes first, and NaN costs nothing; of two that may be NaN, one is
compared with itself too, and chosen where it differs. CUDA C gets calls of functions whose text is
chosen by what the architecture has (:mod:`roller.templates.gpu.emit.extrema`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from roller.te.compat import TensorLoad, dtype_of, tirx

#: Nodes this module is about.
EXTREMA = ("Max", "Min")


def never_nan(e: Any) -> bool:
    """Whether an expression is certainly not NaN: a literal, or an integer converted.

    Examples
    --------
    >>> never_nan(tirx.const(0.0, "float32")), never_nan(tirx.const(math.nan, "float32"))
    (True, False)
    """
    if isinstance(e, tirx.Broadcast):
        return never_nan(e.value)
    if isinstance(e, tirx.FloatImm):
        return not math.isnan(e.value)
    return isinstance(e, tirx.Cast) and "float" not in dtype_of(e.value)


def in_llvm(node: str) -> Callable[[Any], Any]:
    """Return what makes code for LLVM of a call with two operands, as nodes that compare."""
    compare = getattr(tirx, node)

    def lowered(call: Any) -> Any:
        a, b = call.args
        if never_nan(a):
            return compare(a, b)
        if never_nan(b):
            return compare(b, a)
        once = tirx.Var("extreme", dtype_of(b))  # an operand is written out for each of its uses
        p = b if isinstance(b, (tirx.Var, TensorLoad)) else once
        either = tirx.Select(tirx.EQ(p, p), compare(p, a), p)
        return either if p is b else tirx.Let(once, b, either)

    return lowered


def in_c(node: str) -> Callable[[Any], Any]:
    """Return what makes a call of a device function of a call with two operands; what is never NaN comes first."""

    def lowered(call: Any) -> Any:
        a, b = call.args
        a, b = (b, a) if never_nan(b) and not never_nan(a) else (a, b)
        dtype = dtype_of(call)
        return tirx.call_pure_extern(dtype, function_name(node, dtype.partition("x")[0], known=never_nan(a)), a, b)

    return lowered


def function_name(node: str, dtype: str, *, known: bool) -> str:
    """Return the name of the device function of an extremum; of a ``known`` first operand, which is not NaN.

    Examples
    --------
    >>> function_name("Max", "float32", known=False), function_name("Min", "float16", known=True)
    ('roller_max_float32', 'roller_min_known_float16')
    """
    return f"roller_{node.lower()}_{'known_' if known else ''}{dtype}"
