"""Guards that a selection implies stay guards: nothing is read out of bounds, whatever a compiler takes for proven."""

import operator
import re

import numpy as np
import pytest

pytest.importorskip("tvm")

import roller
from roller.backends.cpu import CpuKernel
from roller.expr import Load, walk_scalar_tree
from roller.runtime.guard_pages import AVAILABLE, find_out_of_bounds_access
from roller.te.compat import te, tirx
from roller.te.emit_tvm_expressions import constant, emit_choice
from roller.te.reader import read
from tests.codegen.cpu_programs import kernel, program

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="needs Linux to protect pages")

N = 50_000
_ZERO = tirx.const(0.0, "float32")


def guarded(t, i, size, other=_ZERO):
    return tirx.if_then_else(tirx.all(i >= 0, i < size), t[i], other)


CASES = {
    "if_then_else": lambda i, z, s: tirx.if_then_else(i >= 4, z[i], s[i]),
    "if_then_else of the end": lambda i, z, s: tirx.if_then_else(i < N - 4, z[i], s[i - (N - 4)]),
    "Select": lambda i, z, s: tirx.Select(i >= 4, z[i], guarded(s, i, 4)),
    "a guard of its own": lambda i, z, s: tirx.Select(i < 4, guarded(s, i, 4), z[i]),
    "nested conditions": lambda i, z, s: tirx.if_then_else(
        i >= 2, tirx.if_then_else(i >= 4, z[i], s[i]), tirx.Select(i < 1, s[i] * 2.0, s[i + 2])
    ),
    "under a function": lambda i, z, s: (
        tirx.sqrt(tirx.abs(tirx.if_then_else(i >= 4, z[i], s[i]))) + tirx.if_then_else(i < 4, s[i], z[i])
    ),
    "and": lambda i, z, s: tirx.Select(tirx.all(i < 4, guarded(s, i, 4) > 0.0), guarded(s, i, 4), z[i]),
    "or": lambda i, z, s: tirx.Select(tirx.any(i >= 4, guarded(s, i, 4) > 0.0), z[i], guarded(s, i, 4)),
    "a quotient": lambda i, z, s: tirx.if_then_else(tirx.floordiv(i, 8) < 1, guarded(s, i, 4), z[i]),
    "a remainder": lambda i, z, s: tirx.if_then_else(tirx.floormod(i, 16) < 4, s[tirx.floormod(i, 16)], z[i]),
    "a constant place": lambda i, z, s: tirx.if_then_else(i >= 4, z[3], s[i]),
    "a position as value": lambda i, z, s: tirx.if_then_else(i >= 4, i.astype("float32"), s[i]),
    "data decide": lambda i, z, s: tirx.Select(z[i] > 0.0, guarded(s, i, 4), guarded(s, N - 1 - i, 4)),
}


def streamed(tensors):
    e = read(tensors)
    return kernel(e, program(e, "streaming", {"i": 64}, {"i": 16384}, "i"))


@pytest.mark.parametrize("case", CASES)
def test_a_selection_reads_nothing_it_does_not_choose(case):
    z, s = te.placeholder((N,), name="Z"), te.placeholder((4,), name="S")
    made = streamed([z, s, te.compute((N,), lambda i: CASES[case](i, z, s), name="Y")])
    assert find_out_of_bounds_access(made) is None
    given = [np.random.default_rng(0).standard_normal(n).astype("float32") for n in (N, 4)]
    np.testing.assert_allclose(made(*given), made.artifact.expression.evaluate(given)[0], rtol=1e-5, atol=1e-6)


def test_a_reduction_reads_nothing_it_does_not_choose():
    z, s = te.placeholder((N,), name="Z"), te.placeholder((4,), name="S")
    r = te.reduce_axis((0, N), name="r")
    total = te.compute((1,), lambda _: te.sum(CASES["if_then_else"](r.var, z, s), axis=r), name="Y")
    found = roller.compile([z, s, total], device="cpu", top_k=1, deterministic=True, cache=False)
    assert find_out_of_bounds_access(CpuKernel(found.artifact)) is None


@pytest.mark.parametrize("fn", ["idiv", "abs"])
def test_choices_of_integer_arithmetic_take_no_guard_away(fn):
    """The divisor is zero, or the sign changes, where the guard begins to hold."""
    z, s = te.placeholder((N,), name="Z", dtype="int32"), te.placeholder((N,), name="S", dtype="int32")
    zero = tirx.const(0, "int32")

    def value(i):
        behind = tirx.if_then_else(i >= 1, s[i - 1], zero)
        return tirx.truncdiv(z[i] + behind, i) if fn == "idiv" else tirx.abs(tirx.max(behind, zero) + i - 3)

    assert find_out_of_bounds_access(streamed([z, s, te.compute((N,), value, name="Y")])) is None


def test_only_a_condition_on_positions_is_control_flow():
    i, x = tirx.Var("i", "int32"), tirx.decl_buffer((4,), name="x")
    inside = tirx.if_then_else(i < 4, x[i], 0.0)
    assert isinstance(emit_choice(inside > 0.0, inside, x[0]), tirx.Select)
    assert not isinstance(emit_choice(i < 2, inside, x[0]), tirx.Select)
    assert isinstance(emit_choice(i < 2, x[1], x[0]), tirx.Select)


def test_tvm_concludes_nothing_on_positions_from_data():
    """What ``emit_choice`` relies on: under such conditions both guards are still there after simplification."""
    from roller.te.compat import analyzer_with_extents

    i, x = tirx.Var("i", "int32"), tirx.decl_buffer((4,), name="x")
    inside = tirx.if_then_else(i < 4, x[i], 0.0)
    for condition in (inside > 0.0, inside.equal(x[0]), tirx.Not(inside > 0.0)):
        simplified = analyzer_with_extents([(i, 100)]).simplify(tirx.Select(condition, inside, inside + 1.0))
        assert len(re.findall(r"if_then_else", str(simplified))) == 3


def test_a_load_that_never_leaves_its_tensor_is_not_guarded():
    a, b = te.placeholder((8, 8), name="A"), te.placeholder((8, 8), name="B")
    upper = te.compute((8, 8), lambda i, j: tirx.if_then_else(i <= j, a[i, j], b[i, j]), name="Y")
    assert not any(n.guard for n in walk_scalar_tree(read([a, b, upper]).stages[0].body) if isinstance(n, Load))


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [(1e300, "float32", np.inf), (-1e300, "float16", -np.inf), (1e300, "int8", 127), (-1e300, "uint8", 0),
     (1e300, "float64", 1e300), (2.0, "bool", 1), (float("-inf"), "bool", 0)],
)  # fmt: skip
def test_literals_beyond_a_dtype_are_its_last_value(value, dtype, expected):
    assert operator.attrgetter("value")(constant(value, dtype)) == expected
