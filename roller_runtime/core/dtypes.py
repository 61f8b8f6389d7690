"""The dtypes of tensors, one row each, with NumPy's names or, if NumPy has none, the names of ``ml_dtypes``.

8-bit floats follow OCP's 8-bit specification, as in CUDA and ONNX. Conversions round to nearest even without
saturation: values beyond the largest become infinity if the dtype has one, otherwise NaN, as in ``ml_dtypes``.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from roller_runtime.errors import LaunchError


@dataclass(frozen=True)
class DType:
    """One dtype and its numeric properties."""

    name: str
    kind: str
    itemsize_bytes: int
    onnx: int  #: Number in ``onnx.TensorProto.DataType``
    accumulator: str  #: Default dtype of sums
    c_types: tuple[str, ...]  #: Names of the element type in emitted CUDA and HIP source, the usual one first
    rank: int  #: Promotion order within a kind: an operation on two dtypes computes in the one of higher rank
    digits: int = 0  #: Significant binary digits, including the implicit leading one
    exponents: tuple[int, int] = (0, 0)  #: Minimum and maximum exponent of normal numbers ``1.x * 2**e``
    largest: float = 0.0
    has_infinity: bool = True  #: Whether values beyond :attr:`largest` become infinity; otherwise they become NaN
    keeps_small: bool = False  #: Whether no device flushes subnormal numbers to zero
    bits: str = ""  #: NumPy dtype that carries the bits where NumPy lacks this dtype; otherwise ``""``
    aliases: tuple[str, ...] = ()  #: Other names that users may write

    @property
    def is_float(self) -> bool:
        """Whether it is a floating-point dtype."""
        return self.kind == "float"

    @property
    def is_narrow(self) -> bool:
        """Whether it is a float below 32 bits: units without it compute in float32, and conversions to it round."""
        return self.is_float and self.itemsize_bytes < 4

    @property
    def is_byte_float(self) -> bool:
        """Whether it is an 8-bit float, which is converted by arithmetic on its bits."""
        return self.is_float and self.itemsize_bytes == 1

    @property
    def integer_range(self) -> tuple[int, int]:
        """Smallest and largest value of an integer or Boolean dtype.

        >>> DTYPES["int8"].integer_range, DTYPES["uint8"].integer_range, DTYPES["bool"].integer_range
        ((-128, 127), (0, 255), (0, 1))
        """
        if self.kind == "bool":
            return 0, 1
        bits = 8 * self.itemsize_bytes
        return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if self.kind == "int" else (0, (1 << bits) - 1)

    @property
    def epsilon(self) -> float:
        """Distance from 1 to the next larger number."""
        return float(2.0 ** (1 - self.digits))

    @property
    def smallest_normal(self) -> float:
        """Smallest positive normal number."""
        return float(2.0 ** self.exponents[0])

    @property
    def smallest_subnormal(self) -> float:
        """Smallest positive number: the spacing below :attr:`smallest_normal`."""
        return self.smallest_normal * self.epsilon

    @property
    def flush_threshold(self) -> float:
        """Threshold below which numbers may be stored as zero."""
        return self.smallest_subnormal if self.keeps_small else self.smallest_normal

    @property
    def storage(self) -> np.dtype[Any]:
        """NumPy dtype with the same bits."""
        return np.dtype(self.bits or self.name)

    @property
    def missing_significand_bits(self) -> int:
        """Significand bits of float32 that this dtype lacks."""
        return 24 - self.digits

    @property
    def exponent_shift_bits(self) -> int:
        """Difference between the exponent biases of float32 and this dtype, as bits of a float32."""
        return (127 - (1 - self.exponents[0])) << 23

    @property
    def normal_bits(self) -> int:
        """Bits of :attr:`smallest_normal` as a float32."""
        return (127 + self.exponents[0]) << 23

    @property
    def subnormal_rounding_bits(self) -> int:
        """Bits of the float32 number whose ulp equals :attr:`smallest_subnormal`."""
        return (127 + self.exponents[0] - (self.digits - 1) + 23) << 23

    @property
    def largest_byte(self) -> int:
        """Byte that encodes :attr:`largest`, for 8-bit floats."""
        return 0x7E if not self.has_infinity else 0x80 - (1 << (self.digits - 1)) - 1

    @property
    def overflow_byte(self) -> int:
        """Byte for values beyond :attr:`largest`: infinity or NaN."""
        return self.largest_byte + 1

    @property
    def nan_byte(self) -> int:
        """Byte that encodes the usual NaN."""
        return 0x7E if self.has_infinity else 0x7F

    @cached_property
    def byte_float_values(self) -> np.ndarray:
        """Values of all bit patterns of an 8-bit float, as float32, shape ``(256,)``."""
        pattern = np.arange(128)
        places = self.digits - 1
        field, fraction = pattern >> places, pattern & ((1 << places) - 1)
        normal = np.ldexp(1.0 + np.ldexp(fraction.astype(np.float64), -places), field + self.exponents[0] - 1)
        found = np.where(field == 0, fraction * self.smallest_subnormal, normal)
        beyond = np.inf if self.has_infinity else np.nan
        found = np.where(found > self.largest, np.where(fraction > 0, np.nan, beyond), found)
        return np.concatenate((found, -found)).astype(np.float32)


#: Every dtype a tensor may have.
_ROWS = (
    DType("float64", "float", 8, 11, "float64", ("double",), 64, 53, (-1022, 1023), (2 - 2**-52) * 2.0**1023),
    DType("float32", "float", 4, 1, "float32", ("float",), 32, 24, (-126, 127), (2 - 2**-23) * 2.0**127),
    DType("float16", "float", 2, 10, "float32", ("half", "__half"), 16, 11, (-14, 15), 65504.0, keeps_small=True),
    # TVM stores it as ushort before sm_80.
    DType("bfloat16", "float", 2, 16, "float32", ("nv_bfloat16", "__nv_bfloat16", "hip_bfloat16", "ushort", "uint16_t"),
          15, 8, (-126, 127), (2 - 2**-7) * 2.0**127, bits="uint16"),
    DType("float8_e4m3fn", "float", 1, 17, "float32", ("uchar", "unsigned char", "uint8_t"), 8, 4, (-6, 8), 448.0,
          has_infinity=False, keeps_small=True, bits="uint8", aliases=("float8_e4m3",)),
    DType("float8_e5m2", "float", 1, 19, "float32", ("uchar", "unsigned char", "uint8_t"), 7, 3, (-14, 15), 57344.0,
          keeps_small=True, bits="uint8"),
    DType("int64", "int", 8, 7, "int64", ("int64_t", "long long", "long"), 64),
    DType("int32", "int", 4, 6, "int32", ("int", "int32_t"), 32),
    DType("int16", "int", 2, 5, "int32", ("short", "int16_t"), 16),
    DType("int8", "int", 1, 3, "int32", ("signed char", "char", "int8_t"), 8),
    DType("uint8", "uint", 1, 2, "int32", ("uchar", "unsigned char", "uint8_t"), 9),
    DType("bool", "bool", 1, 9, "bool", ("bool", "signed char", "uint8_t", "uchar", "unsigned char"), 1),
)  # fmt: skip

#: Rows by name.
DTYPES: dict[str, DType] = {row.name: row for row in _ROWS}
#: Size of an element in bytes by name.
DTYPE_BYTES: dict[str, int] = {name: row.itemsize_bytes for name, row in DTYPES.items()}
FLOATS = tuple(name for name, row in DTYPES.items() if row.is_float)
INTEGERS = tuple(name for name, row in DTYPES.items() if row.kind in ("int", "uint"))
#: Integer dtypes in which C computes with 32 bits.
NARROW_INTEGERS = tuple(name for name in INTEGERS if DTYPES[name].itemsize_bytes < 4)
NARROW_FLOATS = tuple(name for name, row in DTYPES.items() if row.is_narrow)
BYTE_FLOATS = tuple(name for name, row in DTYPES.items() if row.is_byte_float)
_ALIASES = {alias: name for name, row in DTYPES.items() for alias in row.aliases}


def canonical_dtype_name(name: Any) -> Any:
    """Return the canonical name of a dtype alias; any other value is returned unchanged.

    >>> canonical_dtype_name("float8_e4m3"), canonical_dtype_name("float32")
    ('float8_e4m3fn', 'float32')
    """
    return _ALIASES.get(name, name) if isinstance(name, str) else name


def is_float(name: str) -> bool:
    """Return whether the named dtype is a floating-point dtype."""
    row = DTYPES.get(name)
    return row is not None and row.is_float


@cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype with a name; dtypes that NumPy lacks come from the optional package ml_dtypes.

    >>> numpy_dtype("float16").itemsize
    2
    """
    row = DTYPES.get(name)
    if row is not None and row.bits:
        try:
            # By name: kernels of any other dtype run without this package.
            found: np.dtype[Any] = np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
            return found
        except ImportError as err:
            raise LaunchError(
                f"dtype '{name}': expected the package ml_dtypes, got {err}. Install it, or use float16."
            ) from err
    try:
        return np.dtype(name)
    except TypeError as err:
        raise LaunchError(f"NumPy has no dtype '{name}'. Compile the expression with a dtype NumPy knows.") from err


