"""The dtype table against ml_dtypes and ONNX, and floats of 8 bits through kernels of every kind of device."""

import numpy as np
import pytest

pytest.importorskip("ml_dtypes")

import ml_dtypes

from roller import ops
from roller.expr import Tensor
from roller.expr.rounded_enclosures import EnclosedValues, convert_to_narrow_float, round_enclosure
from roller_runtime.core.dtypes import (
    BYTE_FLOATS,
    DTYPES,
    FLOATS,
    as_numpy_bits,
    canonical_dtype_name,
    decode_stored_values,
    encode_stored_values,
    numpy_dtype,
    round_to_dtype,
)
from tests.offenders import every

BYTES = np.arange(256, dtype=np.uint8)


def numbers_of(dtype):
    """Random float32 of all magnitudes, every tie between neighbours, and what lies beside it."""
    rng = np.random.default_rng(1)
    anything = rng.integers(0, 2**32, 60_000, dtype=np.uint32).view(np.float32)
    usual = (rng.standard_normal(20_000) * 10.0 ** rng.uniform(-7, 6, 20_000)).astype(np.float32)
    known = BYTES.view(numpy_dtype(dtype)).astype(np.float64)
    known = np.sort(known[np.isfinite(known)])
    ties = ((known[1:] + known[:-1]) / 2).astype(np.float32)
    odd = np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, 464, 465, 61439, 61440, 61441])
    sides = (np.nextafter(ties, np.float32(side)) for side in (-np.inf, np.inf))
    return np.concatenate((anything, usual, known.astype(np.float32), ties, *sides, odd))


def converted(values, dtype):
    with np.errstate(all="ignore"):
        return values.astype(numpy_dtype(dtype))


@every("dtype", FLOATS)
def test_facts_of_floats_are_those_of_ml_dtypes(dtype):
    row, info = DTYPES[dtype], ml_dtypes.finfo(numpy_dtype(dtype))
    facts = (row.epsilon, row.largest, row.smallest_normal, row.smallest_subnormal)
    assert facts == (float(info.eps), float(info.max), float(info.tiny), float(info.smallest_subnormal))
    assert row.itemsize_bytes == numpy_dtype(dtype).itemsize


@pytest.fixture
def onnx():
    return pytest.importorskip("onnx")


@every("dtype", DTYPES)
def test_numbers_are_those_of_onnx(dtype, onnx):
    assert onnx.helper.tensor_dtype_to_np_dtype(DTYPES[dtype].onnx).name == dtype


@pytest.mark.parametrize("dtype", BYTE_FLOATS)
def test_every_byte_and_any_number_as_ml_dtypes_has_it(dtype):
    np.testing.assert_array_equal(decode_stored_values(BYTES, dtype), BYTES.view(numpy_dtype(dtype)).astype(np.float32))
    values = numbers_of(dtype)
    want = converted(values, dtype)
    np.testing.assert_array_equal(encode_stored_values(values, dtype), as_numpy_bits(want))
    np.testing.assert_array_equal(round_to_dtype(values, dtype), want.astype(np.float64))


def test_beyond_the_largest_is_no_number_where_there_is_no_infinity():
    assert np.isnan(round_to_dtype(465.0, "float8_e4m3fn")) and round_to_dtype(464.0, "float8_e4m3fn") == 448
    assert round_to_dtype(61440.0, "float8_e5m2") == np.inf and round_to_dtype(61439.0, "float8_e5m2") == 57344


@pytest.mark.parametrize("dtype", BYTE_FLOATS)
def test_enclosures_hold_what_conversion_gives(dtype):
    values = numbers_of(dtype)
    values = values[np.isfinite(values)].astype(np.float64)
    got = round_to_dtype(values, dtype)
    for e in (
        round_enclosure(EnclosedValues.point(values), dtype),
        convert_to_narrow_float(EnclosedValues.point(values), "float32", dtype),
    ):
        sure = e.decides(dtype)
        assert sure.any()
        assert ((e.low <= got) & (got <= e.high))[sure].all()


def test_a_dtype_has_one_name():
    assert canonical_dtype_name("float8_e4m3") == "float8_e4m3fn" == Tensor("A", (2,), "float8_e4m3").dtype
    matmul = ops.matmul(4, 4, 4, dtype="float8_e4m3")
    assert {t.dtype for t in matmul.inputs} == {"float8_e4m3fn"} and matmul.anchor.acc_dtype == "float32"
    assert ops.matmul(4, 4, 4, dtype="float8_e5m2", acc_dtype="float16").anchor.acc_dtype == "float16"


def of_numbers(values, dtype, *, back):
    """The conversion of float32 to a dtype, or there and back to float32, or of every byte to float32."""
    from roller.te.compat import te
    from roller.te.reader import read

    x = te.placeholder(values.shape, name="X", dtype=values.dtype.name)
    made = te.compute(values.shape, lambda i: x[i].astype(dtype), name="T")
    if back:
        made = te.compute(values.shape, lambda i: x[i].astype(dtype).astype("float32") * 2.0, name="Y")
    return read([x, made])


@pytest.mark.parametrize("dtype", BYTE_FLOATS)
def test_processors_convert_bit_for_bit(dtype):
    pytest.importorskip("tvm")
    from roller import construct, load_spec
    from roller.backends.cpu import CpuKernel
    from roller.compiler.pipeline import lower

    def run(values, to, *, back=False):
        expr, spec = of_numbers(values, to, back=back), load_spec("cpu")
        return CpuKernel(lower(construct(expr, spec, top_k=1)[0].program, expr, spec))(values)

    values, every = numbers_of(dtype), BYTES.view(numpy_dtype(dtype))
    want = converted(values, dtype)
    np.testing.assert_array_equal(as_numpy_bits(run(values, dtype)), as_numpy_bits(want))
    np.testing.assert_array_equal(run(values, dtype, back=True), want.astype(np.float32) * 2)
    np.testing.assert_array_equal(run(every, "float32"), every.astype(np.float32))
