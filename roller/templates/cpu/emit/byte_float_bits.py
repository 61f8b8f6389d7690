"""Conversion of 8-bit floats on CPUs by integer arithmetic on their bits, which LLVM vectorizes."""

from __future__ import annotations

import functools
from typing import Any

from roller.te.compat import tirx
from roller_runtime.core.dtypes import DType

_unsigned = functools.partial(tirx.const, dtype="uint32")


def emit_byte_to_float(byte: Any, row: DType) -> Any:
    """Return the float32 value of a byte."""
    b = tirx.Var("byte", "uint32")
    magnitude = b & _unsigned(0x7F)
    wide = (magnitude << _unsigned(row.missing_significand_bits)) + _unsigned(row.exponent_shift_bits)
    small = tirx.reinterpret("uint32", magnitude.astype("float32") * tirx.const(row.smallest_subnormal, "float32"))
    bits = tirx.Select(magnitude < _unsigned(1 << (row.digits - 1)), small, wide)
    odd = (magnitude << _unsigned(row.missing_significand_bits)) | _unsigned(0x7F800000)
    bits = tirx.Select(magnitude > _unsigned(row.largest_byte), odd, bits)
    signed = bits | ((b & _unsigned(0x80)) << _unsigned(24))
    return tirx.Let(b, byte.astype("uint32"), tirx.reinterpret("float32", signed))


def emit_float_to_byte(value: Any, row: DType) -> Any:
    """Round a float32 to the nearest 8-bit float, ties to even, and return its byte; NaN stays NaN."""
    given, bits = tirx.Var("given", "float32"), tirx.Var("bits", "uint32")
    magnitude = bits & _unsigned(0x7FFFFFFF)
    last = (magnitude >> _unsigned(row.missing_significand_bits)) & _unsigned(1)
    half = (1 << (row.missing_significand_bits - 1)) - 1
    normal = (magnitude - _unsigned(row.exponent_shift_bits) + _unsigned(half) + last) >> _unsigned(
        row.missing_significand_bits
    )
    # The addition rounds to multiples of the smallest number, which is one ulp of a float32 with this exponent.
    steps = tirx.const(row.smallest_subnormal * 2.0**23, "float32")
    small = tirx.reinterpret("uint32", tirx.reinterpret("float32", magnitude) + steps) - _unsigned(
        row.subnormal_rounding_bits
    )
    byte = tirx.Select(magnitude < _unsigned(row.normal_bits), small, normal)
    byte = tirx.min(byte, _unsigned(row.overflow_byte))
    byte = tirx.Select(magnitude > _unsigned(0x7F800000), _unsigned(row.nan_byte), byte)
    signed = (byte | ((bits >> _unsigned(24)) & _unsigned(0x80))).astype("uint8")
    return tirx.Let(given, value, tirx.Let(bits, tirx.reinterpret("uint32", given), signed))
