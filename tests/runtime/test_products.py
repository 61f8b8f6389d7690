"""Products of many factors: right in any order, wrong where one factor is missing, and neither vanishes."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from roller import ops
from roller.backends.periodic_inputs import periodic_inputs
from roller.expr import REDUCTION, Axis, Call, Cast, Const, Load, Stage, Tensor, TensorExpr, axis_index
from roller.expr.random_inputs_with_exact_sums import choose_exact_inputs
from roller.runtime.check import Oracle
from roller.runtime.random_inputs import random_inputs

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64}
AT, R = axis_index("i"), axis_index("r")
A, B = (Load(n, (AT, R)) for n in "ab")


def product(body, *inputs, rows=64, k=1000, dtype="float32", out=None):
    """``prod of body over r`` of inputs ``(rows, k)``."""
    axes = (Axis("i", rows), Axis("r", k, "reduction"))
    stage = Stage(Tensor("y", (rows,), out or dtype), axes, (AT,), body, "prod", dtype)
    return TensorExpr("product", tuple(Tensor(n, (rows, k), dtype) for n in inputs), (stage,), ("y",))


def in_order(factors, scalar):
    total = np.ones(factors.shape[0], scalar)
    with np.errstate(all="ignore"):
        for n in range(factors.shape[1]):
            total = (total * factors[:, n].astype(scalar)).astype(scalar)
    return total


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [3, 30, 300, 1000, 8192])
@pytest.mark.parametrize("inputs", [random_inputs, periodic_inputs], ids=["arrays", "device"])
def test_a_factor_too_few_or_too_many_is_wrong(dtype, k, inputs):
    e = product(A, "a", k=k, dtype=dtype)
    arrays = inputs(e)
    factors = np.asarray(arrays[0]).astype(np.float64)
    oracle, right = Oracle(e, arrays), factors.prod(axis=1)
    kept = oracle.check_compared_elements([right])
    assert kept.ok
    assert kept.decided > 0.9 * kept.points
    assert not oracle.check_compared_elements([np.zeros_like(right)]).ok
    for n in {0, k // 2, k - 1}:
        assert not oracle.check_compared_elements([right / factors[:, n]]).ok, n
        assert not oracle.check_compared_elements([right * factors[:, n]]).ok, n
    for order in (factors, factors[:, ::-1], np.sort(factors, axis=1)):
        result = oracle.check_compared_elements([in_order(order, DTYPES[dtype])])
        assert result.ok, result.message


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_operator_is_checked_too(dtype):
    e = ops.reduce("prod", (16, 1000), axes=(1,), dtype=dtype)
    (x,) = random_inputs(e)
    right = x.astype(np.float64).prod(axis=1)
    without = np.delete(x.astype(np.float64), 999, axis=1).prod(axis=1)
    oracle = Oracle(e, [x])
    assert oracle.check([right]).ok
    assert not oracle.check([without]).ok
    assert oracle.check([right]).decided == 16


@pytest.mark.parametrize("body", [
    Call("exp", (A,)), Call("sigmoid", (A,)), Call("add", (A, Const(1.0))), Call("mul", (A, Const(0.37))),
    Call("sub", (A, B)), Call("mul", (A, Call("tanh", (B,)))), Call("log", (A,)), Call("max", (A, Const(0.0))),
    Call("div", (A, B)), Call("sqrt", (A,)),
], ids=["exp", "sigmoid", "shift", "scale", "difference", "tanh", "log", "relu", "quotient", "root"])  # fmt: skip
def test_products_of_functions_stay_in_range(body):
    names = sorted({ld.tensor for ld in Stage(Tensor("t", ()), (), (), body).loads})
    e = product(body, *names)
    arrays = random_inputs(e)
    oracle, (exact,) = Oracle(e, arrays), e.evaluate(arrays)
    assert oracle.check([exact]).ok
    assert oracle.check([exact]).decided > 60
    assert not oracle.check([np.zeros_like(exact)]).ok
    shorter = product(body, *names, k=999)
    (missing,) = shorter.evaluate([a[:, :999] for a in arrays])
    assert not oracle.check([missing]).ok


def test_products_of_sums_stay_in_range():
    sums = Stage(Tensor("s", (64, 500)), (Axis("i", 64), Axis("j", 500), Axis("r", 8, "reduction")),
                 (AT, axis_index("j")), Load("x", (AT, axis_index("j"), R)), "sum")  # fmt: skip
    whole = Stage(Tensor("y", (64,)), (Axis("i", 64), Axis("j", 500, "reduction")), (AT,),
                  Load("s", (AT, axis_index("j"))), "prod")  # fmt: skip
    e = TensorExpr("products", (Tensor("x", (64, 500, 8)),), (sums, whole), ("y",))
    arrays = random_inputs(e)
    oracle, (exact,) = Oracle(e, arrays), e.evaluate(arrays)
    assert oracle.check([exact]).decided > 60
    assert not oracle.check([np.zeros_like(exact)]).ok


def test_a_factor_that_repeats_stays_near_one():
    (alone,) = product(A, "a").stages
    body = Call("mul", (Load("c", (AT,)), A))
    inputs = Tensor("a", (64, 1000)), Tensor("c", (64,))
    e = TensorExpr("repeated", inputs, (replace(alone, body=body),), ("y",))
    arrays = random_inputs(e)
    oracle, (exact,) = Oracle(e, arrays), e.evaluate(arrays)
    assert oracle.check([exact]).decided == 64


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8"])
def test_products_of_integers_do_not_vanish(dtype):
    e = product(A, "a", dtype=dtype)
    for inputs in (random_inputs, periodic_inputs):
        arrays = [np.asarray(a) for a in inputs(e)]
        (exact,) = e.evaluate(arrays)
        assert np.all(exact != 0)
        (shorter,) = product(A, "a", k=990, dtype=dtype).evaluate([arrays[0][:, :990]])
        assert not Oracle(e, arrays).check([shorter]).ok


def test_few_factors_are_usual_ones():
    for dtype, k in (("float64", 300), ("float32", 32), ("float16", 2)):
        assert choose_exact_inputs(product(A, "a", k=k, dtype=dtype)) == {}
    assert choose_exact_inputs(product(Call("exp", (A,)), "a", k=16)) == {}
    assert choose_exact_inputs(product(Cast("float32", Load("a", (AT, R))), "a", k=16)) == {}


def test_a_product_and_a_sum_of_one_input():
    """What suits the product is exact in the sum."""
    e = product(A, "a", k=300, dtype="float16")
    total = replace(e.stages[0], output=Tensor("z", (64,), "float16"), combiner="sum")
    e = TensorExpr("both", e.inputs, (*e.stages, total), ("y", "z"))
    arrays = random_inputs(e)
    exact = e.evaluate(arrays)
    oracle = Oracle(e, arrays)
    assert oracle.check(list(exact)).decided == 128
    assert not oracle.check([exact[0], exact[1] + 1]).ok
    assert not oracle.check([-exact[0], exact[1]]).ok


def test_an_input_that_is_added_up_and_multiplied_shows_a_missing_term_of_both():
    """Factors with normal logarithms are no numbers of few digits: a sum of 20,000 hid one of them."""
    at, along = Axis("i", 4), Axis("k", 20_000, REDUCTION)
    x = Tensor("X", (4, 20_000), "float32")
    load = Load("X", (axis_index("i"), axis_index("k")))
    stages = [
        Stage(Tensor(name, (4,), "float32"), (at, along), (axis_index("i"),), load, combiner)
        for name, combiner in (("S", "sum"), ("P", "prod"))
    ]
    expr = TensorExpr("both", (x,), tuple(stages), ("S", "P"))
    (values,) = random_inputs(expr)
    oracle = Oracle(expr, [values], 0)
    right = [values.astype(np.float64).sum(1).astype("f4"), values.astype(np.float64).prod(1).astype("f4")]
    assert oracle.check(right).ok
    for n, less in enumerate((right[0] - values[:, 7], right[1] / values[:, 0] * 4)):
        assert not oracle.check([less if n == m else right[m] for m in range(2)]).ok
