"""Conversions to bfloat16 on devices without it, where TVM rounds float32 by adding to its bits.

That turns a NaN whose low bits are all set into zero of the other sign, and such is the NaN that NVIDIA's arithmetic
gives (CUDA C++ Programming Guide, "Floating-Point Standard": 0x7fffffff).
"""

from __future__ import annotations

from typing import Any

from roller.te.compat import dtype_of, tirx, tvm_ffi


def keep_nan(body: Any) -> Any:
    """Return a statement whose conversions from float32 to bfloat16 keep NaN, however they are rounded.

    One that goes straight back to float32 is rounded by a function of ours: TVM, which computes in float32, drops both.
    """

    def keep(cast: Any) -> Any:
        narrow = cast.value
        if dtype_of(cast) == "float32" and isinstance(narrow, tirx.Cast) and dtype_of(narrow) == "bfloat16":
            return tirx.call_pure_extern("float32", "roller_bfloat16", narrow.value.astype("float32"))
        if dtype_of(cast) != "bfloat16" or dtype_of(cast.value) != "float32":
            return cast
        # A function of ours: TVM converts nothing within a let, and writes an operand out for each of its uses.
        return tirx.Cast("bfloat16", tirx.call_pure_extern("float32", "roller_quiet", cast.value))

    return tvm_ffi.structural_map(body, (tirx.Cast, keep))
