"""Integers that do not fit their dtype wrap around: in the reference, the check, and the code for every target."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tvm")

import roller
from roller.compiler.pipeline import lower
from roller.errors import ExprError
from roller.expr import Axis, Call, Cast, Const, Load, Scalar, Stage, Tensor, TensorExpr, axis_index
from roller.hardware import load_spec
from roller.runtime.check import check
from roller.te.compat import te, tirx
from roller.te.emit_tvm_expressions import emit_scalar
from roller.te.reader import read, to_te
from tests.offenders import every

_AT = (axis_index("i"),)
_X, _Z = Load("X", _AT), Load("Z", _AT)


def _expression(body: Scalar, dtype: str, out: str, n: int = 64) -> TensorExpr:
    inputs = Tensor("X", (n,), dtype), Tensor("Z", (n,), dtype)
    return TensorExpr("e", inputs, (Stage(Tensor("Y", (n,), out), (Axis("i", n),), _AT, body, None, out),), ("Y",))


def _ends(dtype: str, n: int = 64) -> list[np.ndarray]:
    info = np.iinfo(dtype)
    rng = np.random.default_rng(1)
    x = rng.integers(info.min, info.max, n, endpoint=True).astype(dtype)
    x[:4] = info.min, info.max, info.min, info.max
    z = np.roll(x[::-1], 2)
    z[0] = info.min
    return [x, z]


@every("dtype", ["int8", "uint8", "int16"])
@every("fn", ["add", "sub", "mul", "neg"])
def test_what_follows_sees_the_digits_of_the_dtype(fn: str, dtype: str) -> None:
    inner = Call(fn, (_X,) if fn == "neg" else (_X, _Z))
    expr = _expression(Call("max", (Cast("int32", inner), Const(-5, "int32"))), dtype, "int32")
    x, z = _ends(dtype)
    with np.errstate(over="ignore"):
        meant = {"add": x + z, "sub": x - z, "mul": x * z, "neg": -x}[fn].astype(np.int32)
    meant = np.maximum(meant, -5)
    np.testing.assert_array_equal(expr.evaluate([x, z])[0], meant)
    got = roller.compile(expr, "cpu", cache=False, deterministic=True)(x, z)
    np.testing.assert_array_equal(got, meant)
    assert check(expr, [x, z], meant).ok
    assert not check(expr, [x, z], meant + 1).ok


def test_absolute_values_and_quotients_of_the_least_number_are_the_least_number() -> None:
    least = np.full(64, -128, np.int8)
    for body in (Call("abs", (_X,)), Call("idiv", (_X, Const(-1, "int8")))):
        expr = _expression(Cast("int32", body), "int8", "int32")
        np.testing.assert_array_equal(expr.evaluate([least, least])[0], -128)
        np.testing.assert_array_equal(roller.compile(expr, "cpu", cache=False, deterministic=True)(least, least), -128)


def test_c_keeps_no_digits_beyond_the_dtype() -> None:
    expr = _expression(Call("max", (Call("add", (_X, _Z)), _Z)), "int8", "int8")
    source = lower(roller.construct(expr, "a100", 1)[0].program, expr, load_spec("a100")).source
    assert "max(((signed char)" in source and "& 255" in source


def test_constants_that_do_not_fit_are_no_error() -> None:
    total = emit_scalar(Call("add", (Const(100, "int8"), Const(100, "int8"))), {}, {})
    assert int(total.value) == -56


def test_narrow_arithmetic_is_read_back_as_it_was() -> None:
    for body in (Call("sub", (_X, _Z)), Call("neg", (Call("mul", (_X, _Z)),))):
        expr = _expression(body, "int8", "int8")
        assert read(to_te(expr)).key == expr.key


@pytest.mark.parametrize(
    ("dtype", "out"), [("float32", "int8"), ("float32", "bool"), ("int32", "bool"), ("float32", "uint8")]
)
def test_results_are_converted_as_c_converts(dtype: str, out: str) -> None:
    expr = roller.ops.elementwise("add", (64,), dtype=dtype, out_dtype=out)
    x = np.linspace(0 if out == "uint8" else -60, 60, 64).astype(dtype)
    x[:3] = 0
    meant = (x + x).astype(out)
    np.testing.assert_array_equal(expr.evaluate([x, x])[0], meant)
    got = roller.compile(expr, "cpu", cache=False, deterministic=True)(x, x)
    np.testing.assert_array_equal(got, meant)
    assert check(expr, [x, x], meant).ok


def test_sums_wrap_in_their_accumulator() -> None:
    expr = roller.ops.reduce("sum", (4, 100), (1,), dtype="uint8", acc_dtype="uint8", out_dtype="int32")
    x = np.full((4, 100), 3, np.uint8)
    np.testing.assert_array_equal(expr.evaluate([x])[0], 300 % 256)
    got = roller.compile(expr, "cpu", cache=False, deterministic=True)(x)
    np.testing.assert_array_equal(got, 300 % 256)
    assert check(expr, [x], got).ok
    assert not check(expr, [x], np.full(4, 300, np.int32)).ok


@pytest.mark.parametrize(("fold", "start", "numpy"), [(tirx.max, False, np.max), (tirx.min, True, np.min)])
def test_extrema_of_truth_values_by_a_reducer_of_ones_own(fold: object, start: bool, numpy: object) -> None:
    x, r = te.placeholder((8, 4), name="X", dtype="bool"), te.reduce_axis((0, 4), name="r")

    def expression(first: bool) -> TensorExpr:
        reduce = te.comm_reducer(lambda a, b: fold(a, b), lambda _: tirx.const(first))
        return read([x, te.compute((8,), lambda i: reduce(x[i, r], axis=r), name="Y")])

    values = np.random.default_rng(0).random((8, 4)) < 0.5
    np.testing.assert_array_equal(expression(start).evaluate([values])[0], numpy(values, axis=1))
    with pytest.raises(ExprError, match=r"expected the m.. to start from"):
        expression(not start)
