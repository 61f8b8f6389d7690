"""Dtypes by what profiles call them: C++'s words for operators, a communication library's for collectives."""

from __future__ import annotations

from collections.abc import Mapping

from roller.core.dtypes import DTYPE_BYTES

#: Words of profiles; traces have the names themselves.
_WORDS: Mapping[str, str] = {
    "float": "float32", "double": "float64", "half": "float16", "c10::half": "float16", "c10::bfloat16": "bfloat16",
    "long": "int64", "long int": "int64", "int": "int32", "short": "int16", "short int": "int16", "char": "int8",
    "signed char": "int8", "byte": "uint8", "unsigned char": "uint8",
}  # fmt: skip


def dtype_of(word: str) -> str:
    """Return the dtype that a profile means; a word that is not known as it is.

    Examples
    --------
    >>> dtype_of("c10::Half"), dtype_of("BFloat16"), dtype_of("float32"), dtype_of("TensorList")
    ('float16', 'bfloat16', 'float32', 'TensorList')
    """
    small = word.lower()
    return _WORDS.get(small, small if small in DTYPE_BYTES else word)


def element_bytes(word: str, unknown: int = 0) -> int:
    """Return the bytes of an element of a dtype by a profile's word, ``unknown`` where that says none."""
    return DTYPE_BYTES.get(dtype_of(word), unknown)
