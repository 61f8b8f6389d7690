"""Device functions for maximum and minimum that propagate NaN; CUDA's and HIP's own functions return the number.

They take one instruction on architectures with ``max.NaN`` and ``min.NaN`` for float32 (PTX ISA 7.0, "Floating Point
Instructions: max"). Otherwise, they take two (compare, select) if the first operand is known not to be NaN, or three.
"""

from __future__ import annotations

from roller.hardware.architecture_features import has_nan_extrema
from roller.te.nan_propagating_extrema import EXTREMA, extremum_function_name

_TYPES = {"float32": "float", "float64": "double"}
_HEAD = "static __device__ __forceinline__ {type} {name}({type} a, {type} b) {{\n"
_PTX = """  {type} extreme;
  asm("{node}.NaN.f32 %0, %1, %2;" : "=f"(extreme) : "f"(a), "f"(b));
  return extreme;
}}
"""
_EITHER = """  return a {sign} b || a != a ? a : b;
}}
"""
_KNOWN = """  return b {other} a ? a : b;
}}
"""


def nan_extrema_functions(arch: str) -> dict[str, str]:
    """Return the functions for an architecture, keyed by name."""
    found = {}
    for node in EXTREMA:
        sign, other = ("><", "<>")[node == "Min"]
        for dtype, spelled in _TYPES.items():
            for known in (False, True):
                name = extremum_function_name(node, dtype, known=known)
                one = dtype == "float32" and has_nan_extrema(arch)
                text = _HEAD + (_PTX if one else _KNOWN if known else _EITHER)
                found[name] = text.format(type=spelled, name=name, node=node.lower(), sign=sign, other=other)
    return found
