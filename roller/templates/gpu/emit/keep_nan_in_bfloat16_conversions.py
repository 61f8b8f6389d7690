"""Conversions to bfloat16 on devices that lack it, where TVM rounds float32 by adding to its bits.

That addition turns a NaN whose low bits are all set, as NVIDIA's arithmetic produces it (CUDA C++ Programming Guide,
"Floating-Point Standard": 0x7fffffff), into a zero of the opposite sign.
"""

from __future__ import annotations

from typing import Any

from roller.te.compat import dtype_of, structural_map, tirx

#: Device function that rounds a float32 to a bfloat16 number; NaN becomes a quiet NaN.
_ROUNDED = "roller_bfloat16"


def keep_nan_in_conversions(body: Any) -> Any:
    """Return a statement whose conversions from float32 to bfloat16 keep NaN and always round."""

    # TVM computes in float32 and drops a conversion whose result is converted back or is an operand of bfloat16
    # arithmetic. Our own function rounds the number before that, except for stores, where TVM's rounding stays.
    def rewrite_conversion(cast: Any) -> Any:
        narrow = cast.value
        if dtype_of(cast) == "float32" and isinstance(narrow, tirx.Cast) and dtype_of(narrow) == "bfloat16":
            return narrow.value
        if dtype_of(cast) != "bfloat16" or dtype_of(cast.value) != "float32":
            return cast
        # This is a function because TVM converts nothing within a let, and writes an operand out for each of its uses.
        return tirx.Cast("bfloat16", tirx.call_pure_extern("float32", _ROUNDED, cast.value))

    def rewrite_store(statement: Any) -> Any:
        value = statement.value
        if (
            not isinstance(value, tirx.Cast)
            or dtype_of(value) != "bfloat16"
            or not _is_bfloat16_rounding_call(value.value)
        ):
            return statement
        quiet = tirx.Cast("bfloat16", tirx.call_pure_extern("float32", "roller_quiet", value.value.args[1]))
        return tirx.BufferStore(statement.buffer, quiet, list(statement.indices))

    return structural_map(structural_map(body, (tirx.Cast, rewrite_conversion)), (tirx.BufferStore, rewrite_store))


def _is_bfloat16_rounding_call(value: Any) -> bool:
    args: Any = getattr(value, "args", ())
    return len(args) == 2 and getattr(args[0], "value", "") == _ROUNDED