@cache
def storage_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype of the bits on a device: uint16 for bfloat16, uint8 for 8-bit floats.

    >>> storage_dtype("bfloat16"), storage_dtype("float16")
    (dtype('uint16'), dtype('float16'))
    """
    row = DTYPES.get(name)
    return np.dtype(name) if row is None else row.storage


def as_numpy_bits(array: Any) -> np.ndarray:
    """Return an array in one of NumPy's own dtypes: its bits if its dtype extends NumPy."""
    found = np.asarray(array)
    row = DTYPES.get(found.dtype.name)
    return found if row is None or not row.bits else np.ascontiguousarray(found).view(row.storage)


def decode_stored_values(bits: np.ndarray, dtype: str) -> np.ndarray:
    """Return stored elements as numbers: bit patterns become float32, and other arrays are returned unchanged.

    >>> float(decode_stored_values(np.array([0x3FC0], np.uint16), "bfloat16")[0])
    1.5
    """
    row = DTYPES.get(dtype)
    if row is None or not row.bits:
        return bits
    if row.is_byte_float:
        return np.asarray(row.byte_float_values[bits])
    return np.left_shift(bits.astype(np.uint32), np.uint32(16)).view(np.float32)


def encode_stored_values(values: Any, dtype: str) -> np.ndarray:
    """Return numbers in storage form, rounded to nearest even; the inverse of :func:`decode_stored_values`.

    >>> hex(int(encode_stored_values(np.array([1.5]), "bfloat16")[0]))
    '0x3fc0'
    >>> [hex(int(b)) for b in encode_stored_values(np.array([448.0, 464.0, 465.0, -0.0]), "float8_e4m3fn")]
    ['0x7e', '0x7e', '0x7f', '0x80']
    """
    row = DTYPES.get(dtype)
    if row is None or not row.bits:
        return np.asarray(values).astype(dtype)
    if row.is_byte_float:
        found = round_to_dtype(values, dtype)
        finite = row.byte_float_values[: row.largest_byte + 1]
        place = np.searchsorted(finite, np.abs(found))  # one past the last: infinity, where there is one
        place = np.where(np.isnan(found), row.nan_byte, place)
        return (place | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)
    bits = round_float32_bits_to_bfloat16(np.asarray(values, np.float32)) >> np.uint64(16)
    return np.where(np.isnan(values), np.uint64(0x7FC0), bits).astype(np.uint16)


