"""Functions of functions: the time of a build grows with their number, not with a power of it."""

import numpy as np
import pytest

pytest.importorskip("tvm")

from roller.te.compat import te, tirx, tvm_ffi
from roller.te.reader import read as read_te
from roller.templates.cpu.emit.mathlib import replace_math_library_calls
from roller.templates.cpu.emit.remove_nested_bindings import remove_nested_bindings
from roller.templates.cpu.emit.tir_loop_constructors import LoopBuilder, declare_buffer, read_element, write_element
from tests.codegen.cpu_programs import kernel, program

N = 259


def lets(node):
    found = []
    tvm_ffi.structural_walk(node, (tirx.Let, found.append))
    return found


def lowered(value, kind="vector"):
    x, y = (declare_buffer(n, (64,), "float32", private=False) for n in "xy")
    return remove_nested_bindings(
        replace_math_library_calls(
            LoopBuilder().loop(64, lambda i: write_element(y, value(read_element(x, i), i), i), kind)
        )
    )


def chain(v, depth):
    for i in range(depth):
        v = (tirx.tanh, tirx.sigmoid, tirx.erf, tirx.exp)[i % 4](v)
    return v


@pytest.mark.parametrize("kind", ["vector", "serial"])
def test_no_binding_stays_in_the_value_of_another(kind):
    short, long = (lowered(lambda v, i, n=n: chain(v, n), kind) for n in (8, 32))
    for body in (short, long):
        assert lets(body)
        assert not any(lets(let.value) for let in lets(body))
    assert len(str(long)) < 4.5 * len(str(short))


def test_what_a_branch_binds_stays_in_it():
    body = lowered(lambda v, i: tirx.if_then_else(i < 4, chain(v, 3), tirx.const(0.0, "float32")))
    assert not any(lets(let.value) for let in lets(body))
    branches = []
    tvm_ffi.structural_walk(body, (tirx.IfThenElse, branches.append))
    assert len(branches) == 1
    assert len(lets(branches[0])) == len(lets(body)) > 0


def test_a_single_function_is_left_as_it_was():
    x, y = (declare_buffer(n, (64,), "float32", private=False) for n in "xy")
    body = replace_math_library_calls(
        LoopBuilder().loop(64, lambda i: write_element(y, tirx.sigmoid(read_element(x, i)), i), "vector")
    )
    assert remove_nested_bindings(body).same_as(body)


def assert_chain_right(value):
    x = te.placeholder((N,), name="X")
    e = read_te([x, te.compute((N,), lambda i: value(x[i], i), name="Y")])
    data = np.random.default_rng(0).uniform(-3, 3, N).astype("float32")
    got = kernel(e, program(e, "streaming", {"i": 64}, {"i": 256}, "i"))(data)
    np.testing.assert_allclose(got, e.evaluate([data])[0], rtol=2e-5, atol=1e-5)


def test_twelve_functions_are_right():
    def mixed(v, i):
        half = tirx.const(0.5, "float32")
        v = chain(v, 5) - half
        v = tirx.Select(v > 0.0, tirx.tanh(v), tirx.exp(v))
        v = tirx.log(tirx.exp(v) + half)
        return tirx.erf(tirx.sqrt(tirx.abs(chain(v, 4))))

    assert_chain_right(mixed)


def test_functions_in_branches_by_position_are_right():
    assert_chain_right(
        lambda v, i: tirx.tanh(tirx.if_then_else(i % 5 < 2, chain(v, 3), tirx.sigmoid(tirx.atan(tirx.exp(v)))))
    )
