"""Rounding to bfloat16 by integer arithmetic on the bits of float32, the dtype in which processors compute it.

A conversion to bfloat16 and back does not change the dtype here, where both are float32, but it rounds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from roller.te.compat import dtype_of, structural_map, tirx

#: Storage dtype of bfloat16.
BITS = "uint16"
_unsigned = functools.partial(tirx.const, dtype="uint32")


def emit_bfloat16_bits(value: Any) -> Any:
    """Round a float32 to the nearest bfloat16, ties to even, and return its bits; NaN stays NaN."""
    return _apply_to_rounded_bits(value, lambda kept: (kept >> _unsigned(16)).astype(BITS))


def round_bfloat16_casts(body: Any) -> Any:
    """Return a statement in which conversions to bfloat16 and back are replaced by rounding float32 values."""

    def back(cast: Any) -> Any:
        narrow = cast.value
        if dtype_of(cast) != "float32" or not isinstance(narrow, tirx.Cast) or dtype_of(narrow) != "bfloat16":
            return cast
        value = narrow.value.astype("float32")
        return _apply_to_rounded_bits(value, lambda kept: tirx.reinterpret("float32", kept & _unsigned(0xFFFF0000)))

    return structural_map(body, (tirx.Cast, back))


def _apply_to_rounded_bits(value: Any, of: Callable[[Any], Any]) -> Any:
    """Apply ``of`` to the bits of a float32 whose upper half is rounded to the nearest bfloat16."""
    given, bits = tirx.Var("rounded", "float32"), tirx.Var("bits", "uint32")
    up = bits + _unsigned(0x7FFF) + ((bits >> _unsigned(16)) & _unsigned(1))
    # A NaN with only low bits set would round to infinity.
    kept = tirx.Select((bits & _unsigned(0x7FFFFFFF)) > _unsigned(0x7F800000), _unsigned(0x7FC00000), up)
    return tirx.Let(given, value, tirx.Let(bits, tirx.reinterpret("uint32", given), of(kept)))
