"""Statements that TVM takes back to scalars may bind values: each pattern here once had no kernel at all."""

import numpy as np
import pytest

pytest.importorskip("tvm")

from roller.te.compat import te, tirx
from roller.te.reader import read as read_te
from roller.templates.cpu.emit.mathlib import replace_math_library_calls
from roller.templates.cpu.emit.serialize_vector_loops import serialize_vector_loops
from roller.templates.cpu.emit.tir_loop_constructors import LoopBuilder, declare_buffer, read_element, write_element
from tests.codegen.cpu_programs import kernel, program

N = 1003


def built(value):
    x = te.placeholder((N,), name="X")
    e = read_te([x, te.compute((N,), lambda i: value(x[i]), name="Y")])
    return e, kernel(e, program(e, "streaming", {"i": 64}, {"i": 256}, "i"))


def quantised(v, scale):
    rounded = tirx.nearbyint(v / tirx.const(scale, "float32")) + 3.0
    return tirx.max(tirx.min(rounded, tirx.const(127.0, "float32")), tirx.const(-128.0, "float32")).astype("int8")


def restored(v, scale):
    return (v.astype("int32") - 3).astype("float32") * tirx.const(scale, "float32")


CASES = {
    "quantised, restored, squashed, quantised, restored": lambda v: restored(
        quantised(tirx.sigmoid(restored(quantised(v, 0.05), 0.05)), 0.01), 0.01
    ),
    "gelu between two": lambda v: restored(quantised(tirx.erf(restored(quantised(v, 0.05), 0.05)) * v, 0.01), 0.01),
    "a call without vectors around a binding": lambda v: tirx.atan(tirx.exp(tirx.atan(v))) * 0.5,
    "a branch by data around a binding": lambda v: (
        tirx.atan(tirx.exp(tirx.if_then_else(v > 0.0, tirx.exp(v), v))) * tirx.const(2.0, "float32")
    ),
    "integers": lambda v: tirx.atan(tirx.exp(tirx.atan(v))).astype("int32").astype("float32") * 2.0,
}


@pytest.mark.parametrize("case", CASES)
def test_bindings_in_statements_without_vectors_build(case):
    e, made = built(CASES[case])
    x = np.random.default_rng(0).uniform(-3, 3, N).astype("float32")
    np.testing.assert_allclose(made(x), e.evaluate([x])[0], rtol=1e-5, atol=0.0101)  # a step of the coarser scale


def kind_of(value):
    """Return the kind of the vector loop of one statement, after it was looked at."""
    x, y = (declare_buffer(n, (64,), "float32", private=False) for n in "xy")
    loop = LoopBuilder().loop(64, lambda i: write_element(y, value(read_element(x, i)), i), "vector")
    return serialize_vector_loops(replace_math_library_calls(loop)).kind


def test_only_statements_that_bind_and_fall_back_are_made_serial():
    vector, scalar = tirx.ForKind.VECTORIZED, tirx.ForKind.SERIAL
    assert kind_of(lambda v: tirx.nearbyint(tirx.exp(v)) * tirx.rsqrt(v)) == vector
    assert kind_of(lambda v: tirx.atan(v)) == vector  # TVM's own way back is right where nothing is bound
    assert kind_of(lambda v: tirx.atan(tirx.exp(v))) == scalar
    assert kind_of(lambda v: tirx.if_then_else(v > 0.0, tirx.exp(v), v)) == scalar
