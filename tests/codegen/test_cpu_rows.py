"""Row reductions, multi-stage expressions and streaming on the CPU."""

import math

import numpy as np
import pytest

from roller import ops
from roller.expr import Axis, Call, Load, Stage, Tensor, TensorExpr, axis_index
from tests.codegen.cpu_programs import assert_right, canonical, kernel, program

SHAPES = [(5, 37), (7, 1), (1, 5), (40, 200), (3, 30000), (1, 70001)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("op", [ops.softmax, ops.layer_norm, ops.rms_norm])
def test_multi_stage_rows(op, shape):
    e = op(shape)
    assert_right(e, program(canonical(e), "rows", task={"d0": 4}))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["sum", "mean", "max", "argmax"])
def test_reductions_over_rows_columns_and_everything(kind, shape):
    for axes in ((1,), (0,), None):
        e = ops.reduce(kind, shape, axes=axes)
        assert_right(e, program(canonical(e), "rows", task={"d0": 4}))


def test_split_reduction_gives_the_same_bits_on_every_run():
    e = ops.reduce("sum", (300_007,))
    run = kernel(e, program(canonical(e), "rows"))
    x = np.random.default_rng(0).standard_normal(300_007, dtype=np.float32)
    assert len({float(run(x)) for _ in range(5)}) == 1


def test_columns_vectorised_across_neighbouring_outputs():
    e = ops.reduce("sum", (13, 37), axes=(0,))
    assert_right(e, program(canonical(e), "rows", {"d1": 16}, {"d1": 16}, "d1"))
    e = ops.softmax((21, 37), axis=0)
    assert_right(e, program(canonical(e), "rows", {"d1": 16}, {"d1": 16}, "d1"))


def test_middle_axis_reductions():
    for kind in ("sum", "argmax"):
        e = ops.reduce(kind, (5, 13, 21), axes=(1,))
        assert_right(e, program(canonical(e), "rows"))


@pytest.mark.parametrize("shape", [(17, 11, 3), (1,), (5,), (100_003,)])
def test_streaming_of_any_length(shape):
    e = ops.elementwise(("relu",), shape)
    c = canonical(e)
    name = c.axes[0].name
    assert_right(e, program(c, "streaming", {name: 64}, {name: 256}, name))
    assert_right(e, program(c, "streaming"))


def _unary(fn, n):
    at = axis_index("i")
    body = Call(fn, (Load("X", (at,)),))
    return TensorExpr(fn, (Tensor("X", (n,)),), (Stage(Tensor("Y", (n,)), (Axis("i", n),), (at,), body),), ("Y",))


@pytest.mark.parametrize(
    ("fn", "reference"), [("exp", math.exp), ("tanh", math.tanh), ("erf", math.erf), ("sigmoid", None)]
)
def test_transcendental_functions_and_their_special_values(fn, reference):
    n = 4099
    e = _unary(fn, n)
    x = np.linspace(-87, 88, n).astype(np.float32)
    x[:5] = [np.inf, -np.inf, np.nan, 0.0, -0.0]
    got = kernel(e, program(e, "streaming", {"i": 32}, {"i": 1024}, "i"))(x)
    expected = e.evaluate([x])[0]
    np.testing.assert_allclose(got, expected, rtol=6e-7, atol=2e-38)


def test_tanh_in_float64_keeps_its_digits_near_zero():
    e = ops.elementwise(("tanh",), (1001,), dtype="float64")
    x = np.linspace(-1e-3, 1e-3, 1001)
    got = kernel(e, program(canonical(e), "streaming", {"d0": 16}, {"d0": 64}, "d0"))(x)
    np.testing.assert_allclose(got, np.tanh(x), rtol=1e-15)


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "int64", "uint8", "bfloat16"])
def test_dtypes_of_rows_and_streams(dtype):
    e = ops.elementwise(("relu",), (1000,), dtype=dtype)
    assert_right(e, program(canonical(e), "streaming", {"d0": 32}, {"d0": 64}, "d0"))
    e = ops.reduce("sum", (9, 70), axes=(1,), dtype=dtype)
    assert_right(e, program(canonical(e), "rows"))
    if "float" in dtype:
        e = ops.softmax((9, 70), dtype=dtype)
        assert_right(e, program(canonical(e), "rows"))


def test_a_chain_of_stages_streams_in_one_pass_and_several_outputs_are_written():
    i = axis_index("i")
    a = Stage(Tensor("T", (50,)), (Axis("i", 50),), (i,), Call("mul", (Load("X", (i,)), Load("X", (i,)))))
    j = axis_index("j")
    low = Stage(Tensor("P", (20,)), (Axis("j", 20),), (j,), Load("T", (j,)))
    high = Stage(Tensor("Q", (30,)), (Axis("l", 30),), (axis_index("l"),), Load("T", (axis_index("l", 1, 20),)))
    e = TensorExpr("split", (Tensor("X", (50,)),), (a, low, high), ("P", "Q"))
    x = np.arange(50, dtype=np.float32)
    p, q = kernel(e, program(e, "streaming", vector="i"))(x)
    np.testing.assert_array_equal(p, x[:20] ** 2)
    np.testing.assert_array_equal(q, x[20:] ** 2)


def test_broadcast_inputs_stream():
    e = ops.elementwise(("bias_add", "relu"), (9, 33))
    c = canonical(e)
    assert_right(e, program(c, "streaming", {c.axes[-1].name: 32}, {c.axes[-1].name: 32}, c.axes[-1].name))


@pytest.mark.parametrize("extent", [3, 9, 15, 49, 63, 65, 121, 127, 200])
@pytest.mark.parametrize("fn", ["sum", "max", "prod"])
def test_tails_of_rows_are_parts_of_a_vector(fn, extent):
    e = ops.reduce(fn, (13, extent), axes=(1,))
    names = [a.name for a in canonical(e).axes]
    assert_right(e, program(canonical(e), "rows", {names[1]: 64}, {names[0]: 12}, names[1], 16))
