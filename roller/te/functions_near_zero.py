"""``expm1`` and ``log1p``, which keep the digits that ``exp(x) - 1`` and ``log(1 + x)`` lose near zero.

TVM has no ``expm1``, and no vector form of either; code generators for CPUs replace both operators before TVM lowers
them to the C library's functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from roller.te.compat import Call, dtype_of, register_pure_operator, tirx

#: Names of the operators, and of their C functions for float64.
C_FUNCTIONS = {"roller.expm1": "expm1", "roller.log1p": "log1p"}


def _call_c_function(call: Any) -> Any:
    dtype = dtype_of(call)
    suffix = "" if dtype.startswith("float64") else "f"
    return tirx.call_pure_extern(dtype, C_FUNCTIONS[call.op.name] + suffix, *call.args)


def _function_of_floats(name: str) -> Callable[[Any], Any]:
    operator = register_pure_operator(name, {"default": _call_c_function})

    def apply(x: Any) -> Any:
        # Narrow floats are computed in float32, so that no target needs functions for them.
        wide = x if dtype_of(x) in ("float32", "float64") else x.astype("float32")
        return Call(operator, [wide], ret_ty=wide.ty).astype(dtype_of(x))

    return apply


expm1, log1p = (_function_of_floats(name) for name in C_FUNCTIONS)
