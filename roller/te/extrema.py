"""Maxima and minima of floating point in which NaN wins, as NumPy and PyTorch have them.

A processor's maximum compares: ``a > b ? a : b`` is the second operand where either is NaN (x86's ``maxps``). So an
operand that is certainly not NaN, a literal say, comes first, and NaN costs nothing; of two that may be NaN, one is
compared with itself too, and chosen where it differs. That is a function: an operand is used several times, and TVM's
analyzer would see a binding of it (``Let``) several times over. LLVM inlines it (:func:`with_functions`); CUDA C gets
functions whose text is chosen by what the architecture has (:mod:`roller.templates.gpu.emit.extrema`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from roller.te.compat import Call, dtype_of, structural_walk, tirx, tvm

#: The operator of a call of a function by its name.
_CALL = "tirx.call_pure_extern"
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
    return isinstance(e, tirx.Cast) and ("float" not in dtype_of(e.value) or never_nan(e.value))


def in_llvm(node: str) -> Callable[[Any], Any]:
    """Return what makes code for LLVM of a call with two operands; :func:`with_functions` has what it calls."""
    compare = getattr(tirx, node)

    def lowered(call: Any) -> Any:
        a, b = call.args
        if never_nan(a):
            return compare(a, b)
        if never_nan(b):
            return compare(b, a)
        dtype = dtype_of(call)
        return tirx.call_pure_extern(dtype, function_name(node, dtype, known=False), a, b)

    return lowered


def with_functions(module: Any) -> Any:
    """Return a module with the text of the functions that :func:`in_llvm` has it call."""
    functions = {v: f.with_body(_with_functions(f.body)) for v, f in module.functions.items()}
    return tvm.IRModule(functions, attrs=module.attrs)


def _with_functions(body: Any) -> Any:
    names: dict[str, str] = {}

    def called(call: Any) -> None:
        if getattr(call.op, "name", "") != _CALL:
            return
        name, dtype = str(call.args[0].value), dtype_of(call)
        if name in _functions(dtype):
            names[name] = dtype

    structural_walk(body, (Call, called))
    text = "".join(_text(name, dtype) for name, dtype in sorted(names.items()))
    return tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", tvm.ir.StringImm(text), body) if text else body


def _functions(dtype: str) -> tuple[str, ...]:
    return tuple(function_name(node, dtype, known=False) for node in EXTREMA)


def _text(name: str, dtype: str) -> str:
    """Return the function in LLVM's language: the second operand where it is NaN, else what the comparison says."""
    scalar, _, lanes = dtype.partition("x")
    t = {"float32": "float", "float64": "double"}[scalar]
    t = f"<{lanes} x {t}>" if lanes else t
    bit = f"<{lanes} x i1>" if lanes else "i1"
    order = "ogt" if name == _functions(dtype)[0] else "olt"
    return f"""define linkonce_odr {t} @{name}({t} %a, {t} %b) nounwind willreturn memory(none) alwaysinline {{
  %further = fcmp {order} {t} %b, %a
  %number = select {bit} %further, {t} %b, {t} %a
  %ordered = fcmp oeq {t} %b, %b
  %either = select {bit} %ordered, {t} %number, {t} %b
  ret {t} %either
}}
"""


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
