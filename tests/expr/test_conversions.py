"""A conversion takes the rate of the narrower dtype, in its direction; only one of 64 bits that of 64 bits."""

from __future__ import annotations

import pytest

import roller
import roller.expr
from roller import ops
from roller.expr import Cast, Load
from roller.expr.dtype_conversion_rates import conversion_rate_key, count_conversions, ops_per_cycle
from roller.hardware import load_spec
from tests.offenders import every

RATES = "compute.ops_per_cycle_per_unit"
#: Published: 8192 x 4096 halves move 134 MB, 0.5 ms of an L4's memory; 2.5 ms were predicted at the rate of 64 bits.
SHAPE = (8192, 4096)
SLOW_AT_64_BITS = ["t4", "rtx2080ti", "rtx3090", "rtx4090", "l4"]


@pytest.mark.parametrize(
    ("source", "target", "rate"),
    [
        ("float16", "float32", ("convert", "float16")),
        ("float32", "float16", ("convert_to", "float16")),
        ("float32", "bfloat16", ("convert_to", "bfloat16")),
        ("bool", "float32", ("convert", "int8")),
        ("uint8", "int32", ("convert", "int8")),
        ("int32", "float32", ("convert", "int32")),
        ("float32", "int32", ("convert_to", "int32")),
        ("float32", "float64", ("convert", "float64")),
        ("int64", "int32", ("convert", "float64")),
        ("float16", "float64", ("convert", "float64")),
        ("int8", "uint8", None),
        ("float32", "float32", None),
    ],
)
def test_the_rate_of_a_conversion_is_that_of_both_dtypes(
    source: str, target: str, rate: tuple[str, str] | None
) -> None:
    assert conversion_rate_key(source, target) == rate


def test_what_is_equal_is_converted_once() -> None:
    half = Cast("float32", Load("X", ()))
    body = roller.expr.Call("mul", (half, half))
    assert count_conversions(body, {"X": "float16"}, "float32") == {("convert", "float16"): 1}


def test_a_rate_that_is_not_given_is_that_of_the_class() -> None:
    rates = {"fma": 128.0, "convert": 16.0, "convert.float64": 2.0}
    found = [
        ops_per_cycle(rates, c, d) for c, d in (("convert", "float16"), ("convert_to", "int8"), ("convert", "float64"))
    ]
    assert found == [16.0, 16.0, 2.0]


@every("device", SLOW_AT_64_BITS)
def test_halves_are_not_converted_at_the_rate_of_64_bits(device: str) -> None:
    spec, expr = load_spec(device), ops.layer_norm(SHAPE, dtype="float16")
    estimate = roller.predict(expr, spec, policy="library")
    slower = roller.predict(expr, spec.with_overrides({f"{RATES}.convert.float64": 0.01}), policy="library")
    assert estimate.seconds == slower.seconds
    assert estimate.terms["compute_s"] < 2 * estimate.terms["dram_s"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_nor_are_those_of_other_kernels(dtype: str) -> None:
    for expr in (ops.softmax(SHAPE, dtype=dtype), ops.elementwise(("gelu",), SHAPE, dtype=dtype)):
        estimate = roller.predict(expr, "rtx3090", policy="library")
        assert estimate.bottleneck == "dram"


def test_a_layer_norm_of_halves_on_an_l4_takes_what_its_bytes_take() -> None:
    estimate = roller.predict(ops.layer_norm(SHAPE, dtype="float16"), "l4", policy="library")
    assert estimate.bottleneck == "dram" and 0.4e-3 < estimate.seconds < 0.65e-3


@every("field", ["convert.float16", "convert_to.float16"])
def test_widening_and_narrowing_have_rates_of_their_own(field: str) -> None:
    spec, expr = load_spec("l4"), ops.layer_norm(SHAPE, dtype="float16")
    slow = spec.with_overrides({f"{RATES}.{field}": 0.5})
    first, second = (roller.predict(expr, s, policy="library").terms["compute_s"] for s in (spec, slow))
    assert second > 2 * first


def test_conversions_of_64_bits_are_priced_at_their_own_rate() -> None:
    spec, expr = load_spec("l4"), ops.reduce("sum", SHAPE, axes=(1,), dtype="float32", acc_dtype="float64")
    slow = spec.with_overrides({f"{RATES}.convert.float64": 0.1})
    assert roller.predict(expr, slow, policy="library").seconds > roller.predict(expr, spec, policy="library").seconds