def round_float32_bits_to_bfloat16(single: np.ndarray) -> np.ndarray:
    """Return the bits (uint64) of non-NaN float32 numbers rounded to bfloat16; only the upper half is valid."""
    bits = np.asarray(single).view(np.uint32).astype(np.uint64)
    return np.asarray(bits + np.uint64(0x7FFF) + ((bits >> np.uint64(16)) & np.uint64(1)))


def round_to_dtype(value: Any, dtype: str) -> np.ndarray:
    """Return float64 numbers rounded to a float dtype, to nearest even; overflow gives infinity or NaN.

    >>> round_to_dtype(np.array([1 / 3, 1e6, 57345.0]), "float8_e5m2").tolist()
    [0.3125, inf, 57344.0]
    """
    with np.errstate(invalid="ignore"):  # signalling NaN
        value, row = np.asarray(value, np.float64), DTYPES[dtype]
    if dtype == "float64":
        return np.asarray(value)
    with np.errstate(over="ignore", invalid="ignore"):
        if row.is_byte_float:
            exponent = np.maximum(np.frexp(value)[1] - 1, row.exponents[0]) - (row.digits - 1)
            found = np.where(np.isfinite(value), np.ldexp(np.rint(np.ldexp(value, -exponent)), exponent), value)
            beyond = np.copysign(np.inf, found) if row.has_infinity else np.nan
            return np.asarray(np.where(np.abs(found) > row.largest, beyond, found))
        single: np.ndarray = value.astype(np.float32 if row.bits else dtype)
    if not row.bits:
        return np.asarray(single, np.float64)
    bits = round_float32_bits_to_bfloat16(single) & np.uint64(0xFFFF0000)
    return np.asarray(np.where(np.isfinite(value), bits.astype(np.uint32).view(np.float32), value), np.float64)
