"""Float maxima and minima that propagate NaN, as in NumPy and PyTorch.

A hardware maximum ``a > b ? a : b`` (x86's ``maxps``) returns its second operand if either is NaN, so an operand that
is never NaN comes first; otherwise a function also compares one operand with itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from roller.te.compat import Call, dtype_of, structural_walk, tirx, tvm

#: TVM's operator for calling an external function by name.
_CALL = "tirx.call_pure_extern"
#: Names of TVM's extremum nodes.
EXTREMA = ("Max", "Min")


def is_never_nan(e: Any) -> bool:
    """Return whether an expression is certainly not NaN: a literal, or a converted integer.

    Examples
    --------
    >>> is_never_nan(tirx.const(0.0, "float32")), is_never_nan(tirx.const(math.nan, "float32"))
    (True, False)
    """
    if isinstance(e, tirx.Broadcast):
        return is_never_nan(e.value)
    if isinstance(e, tirx.FloatImm):
        return not math.isnan(e.value)
    return isinstance(e, tirx.Cast) and ("float" not in dtype_of(e.value) or is_never_nan(e.value))


def lower_extremum_to_llvm(node: str) -> Callable[[Any], Any]:
    """Return the lowering of an extremum call for LLVM; :func:`add_extremum_functions` adds the functions it calls."""
    # This is a function because operands occur several times, and TVM's analyzer would see a ``Let`` binding several
    # times over.
    compare = getattr(tirx, node)

    def lowered(call: Any) -> Any:
        a, b = call.args
        if is_never_nan(a):
            return compare(a, b)
        if is_never_nan(b):
            return compare(b, a)
        dtype = dtype_of(call)
        return tirx.call_pure_extern(dtype, extremum_function_name(node, dtype, known=False), a, b)

    return lowered


def add_extremum_functions(module: Any) -> Any:
    """Return ``module`` with the LLVM text of the functions that lowered extrema call."""
    functions = {v: f.with_body(_add_functions_to_body(f.body)) for v, f in module.functions.items()}
    return tvm.IRModule(functions, attrs=module.attrs)


def _add_functions_to_body(body: Any) -> Any:
    names: dict[str, str] = {}

    def called(call: Any) -> None:
        if getattr(call.op, "name", "") != _CALL:
            return
        name, dtype = str(call.args[0].value), dtype_of(call)
        if name in _extremum_function_names(dtype):
            names[name] = dtype

    structural_walk(body, (Call, called))
    text = "".join(_extremum_function_llvm(name, dtype) for name, dtype in sorted(names.items()))
    return tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", tvm.ir.StringImm(text), body) if text else body


def _extremum_function_names(dtype: str) -> tuple[str, ...]:
    return tuple(extremum_function_name(node, dtype, known=False) for node in EXTREMA)


def _extremum_function_llvm(name: str, dtype: str) -> str:
    """Return the text of the LLVM function that returns its second operand if it is NaN, else the extremum."""
    scalar, _, lanes = dtype.partition("x")
    t = {"float32": "float", "float64": "double"}[scalar]
    t = f"<{lanes} x {t}>" if lanes else t
    bit = f"<{lanes} x i1>" if lanes else "i1"
    order = "ogt" if name == _extremum_function_names(dtype)[0] else "olt"
    return f"""define linkonce_odr {t} @{name}({t} %a, {t} %b) nounwind willreturn memory(none) alwaysinline {{
  %further = fcmp {order} {t} %b, %a
  %number = select {bit} %further, {t} %b, {t} %a
  %ordered = fcmp oeq {t} %b, %b
  %either = select {bit} %ordered, {t} %number, {t} %b
  ret {t} %either
}}
"""


def lower_extremum_to_c(node: str) -> Callable[[Any], Any]:
    """Return the lowering of an extremum to a device-function call; an operand that is never NaN comes first."""

    def lowered(call: Any) -> Any:
        a, b = call.args
        a, b = (b, a) if is_never_nan(b) and not is_never_nan(a) else (a, b)
        dtype = dtype_of(call)
        return tirx.call_pure_extern(
            dtype, extremum_function_name(node, dtype.partition("x")[0], known=is_never_nan(a)), a, b
        )

    return lowered


def extremum_function_name(node: str, dtype: str, *, known: bool) -> str:
    """Return the name of an extremum's device function; ``known`` means that the first operand is never NaN.

    Examples
    --------
    >>> extremum_function_name("Max", "float32", known=False), extremum_function_name("Min", "float16", known=True)
    ('roller_max_float32', 'roller_min_known_float16')
    """
    return f"roller_{node.lower()}_{'known_' if known else ''}{dtype}"
