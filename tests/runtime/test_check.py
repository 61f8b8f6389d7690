"""The error bound accepts what rounding explains and nothing more."""

import numpy as np
import pytest

from roller import ops
from roller.errors import ExprError
from roller.expr import Axis, Call, Cast, Load, Stage, Tensor, TensorExpr, axis_index
from roller.runtime.check import Oracle, check
from roller.runtime.output_elements_to_compare import sample_output_points
from roller.runtime.random_inputs import random_inputs


def test_a_float32_product_passes_and_a_wrong_element_is_named():
    e = ops.matmul(40, 30, 200)
    a, b = random_inputs(e)
    good = a @ b
    assert check(e, [a, b], good).ok
    bad = good.copy()
    bad[39, 7] += 0.01
    result = check(e, [a, b], bad)
    assert not result.ok
    assert result.max_ratio > 1
    assert "output 'C'[39, 7]" in result.message


def test_the_bound_follows_the_accumulator_not_the_reference_value():
    e = ops.matmul(1, 1, 4096)
    a = np.full((1, 4096), 0.1, np.float32)
    a[0, ::2] *= -1  # cancels to zero: a bound relative to the result would be zero
    b = np.ones((4096, 1), np.float32)
    limit = 4 * 2.0**-23 * 64 * 4096 * 0.1
    assert check(e, [a, b], np.full((1, 1), 0.9 * limit, np.float32)).ok
    assert not check(e, [a, b], np.full((1, 1), 1.1 * limit, np.float32)).ok


@pytest.mark.parametrize("op", [ops.softmax, ops.layer_norm, ops.rms_norm])
def test_multi_stage_expressions_in_float32(op):
    e = op((16, 257))
    arrays = random_inputs(e)
    exact = e.evaluate(arrays)[0]
    assert check(e, arrays, exact.astype(np.float32)).ok
    assert not check(e, arrays, (exact * (1 + 3e-3)).astype(np.float32)).ok
    assert not check(e, arrays, exact.astype(np.float32)[:, ::-1].copy()).ok


def test_sums_of_few_digits_are_exact():
    """One of a million elements missing is far below the bound of a sum of a million."""
    for e in (ops.reduce("sum", (1, 1 << 20), axes=(1,)), ops.matmul(1, 1, 4096)):
        arrays = random_inputs(e)
        exact = e.evaluate(arrays)[0].astype(np.float32)
        assert check(e, arrays, exact).ok
        assert not check(e, arrays, exact + np.float32(2.0**-5)).ok
    e = ops.conv2d(1, 64, 8, 8, 8, 3, 3)  # Winograd's algorithm adds up other numbers
    arrays = random_inputs(e)
    exact = e.evaluate(arrays)[0].astype(np.float32)
    assert check(e, arrays, exact + np.float32(2.0**-15)).ok


def test_integers_must_be_equal():
    e = ops.matmul(5, 6, 7, dtype="int8")
    a, b = random_inputs(e)
    good = a.astype(np.int32) @ b.astype(np.int32)
    assert check(e, [a, b], good).ok
    good[2, 3] += 1
    assert not check(e, [a, b], good).ok


def test_nan_is_wrong_unless_expected():
    e = ops.elementwise(("relu",), (8,))
    x = np.arange(8, dtype=np.float32)
    y = x.copy()
    assert check(e, [x], y).ok
    y[3] = np.nan
    assert check(e, [x], y).max_ratio == np.inf


def test_overflow_of_a_narrow_output_may_be_infinite():
    e = ops.matmul(1, 1, 1000, dtype="float16")
    a = np.full((1, 1000), 100, np.float16)
    b = np.full((1000, 1), 100, np.float16)
    assert check(e, [a, b], np.full((1, 1), np.inf, np.float16)).ok
    assert not check(e, [a, b], np.full((1, 1), -np.inf, np.float16)).ok


def test_large_outputs_are_sampled_at_corners_too():
    e = ops.matmul(500, 500, 64)
    a, b = random_inputs(e)
    good = a @ b
    oracle = Oracle(e, [a, b])
    result = oracle.check([good])
    assert result.ok
    assert 200 < result.points < 1000
    good[-1, -1] += 1
    assert not oracle.check([good]).ok
    points = sample_output_points(ops.elementwise("relu", (7, 1, 9)), np.random.default_rng(0))["Y"]
    assert len(np.unique(points, axis=0)) == len(points)
    assert (points.max(axis=0) == [6, 0, 8]).all()


