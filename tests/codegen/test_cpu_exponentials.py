"""Exponentials of all kinds of arguments, and functions of two vectors side by side."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("tvm")

import roller
from roller.expr import Call, Const, Load, Stage, Tensor, axis_index
from roller.te.compat import tirx, tvm_ffi
from roller.templates.cpu.emit.interleave_vector_functions import interleave_vector_loops
from roller.templates.cpu.emit.mathlib import replace_math_library_calls
from roller.templates.cpu.emit.tir_loop_constructors import LoopBuilder, declare_buffer, read_element, write_element
from roller.templates.cpu.rows.emit_maxima_without_nan import may_lose_nan
from roller.templates.cpu.rows.emit_shared_values import add_stages_for_shared_values
from roller.templates.cpu.rows.emit_values_kept_by_reductions import may_scale_exponentials
from tests.codegen.cpu_programs import kernel, program

N = 1 << 16
LEAST, SMALLEST = np.finfo(np.float32).tiny, 2.0**-149


@pytest.fixture(scope="module")
def exp():
    e = roller.ops.elementwise("exp", (N,))
    (axis,) = (a.name for a in e.stages[0].axes)
    return kernel(e, program(e, "streaming", {axis: 32}, {axis: 512}, axis))


def patterns():
    """A number of every 2^16 that float32 has, the last digits drawn: all exponents, both signs, NaN of many kinds."""
    low = np.random.default_rng(0).integers(0, N, N)
    return (np.arange(N, dtype=np.uint32) * np.uint32(N) + low.astype(np.uint32)).view(np.float32)


def between(low, high):
    return np.linspace(low, high, N).astype(np.float32)


@pytest.mark.parametrize(
    "x", [patterns(), between(-87.4, -87.2), between(88.0, 88.8), between(-1.0, 1.0), between(-100.0, 100.0)],
    ids=["all", "least", "largest", "small", "usual"],
)  # fmt: skip
def test_exponentials_to_the_last_digits(exp, x):
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        wanted = np.exp(x.astype(np.float64))
        rounded = wanted.astype(np.float32)
    got = exp(x)
    normal = np.isfinite(rounded) & (rounded >= LEAST)
    assert (np.abs(got[normal] - wanted[normal]) <= 2.0**-23 * wanted[normal]).all()
    assert np.isnan(got[np.isnan(x)]).all()
    assert (got[np.isinf(rounded)] == np.inf).all()
    below = rounded < LEAST
    assert (np.abs(got[below] - wanted[below]) <= SMALLEST).all(), "subnormal results keep their digits"


def kept_softmax(shape):
    """A softmax whose exponentials stand where its results go, where rows are whole vectors."""
    e = roller.ops.softmax(shape)
    return kernel(e, program(e, "rows", {"k": 8}, {"d0": 1, "k": shape[1]}, "k"))


@pytest.mark.parametrize("columns", [64, 1000, 1003, 17, 5])
def test_exponentials_below_the_largest_of_a_row(columns):
    """Differences to the largest are of all kinds: none overflows, the least vanish, NaN is seen by its row alone."""
    rng = np.random.default_rng(columns)
    x = rng.uniform(-1, 1, (12, columns)).astype(np.float32) * np.float32(10.0) ** np.arange(-3, 9)[:, None]
    x[0, 3] = np.inf  # less itself: NaN
    x[1, 0] = np.nan
    x[2] = -np.inf
    x[3, 1::2] = -np.inf
    x[4] = x[4, 0] - np.linspace(0, 110, columns, dtype=np.float32)
    x = x.astype(np.float32)
    got = kept_softmax((12, columns))(x)
    with np.errstate(all="ignore"):
        below = x - x.max(axis=1, keepdims=True)  # rounded, as the kernel's are
        powers = np.exp(below.astype(np.float64))
        wanted = powers / powers.sum(axis=1, keepdims=True)
    assert np.isnan(got[:3]).all() and np.isnan(wanted[:3]).all()
    assert (got[3, 1::2] == 0.0).all()
    np.testing.assert_allclose(got[3:], wanted[3:], rtol=1e-6, atol=2 * SMALLEST)


def loops(extent, lanes, index, fn=tirx.exp):
    """Loops of ``extent`` vectors that apply a function, and what they become."""
    x, y = (declare_buffer(n, [4096], "float32") for n in "xy")
    nest = LoopBuilder()
    body = nest.loop(
        extent,
        lambda i: nest.loop(lanes, lambda j: write_element(y, fn(read_element(x, index(i, j))), index(i, j)), "vector"),
        "unroll",
    )
    found = []
    tvm_ffi.structural_walk(interleave_vector_loops(replace_math_library_calls(body)), (tirx.For, found.append))
    return sorted((int(f.kind), int(f.extent)) for f in found)


def test_two_vectors_are_one_where_a_function_is_computed():
    vector, unrolled = int(tirx.ForKind.VECTORIZED), int(tirx.ForKind.UNROLLED)

    def element(i, j):
        return i * 8 + j

    assert loops(4, 8, element) == sorted([(vector, 16), (unrolled, 2)])
    assert loops(2, 8, element) == [(vector, 16)]
    assert loops(3, 8, element) == sorted([(vector, 8), (unrolled, 3)]), "no pairs"
    assert loops(4, 8, lambda i, j: i * 64 + j) == sorted([(vector, 8), (unrolled, 4)]), "apart from each other"
    assert loops(4, 8, element, lambda v: v + v) == sorted([(vector, 8), (unrolled, 4)]), "nothing to wait for"


@pytest.mark.parametrize("columns", [5, 17, 32, 64, 100, 1003])
def test_one_nan_makes_its_row_nan_wherever_it_is(columns):
    """The maximum may lose NaN, and then other differences exceed zero: the sum still has it."""
    rng = np.random.default_rng(columns)
    x = rng.uniform(-1, 1, (2 * columns, columns)).astype(np.float32)
    x *= rng.choice(np.float32([1, 1e3, 3e38]), x.shape)
    x[np.arange(columns), np.arange(columns)] = np.nan
    got = kept_softmax(x.shape)(x)
    assert np.isnan(got[:columns]).all()
    with np.errstate(over="ignore"):
        powers = np.exp(x[columns:].astype(np.float64) - x[columns:].max(axis=1, keepdims=True))
    np.testing.assert_allclose(got[columns:], powers / powers.sum(axis=1, keepdims=True), rtol=1e-6, atol=2 * SMALLEST)


def _with_another_output(of):
    """A softmax, and beside it a value of the row or of an element."""
    e = roller.ops.softmax((8, 64))
    largest, _, y = e.stages
    if of == "maximum":
        return replace(e, outputs=(largest.name, y.name))
    element = Load("X", tuple(axis_index(a.name) for a in y.axes))
    more = Stage(Tensor("Z", (8, 64), "float32"), y.axes, y.store, Call("add", (element, Const(1.0))), None, "float32")
    return replace(e, stages=(*e.stages, more), outputs=(y.name, "Z"))


def test_a_maximum_that_is_seen_elsewhere_keeps_nan():
    plain = roller.ops.softmax((8, 64))
    assert may_lose_nan(plain.stages[0], plain)
    for of in ("maximum", "element"):
        e = _with_another_output(of)
        assert not may_lose_nan(e.stages[0], e)


def test_exponentials_are_scaled_only_where_the_factor_cancels():
    e = add_stages_for_shared_values(roller.ops.softmax((8, 64)))
    assert may_scale_exponentials(e)
    assert not may_scale_exponentials(replace(e, outputs=("X_sum", "Y")))
