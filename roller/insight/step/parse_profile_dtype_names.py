"""Dtypes by their names in profiles: C++ types of operators, and names used by a communication library."""

from __future__ import annotations

from collections.abc import Mapping

from roller_runtime.core.dtypes import DTYPE_BYTES

#: Name in profiles -> name of the dtype.
_WORDS: Mapping[str, str] = {
    "float": "float32", "double": "float64", "half": "float16", "c10::half": "float16", "c10::bfloat16": "bfloat16",
    "long": "int64", "long int": "int64", "int": "int32", "short": "int16", "short int": "int16", "char": "int8",
    "signed char": "int8", "byte": "uint8", "unsigned char": "uint8",
}  # fmt: skip


def dtype_from_profile_name(word: str) -> str:
    """Return the dtype with this name in profiles; return an unknown name unchanged.

    Examples
    --------
    >>> [dtype_from_profile_name(name) for name in ("c10::Half", "BFloat16", "float32", "TensorList")]
    ['float16', 'bfloat16', 'float32', 'TensorList']
    """
    small = word.lower()
    return _WORDS.get(small, small if small in DTYPE_BYTES else word)


def element_bytes(word: str, unknown: int = 0) -> int:
    """Return the bytes per element of the dtype with this name in profiles; ``unknown`` for an unknown name."""
    return DTYPE_BYTES.get(dtype_from_profile_name(word), unknown)
