"""Enclosures hold what right kernels compute, and little else."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.check_quality.expressions import random_expression
from benchmarks.check_quality.interpreter import Interpreter
from roller import ops
from roller.expr import Axis, Call, Cast, Const, IndexValue, Load, Stage, Tensor, TensorExpr, axis_index
from roller.expr.interval_rules import enclose_call
from roller.expr.reference_with_error_bounds import ReferenceWithBounds
from roller.expr.rounded_enclosures import EPS, EnclosedValues, promote_dtypes, round_enclosure
from roller.runtime.check import Oracle, check
from roller.runtime.random_inputs import random_inputs
from roller_runtime.core.dtypes import round_to_dtype
from tests.offenders import every

AT = axis_index("i")
X = Load("x", (AT,))


def pointwise(body, dtype="float32", out=None, n=64):
    x, y = Tensor("x", (n,), dtype), Tensor("y", (n,), out or dtype)
    return TensorExpr("e", (x,), (Stage(y, (Axis("i", n),), (AT,), body, None, out or dtype),), ("y",))


def check_right_kernel(seed):
    e = random_expression(seed, points=1000)
    arrays = random_inputs(e, seed)
    made = Interpreter(e, np.random.default_rng(seed))(arrays)
    assert check(e, arrays, [np.asarray(a) for a in made]).message == ""


@every("seed", range(24))
def test_a_right_kernel_is_not_refused(seed):
    check_right_kernel(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(24, 1024, 100))
def test_more_right_kernels_are_not_refused(first):
    for seed in range(first, first + 100):
        check_right_kernel(seed)


def test_a_rounded_sum_in_a_logarithm_widens_its_bounds():
    """log(1 + exp(-|x|)) near zero: the addition loses what the logarithm would have shown, and log1p shows it."""
    power = Call("exp", (Call("neg", (Call("abs", (X,)),)),))
    e = pointwise(Call("log", (Call("add", (Const(1.0), power)),)))
    x = np.linspace(-30, 30, 64, dtype=np.float32)
    rough = np.log(np.float32(1) + np.exp(-np.abs(x)))
    assert check(e, [x], rough).ok
    assert not check(e, [x], rough + np.float32(1e-5)).ok
    exact = pointwise(Call("log1p", (power,)))
    assert check(exact, [x], np.log1p(np.exp(-np.abs(x)))).ok
    assert not check(exact, [x], rough).ok


@pytest.mark.parametrize(("narrow", "wide"), [("float32", "float64"), ("float16", "float32")])
def test_arithmetic_is_bounded_in_the_dtype_it_is_done_in(narrow, wide):
    e = pointwise(Cast(wide, Call("add", (X, Const(0.3, narrow)))), narrow, wide)
    (x,) = random_inputs(e)
    good = (x + np.dtype(narrow).type(0.3)).astype(wide)
    assert check(e, [x], good).ok
    assert not check(e, [x], good + 4 * EPS[narrow]).ok
    widened = ops.elementwise("add", (64,), dtype=narrow, out_dtype=wide)
    a, b = random_inputs(widened)
    assert check(widened, [a, b], a.astype(wide) + b.astype(wide)).ok


@pytest.mark.parametrize("step", ["floor", "ceil", "round", "trunc"])
def test_a_step_lands_on_the_neighbour_only_where_the_value_is_within_its_bound(step):
    body = Cast("int32", Call(step, (Call("mul", (X, Const(0.1))),)))
    e = pointwise(body, out="int32")
    x = np.arange(64, dtype=np.float32)
    exact = e.evaluate([x])[0]
    f = {"floor": np.floor, "ceil": np.ceil, "round": np.rint, "trunc": np.trunc}[step]
    assert check(e, [x], f(x * np.float32(0.1)).astype(np.int32)).ok
    near = np.abs(x * 0.1 - np.rint(x * 0.1)) < 1e-5 if step != "round" else np.abs(x * 0.1 % 1 - 0.5) < 1e-5
    for i in range(64):
        off = exact.copy()
        off[i] += 1
        below = exact.copy()
        below[i] -= 1
        accepted = [check(e, [x], o.astype(np.int32)).ok for o in (off, below)]
        assert sum(accepted) <= (1 if near[i] else 0), i


def test_a_quantised_chain_accepts_what_single_precision_gives():
    """Cast, Sigmoid, Div, Cast: the second cast truncates a quotient that is rounded."""
    inner = Call("sigmoid", (Cast("float32", Cast("int32", Call("mul", (X, Const(3.0))))),))
    e = pointwise(Cast("int32", Call("div", (inner, Const(0.0039)))), out="int32", n=256)
    x = np.linspace(-4, 4, 256, dtype=np.float32)
    real = np.trunc(x * np.float32(3)).astype(np.int32).astype(np.float32)
    one = np.float32(1)
    good = np.trunc(one / (one + np.exp(-real)) / np.float32(0.0039)).astype(np.int32)
    assert check(e, [x], good).ok
    assert not check(e, [x], good + 1).ok


def test_a_position_is_right_where_its_value_may_be_the_largest():
    n = 8
    at, a = (axis_index("a"),), Axis("a", n)
    reduced = (Axis("a", n, "reduction"),)
    made = Stage(Tensor("E", (n,)), (a,), at, Call("exp", (Load("x", at),)))
    best = Stage(Tensor("M", ()), reduced, (), Load("E", at), "max")
    hit = Call("select", (Call("eq", (Load("E", at), Load("M", ()))), IndexValue(at[0]), Const(2**31 - 1, "int32")))
    first = Stage(Tensor("Y", (), "int32"), reduced, (), hit, "min", "int32")
    e = TensorExpr("first", (Tensor("x", (n,)),), (made, best, first), ("Y",))
    x = np.array([0, 1, 3, 0, np.nextafter(np.float32(3), np.float32(2)), 1, 2, 0], np.float32)
    given = [check(e, [x], np.array(i, np.int32)).ok for i in range(n)]
    assert given[2] and given[4]
    assert not any(given[i] for i in (0, 1, 5, 6, 7))
    assert not check(e, [x], np.array(2**31 - 1, np.int32)).ok


def test_terms_that_repeat_round_alike():
    """A sum of thousands of equal terms is off by more than one of different terms ever is."""
    axes = (Axis("i", 1), Axis("r", 1 << 16, "reduction"))
    e = TensorExpr("same", (Tensor("x", (1,)),), (Stage(Tensor("y", (1,)), axes, (AT,), X, "sum"),), ("y",))
    x = np.array([0.1], np.float32)
    one_by_one = np.add.accumulate(np.full(1 << 16, x[0], np.float32))[-1:]
    assert check(e, [x], one_by_one).ok
    assert not check(e, [x], one_by_one * np.float32(1.1)).ok


def test_terms_that_happen_to_be_equal_round_alike():
    """Squares of numbers of few digits, summed in turn: off by more than sums of different terms are."""
    n = 2304
    axes = (Axis("i", 1), Axis("r", n, "reduction"))
    v = Call("add", (Load("x", (AT, axis_index("r"))), Const(0.0390625)))
    stage = Stage(Tensor("y", (1,)), axes, (AT,), Call("mul", (v, v)), "sum")
    e = TensorExpr("squares", (Tensor("x", (1, n)),), (stage,), ("y",))
    most = 0.0
    for seed in range(130, 150):
        x = (np.random.default_rng(seed).standard_normal((1, n)) * 4).round().astype(np.float32) / 4
        terms = np.square(x[0] + np.float32(0.0390625))
        in_turn = np.add.accumulate(terms)[-1:]
        most = max(most, abs(in_turn[0] / terms.sum(dtype=np.float64) - 1))
        assert check(e, [x], in_turn).ok
        assert not check(e, [x], in_turn - np.float32(1)).ok
    assert most > 4 * EPS["float32"] * n**0.5


def test_overflow_may_be_infinite_and_underflow_zero():
    e = pointwise(Call("exp", (X,)), n=3)
    x = np.array([89.0, -88.0, 1.0], np.float32)
    assert check(e, [x], np.array([np.inf, 0.0, np.exp(np.float32(1))], np.float32)).ok
    assert not check(e, [x], np.array([-np.inf, 0.0, np.exp(np.float32(1))], np.float32)).ok
    assert not check(e, [x], np.array([np.inf, 0.0, 0.0], np.float32)).ok


def test_nan_is_wanted_where_it_is_certain_and_allowed_where_it_is_possible():
    e = pointwise(Call("sqrt", (Call("sub", (X, Call("mul", (X, Const(1.1))))),)), n=2)
    x = np.array([1.0, -1.0], np.float32)
    assert check(e, [x], np.array([np.nan, np.sqrt(0.1)], np.float32)).ok
    assert not check(e, [x], np.array([0.0, np.sqrt(0.1)], np.float32)).ok
    e = pointwise(Call("max", (Call("log", (X,)), Const(0.0))), n=2)
    assert check(e, [x], np.array([0.0, np.nan], np.float32)).ok
    assert not check(e, [x], np.array([0.0, 0.0], np.float32)).ok, "NaN wins"
    free = replace(e, propagate_nan=False)
    assert check(free, [x], np.array([0.0, 0.0], np.float32)).ok, "a processor's maximum may lose it"
    assert check(free, [x], np.array([0.0, np.nan], np.float32)).ok


@every("kind", ["max", "min"])
def test_nan_is_the_extreme_of_what_it_is_among(kind):
    e = ops.reduce(kind, (3, 4), (1,))
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    x[1, 2] = np.nan
    right = getattr(x, kind)(axis=1)
    lost = np.where(np.isnan(right), getattr(np, f"nan{kind}")(x, axis=1), right)
    assert check(e, [x], right).ok and not check(e, [x], lost).ok
    assert check(replace(e, propagate_nan=False), [x], lost).ok


def test_rounding_keeps_what_a_dtype_represents_a_point():
    exact = EnclosedValues.point(np.array([0.5, 3.0]))
    assert round_enclosure(exact, "float32").is_point
    third = round_enclosure(EnclosedValues.point(np.array([1 / 3])), "float16")
    assert third.low[0] <= round_to_dtype(1 / 3, "float16") <= third.high[0] < 1 / 3 + 2.0**-11
    assert promote_dtypes("int64", "float32") == "float32"


def test_a_quotient_through_zero_may_be_anything():
    one = EnclosedValues.point(np.array([1.0]))
    near = EnclosedValues(np.array([1e-9]), np.array([-1e-9]), np.array([3e-9]))
    assert enclose_call("div", [one, near], "float32").unknown.all()
    assert not enclose_call("div", [near, one], "float32").unknown.any()


def test_a_power_of_nan_may_be_one():
    e = pointwise(Call("pow", (Call("exp", (Call("mul", (X, Const(1e-9))),)), Call("log", (X,)))), n=1)
    x = np.array([-1.0], np.float32)
    assert check(e, [x], np.ones(1, np.float32)).ok


@pytest.mark.parametrize("combiner", ["max", "min"])
def test_a_possible_nan_in_one_piece_of_a_reduction_may_come_out(combiner, monkeypatch):
    monkeypatch.setattr("roller.expr.reference_with_error_bounds.CHUNK", 4)
    axes = (Axis("i", 1), Axis("r", 8, "reduction"))
    # The root of a difference near zero is a number or NaN, as it rounds.
    x = Load("x", (AT, axis_index("r")))
    body = Call("sqrt", (Call("sub", (Call("mul", (x, Const(0.1))), Call("mul", (Const(0.1), x)))),))
    stage = Stage(Tensor("y", (1,)), axes, (AT,), Call("add", (body, x)), combiner)
    e = TensorExpr("extreme", (Tensor("x", (1, 8)),), (stage,), ("y",))
    given = np.array([[1, 2, 3, 4, 0, 0, 0, 0]], np.float32)
    right = given.max() if combiner == "max" else given.min()
    assert check(e, [given], np.array([np.nan], np.float32)).ok
    assert check(e, [given], np.array([right], np.float32)).ok


def test_enclosures_agree_with_the_reference():
    for e in (ops.softmax((6, 40)), ops.layer_norm((5, 33)), ops.conv2d(1, 3, 7, 7, 4, 3, 3, padding=1)):
        arrays = random_inputs(e)
        run = ReferenceWithBounds(e, {t.name: a for t, a in zip(e.inputs, arrays, strict=True)})
        (t,) = e.output_tensors
        points = np.indices(t.shape).reshape(len(t.shape), -1).T
        found = run.at(t.name, points)
        np.testing.assert_allclose(found.value, e.evaluate(arrays)[0].ravel(), rtol=1e-12)
        assert (found.low <= found.value).all()
        assert (found.value <= found.high).all()
        assert Oracle(e, arrays).check([e.evaluate(arrays)[0].astype(np.float32)]).ok
