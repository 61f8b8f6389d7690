"""8-bit floats on GPUs: device functions that work on the bits and are the same on every architecture.

Conversion instructions exist from sm_89 on, but they saturate, and their headers differ between toolkits.
"""

from __future__ import annotations

from typing import Any

from roller.te.compat import tirx
from roller_runtime.core.dtypes import BYTE_FLOATS, DTYPES, DType

_TO_FLOAT = """float roller_from_{name}(unsigned char byte) {{
  unsigned magnitude = byte & 127u, bits = (magnitude << {spare}) + {shifted:#x}u;
  float small = magnitude * {smallest}f;
  if (magnitude < {least}u) bits = *(const unsigned*)&small;
  if (magnitude > {largest:#x}u) bits = magnitude << {spare} | 0x7f800000u;
  bits |= (byte & 128u) << 24;
  return *(const float*)&bits;
}}"""
_TO_BYTE = """unsigned char roller_to_{name}(float value) {{
  unsigned bits = *(const unsigned*)&value, magnitude = bits & 0x7fffffffu;
  unsigned byte = (magnitude - {shifted:#x}u + {half:#x}u + (magnitude >> {spare} & 1u)) >> {spare};
  float steps = *(const float*)&magnitude + {steps}f;
  if (magnitude < {normal:#x}u) byte = *(const unsigned*)&steps - {steps_bits:#x}u;
  if (byte > {beyond:#x}u) byte = {beyond:#x}u;
  if (magnitude > 0x7f800000u) byte = {nan:#x}u;
  return (unsigned char)(byte | (bits >> 24 & 128u));
}}"""


def byte_float_function_texts() -> list[str]:
    """Return the texts of the conversion functions for all 8-bit floats."""
    found = []
    for row in (DTYPES[n] for n in BYTE_FLOATS):
        numbers = {
            "name": row.name, "spare": row.missing_significand_bits, "shifted": row.exponent_shift_bits,
            "smallest": row.smallest_subnormal,
            "least": 1 << (row.digits - 1), "largest": row.largest_byte,
            "half": (1 << (row.missing_significand_bits - 1)) - 1,
            "steps": row.smallest_subnormal * 2.0**23, "normal": row.normal_bits,
            "steps_bits": row.subnormal_rounding_bits,
            "beyond": row.overflow_byte, "nan": row.nan_byte,
        }  # fmt: skip
        found += [_TO_FLOAT.format(**numbers), _TO_BYTE.format(**numbers)]
    return found


def call_byte_to_float32(byte: Any, row: DType) -> Any:
    """Return the float32 that a byte represents."""
    return tirx.call_pure_extern("float32", f"roller_from_{row.name}", byte)


def call_float32_to_byte(value: Any, row: DType) -> Any:
    """Round a float32 to the nearest 8-bit float, ties to even, and return its byte."""
    return tirx.call_pure_extern("uint8", f"roller_to_{row.name}", value)
