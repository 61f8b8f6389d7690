"""Errors of element-wise float32 functions on processors, in units in the last place, over all magnitudes."""

import numpy as np
import pytest

pytest.importorskip("tvm")

from roller.expr import FUNCTIONS, Axis, Call, Const, Load, Stage, Tensor, TensorExpr, axis_index
from roller.models.onnx.operators.activations import _PARAMETRIC
from roller.ops.elementwise_functions import ELEMENT_FUNCTIONS
from tests.codegen.cpu_programs import kernel, program

N = 1 << 17
SMALLEST = 2.0**-149
X = Load("X", (axis_index("i"),))


def literal(value):
    return Const(float(value), "float32")


def sigmoid(x):
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def elu(x):
    return np.where(x < 0, np.expm1(np.minimum(x, 0)), x)


def onnx(op):
    build, defaults = _PARAMETRIC[op]
    return build(literal, X, *defaults.values())


def ready(name):
    return ELEMENT_FUNCTIONS[name].build(literal, X)


_SELU = 1.05070102214813232421875, 1.67326319217681884765625
#: Function: scalar tree, exact function, and the largest error in units in the last place.
CASES = {
    "exp": (Call("exp", (X,)), np.exp, 1.0),
    "expm1": (Call("expm1", (X,)), np.expm1, 2.0),
    "log1p": (Call("log1p", (X,)), np.log1p, 1.5),
    "sigmoid": (Call("sigmoid", (X,)), sigmoid, 2.0),
    "tanh": (Call("tanh", (X,)), np.tanh, 5.0),
    "erf": (Call("erf", (X,)), FUNCTIONS["erf"].numpy, 6.0),
    "sinh": (Call("sinh", (X,)), np.sinh, 2.0),
    "asinh": (Call("asinh", (X,)), np.arcsinh, 2.0),
    "atanh": (Call("atanh", (X,)), np.arctanh, 2.0),
    "softplus": (ready("softplus"), softplus, 2.0),
    "elu": (ready("elu"), elu, 2.0),
    "silu": (ready("silu"), lambda x: x * sigmoid(x), 3.0),
    "Elu": (onnx("Elu"), elu, 2.0),
    "Celu": (onnx("Celu"), elu, 2.0),
    "Selu": (onnx("Selu"), lambda x: _SELU[0] * np.where(x < 0, _SELU[1], 1) * elu(x), 3.0),
    "Softplus": (onnx("Softplus"), softplus, 2.0),
    "Mish": (onnx("Mish"), lambda x: x * np.tanh(softplus(x)), 6.0),
}
#: Functions that multiply a result by their argument, so that the rounding of a subnormal result grows with it.
PRODUCTS = ("silu", "Mish")


def arguments():
    """All exponents, both signs, many kinds of NaN, and the transitions of the implementations."""
    rng = np.random.default_rng(7)
    upper = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
    every = (upper + rng.integers(0, 1 << 16, 1 << 16).astype(np.uint32)).view(np.float32)
    ends = ((-104.5, -86.5), (-20, 20), (-1, 1), (87.5, 90), (-9.5, -7.5), (-40, -7))
    near = [np.linspace(low, high, 8000) for low, high in ends]
    points = [0.0, -0.0, np.inf, -np.inf, -1.0, 1.0, SMALLEST, -SMALLEST]
    given = np.concatenate([every, np.concatenate([*near, points]).astype(np.float32)])
    return np.concatenate([given, rng.uniform(-150, 150, N - len(given)).astype(np.float32)])


@pytest.fixture(scope="module")
def results():
    at = axis_index("i")
    stages = tuple(
        Stage(Tensor(f"Y_{name}", (N,), "float32"), (Axis("i", N),), (at,), body, None, "float32")
        for name, (body, _, _) in CASES.items()
    )
    e = TensorExpr("functions", (Tensor("X", (N,), "float32"),), stages, tuple(s.name for s in stages))
    x = arguments()
    return x, dict(zip(CASES, kernel(e, program(e, "streaming", {"i": 32}, {"i": 4096}, "i"))(x), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_errors_in_the_last_place(results, name):
    x, found = results
    _, exact, ulps = CASES[name]
    with np.errstate(all="ignore"):
        wanted = exact(x.astype(np.float64))
        rounded = wanted.astype(np.float32)
        got = found[name].astype(np.float64)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
        np.testing.assert_array_equal(got[np.isinf(rounded)], rounded[np.isinf(rounded)])
        unit = np.ldexp(1.0, np.maximum(np.frexp(wanted)[1] - 24, -149))
        allowed = ulps * unit + (np.abs(x) * SMALLEST if name in PRODUCTS else 0)
        error = np.abs(got - wanted)
    wrong = np.isfinite(rounded) & ~(error <= allowed)
    worst = np.argmax(np.where(wrong, error / unit, 0))
    assert not wrong.any(), f"{name}({x[worst]!r}): got {got[worst]!r}, expected {wanted[worst]!r}"
    zeros = (x == 0) & (wanted == 0)
    np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(x[zeros]))


def test_softmax_keeps_subnormal_results():
    import roller

    e = roller.ops.softmax((8, 64))
    x = np.zeros((8, 64), np.float32)
    x[:, 1:] = -np.linspace(80, 110, 8 * 63, dtype=np.float32).reshape(8, 63)
    got = kernel(e, program(e, "rows", {"k": 8}, {"d0": 1, "k": 64}, "k"))(x)
    powers = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(got, powers / powers.sum(axis=1, keepdims=True), rtol=2.0**-22, atol=SMALLEST)
    assert got[0, 0] == 1.0