@pytest.mark.parametrize("length", [100, 1_000_000])
def test_a_scalar_output(length):
    e = ops.reduce("sum", (length,))
    (x,) = random_inputs(e)
    assert check(e, [x], np.asarray(x.sum())).ok
    assert not check(e, [x], np.asarray(x.sum() + length)).ok


def test_cancellation_in_an_elementwise_stage_is_allowed_for():
    i = axis_index("i")
    body = Call("sub", (Call("exp", (Load("X", (i,)),)), Call("exp", (Load("Z", (i,)),))))
    stage = Stage(Tensor("Y", (64,)), (Axis("i", 64),), (i,), body)
    e = TensorExpr("difference", (Tensor("X", (64,)), Tensor("Z", (64,))), (stage,), ("Y",))
    x = np.linspace(1, 10, 64, dtype=np.float32)
    z = np.nextafter(x, np.float32(100))
    assert check(e, [x, z], np.exp(x) - np.exp(z)).ok
    assert not check(e, [x, z], np.exp(x)).ok


def test_wrong_shapes_are_refused():
    e = ops.matmul(4, 4, 4)
    arrays = random_inputs(e)
    with pytest.raises(ExprError, match=r"output 'C': expected shape \(4, 4\), got \(4, 5\)"):
        check(e, arrays, np.zeros((4, 5), np.float32))
    with pytest.raises(ExprError, match="expected 1 output, got 2"):
        check(e, arrays, [np.zeros((4, 4), np.float32)] * 2)


def test_inputs_are_seeded():
    e = ops.matmul(4, 5, 6)
    one, two, other = random_inputs(e, 3), random_inputs(e, 3), random_inputs(e, 4)
    assert all((a == b).all() for a, b in zip(one, two, strict=True))
    assert (one[0] != other[0]).any()


@pytest.mark.parametrize(("through", "scalar"), [("float32", np.float32), ("float16", np.float16)])
def test_what_passes_through_a_coarser_dtype_is_off_by_its_roundings(through, scalar):
    """Cast, Exp, Cast in float64: the result has only the digits of the dtype in the middle."""
    x, y = Tensor("x", (64,), "float64"), Tensor("y", (64,), "float64")
    load = Load("x", (axis_index("i"),))
    body = Cast("float64", Call("exp", (Cast(through, load),)))
    e = TensorExpr("e", (x,), (Stage(y, (Axis("i", 64),), (axis_index("i"),), body, None, "float64"),), ("y",))
    given = np.linspace(-3, 3, 64)
    got = np.exp(given.astype(scalar)).astype(np.float64)
    eps = float(np.finfo(scalar).eps)
    assert check(e, [given], got).ok
    assert check(e, [given], got * (1 + 4 * eps)).ok, "a special function may be off by 8 units"
    assert not check(e, [given], got * (1 + 40 * eps)).ok
    exact = Stage(y, (Axis("i", 64),), (axis_index("i"),), Call("exp", (load,)), None, "float64")
    assert not check(TensorExpr("e", (x,), (exact,), ("y",)), [given], got).ok, "nothing is rounded there"
    large = np.full(64, 700.0)
    assert check(e, [large], np.full(64, np.inf)).ok, "it overflows in the middle"


def nothing_to_tell(body="log"):
    e = ops.elementwise((body,), (64,))
    return e, -1 - np.arange(64, dtype=np.float32)


def test_a_check_says_how_many_elements_it_could_decide():
    e, x = nothing_to_tell()
    mixed = np.where(np.arange(64) % 4 == 0, -x, x)
    with np.errstate(invalid="ignore"):
        result = check(e, [mixed], np.log(mixed))
    assert (result.ok, result.points, result.decided, result.doubt) == (True, 64, 16, "")


def test_a_check_that_decides_nothing_says_so():
    e, x = nothing_to_tell()
    result = check(e, [x], np.full(64, np.nan, np.float32))
    assert (result.ok, result.decided) == (True, 0)
    assert result.doubt.startswith("unchecked: none of 64 compared elements")
    wrong = check(e, [x], np.zeros(64, np.float32))
    assert (wrong.ok, wrong.doubt) == (False, "")
