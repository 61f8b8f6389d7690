"""Floating-point arithmetic reaches machine code and CUDA C as written, with all its NaN, infinities and signs.

The check of kernels compares with float64, which does not see these faults: the right values stand here.
"""

import shutil
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("tvm")

import roller
from roller.compiler.pipeline import lower
from roller.emulator import emulate
from roller.expr import Axis, Call, Cast, Const, Load, Stage, Tensor, TensorExpr, axis_index
from roller.te.compat import te, tirx
from roller.te.reader import read
from tests.codegen.cpu_programs import kernel, program
from tests.codegen.random_floats import N, operands, random_expression, unpermitted
from tests.offenders import every

BIG = {"float16": 1536.0, "float32": 12582912.0, "float64": 1.5 * 2.0**52}


def both(fn, a, b):
    return Call(fn, (a, b))


def cases(dtype):
    """Return what is built of two loads, and what NumPy computes of two arrays, in the same order of operations."""
    x, y = (Load(n, (axis_index("i"),)) for n in "XY")

    def number(value):
        return Const(value, dtype)

    one, other, big = number(1), number(0), number(BIG[dtype])
    n_big, least = np.dtype(dtype).type(BIG[dtype]), np.finfo(dtype).tiny
    total = both("add", x, y)
    part = both("sub", total, x)
    error = both("add", both("sub", x, both("sub", total, part)), both("sub", y, part))

    def where(condition):
        return Call("select", (condition, one, other))

    def two_sum(a, b):
        s = a + b
        bb = s - a
        return (a - (s - bb)) + (b - bb)

    return {
        "magic": (both("sub", both("add", x, big), big), lambda a, b: (a + n_big) - n_big),
        "two sum": (error, two_sum),
        "x - x": (both("sub", x, x), lambda a, b: a - a),
        "(x + y) - y": (both("sub", total, y), lambda a, b: (a + b) - b),
        "x / x": (both("div", x, x), lambda a, b: a / a),
        "x == x": (where(both("eq", x, x)), lambda a, b: a == a),
        "not x == x": (Call("select", (both("eq", x, x), other, one)), lambda a, b: a != a),
        "x <= x": (where(both("le", x, x)), lambda a, b: a <= a),
        "not x < y": (Call("select", (both("lt", x, y), other, one)), lambda a, b: ~(a < b)),
        "x - y < 0": (where(both("lt", both("sub", x, y), other)), lambda a, b: (a - b) < 0),
        "x + y <= x": (where(both("le", total, x)), lambda a, b: (a + b) <= a),
        "x < y, then y <= x": (
            Call("select", (both("lt", x, y), one, Call("select", (both("le", y, x), number(2), number(3))))),
            lambda a, b: np.where(a < b, 1, np.where(b <= a, 2, 3)),
        ),
        "x * 0": (both("mul", x, other), lambda a, b: a * a.dtype.type(0)),
        "x + 0": (both("add", x, other), lambda a, b: a + a.dtype.type(0)),
        "0 - x": (both("sub", other, x), lambda a, b: a.dtype.type(0) - a),
        "-x": (Call("neg", (x,)), lambda a, b: -a),
        "0 / x": (both("div", other, x), lambda a, b: a.dtype.type(0) / a),
        "x / 0": (both("div", x, other), lambda a, b: a / a.dtype.type(0)),
        "x / -0": (both("div", x, number(-0.0)), lambda a, b: a / a.dtype.type(-0.0)),
        "x * least / least": (
            both("div", both("mul", x, number(float(least))), number(float(least))),
            lambda a, b: (a * least) / least,
        ),
        "x + 1 - 1 of constants": (
            both("add", x, both("sub", both("add", number(0.3), big), big)),
            lambda a, b: a + ((a.dtype.type(0.3) + n_big) - n_big),
        ),
        "truth of x": (where(Cast("bool", x)), lambda a, b: a != 0),
        "a select by x": (Call("select", (x, one, other)), lambda a, b: a != 0),
    }


def expression(dtype):
    """Return one expression with an output per case: one kernel computes all."""
    tensors, at = tuple(Tensor(n, (N,), dtype) for n in "XY"), (axis_index("i"),)
    stages = tuple(
        Stage(Tensor(f"Z{n}", (N,), dtype), (Axis("i", N),), at, body, None, dtype)
        for n, (body, _) in enumerate(cases(dtype).values())
    )
    return TensorExpr("floats", tensors, stages, tuple(s.name for s in stages))


def assert_as_written(dtype, got, x, y):
    wrong = []
    with np.errstate(all="ignore"):
        for (name, (_, right)), found in zip(cases(dtype).items(), got, strict=True):
            want = np.asarray(right(x, y)).astype(dtype)
            same = (found == want) & (np.signbit(found) == np.signbit(want)) | (np.isnan(found) & np.isnan(want))
            if not same.all():
                at = int(np.argmin(same))
                wrong.append(f"{name} of x = {x[at]!r}, y = {y[at]!r}: {found[at]!r} instead of {want[at]!r}")
    assert not wrong, "\n".join(wrong)


@every("nontemporal", [False, True])
@every("vector", ["i", None])
@every("dtype", ["float32", "float64"])
def test_a_processor_computes_what_is_written(dtype, vector, nontemporal):
    e, given = expression(dtype), operands(dtype)
    made = program(e, "streaming", {"i": 32 if vector else 1}, {"i": 64}, vector)
    assert_as_written(dtype, kernel(e, replace(made, nontemporal=nontemporal))(*given), *given)


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ not found")
@pytest.mark.parametrize("device", ["v100", "mi50"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_gpu_computes_what_is_written(dtype, device):
    e, given, spec = expression(dtype), operands(dtype), roller.load_spec(device)
    (best,) = roller.construct(e, spec, top_k=1)
    assert_as_written(dtype, emulate(lower(best.program, e, spec), given), *given)


def te_cases(big):
    """Return what TVM's own operators build of two elements, stage by stage, and what NumPy computes of two arrays."""
    zero, one = tirx.const(0, "float32"), tirx.const(1, "float32")

    def where(condition):
        return tirx.Select(condition, one, zero)

    return {
        "magic": (lambda x, y: (x + big) - big, lambda a, b: (a + np.float32(big)) - np.float32(big)),
        "x - x": (lambda x, y: x - x, lambda a, b: a - a),
        "(x + y) - y": (lambda x, y: (x + y) - y, lambda a, b: (a + b) - b),
        "x / x": (lambda x, y: x / x, lambda a, b: a / a),
        "x == x": (lambda x, y: where(tirx.EQ(x, x)), lambda a, b: a == a),
        "x != x": (lambda x, y: where(tirx.NE(x, x)), lambda a, b: a != a),
        "x - y < 0": (lambda x, y: where(x - y < zero), lambda a, b: (a - b) < 0),
        "x + y <= x": (lambda x, y: where(x + y <= x), lambda a, b: (a + b) <= a),
    }


def test_a_tensor_expression_is_read_as_written():
    """Chains of stages, too: TVM simplifies what they are inlined to."""
    x, y = operands("float32")
    tensors = [te.placeholder((N,), name=n) for n in "XY"]

    def built(f):
        return te.compute((N,), lambda i: f(*(t[i] for t in tensors)))

    outputs = [built(f) for f, _ in te_cases(BIG["float32"]).values()]
    shifted = te.compute((N,), lambda i: tensors[0][i] + BIG["float32"])
    outputs.append(te.compute((N,), lambda i: shifted[i] - BIG["float32"]))
    right = [*te_cases(BIG["float32"]).items(), ("magic in stages", te_cases(BIG["float32"])["magic"])]
    e = read([*tensors, *outputs])
    (best,) = roller.construct(e, "cpu", top_k=1)
    wrong = []
    with np.errstate(all="ignore"):
        for (name, (_, f)), found in zip(right, kernel(e, best.program)(x, y), strict=True):
            want = np.asarray(f(x, y)).astype(np.float32)
            wrong += [name] if not np.array_equal(found, want, equal_nan=True) else []
    assert not wrong


def on_processor(seed, dtype, outputs):
    e, given = random_expression(seed, dtype, outputs), operands(dtype)
    vector = [None, "i"][seed % 2]
    made = program(e, "streaming", {"i": 32 if vector else 1}, {"i": 64}, vector)
    return unpermitted(e, given, kernel(e, made)(*given))


def on_emulator(seed, dtype, outputs):
    e, given, spec = random_expression(seed, dtype, outputs), operands(dtype), roller.load_spec("v100")
    (best,) = roller.construct(e, spec, top_k=1)
    return unpermitted(e, given, emulate(lower(best.program, e, spec), given))


@every("dtype", ["float32", "float64"])
def test_random_expressions_are_computed_as_written(dtype):
    wrong = on_processor(0, dtype, 10)
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, 101, 10))
def test_two_thousand_random_expressions_are_computed_as_written(first):
    """2,000 in all: 20 outputs of each of 100 kernels."""
    wrong = [w for n in range(first, first + 10) for w in on_processor(n, ["float32", "float64"][n % 4 == 3], 20)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ not found")
@pytest.mark.parametrize("seed", range(15))
def test_three_hundred_random_expressions_are_emulated_as_written(seed):
    wrong = on_emulator(seed, ["float32", "float64"][seed % 4 == 3], 20)
    assert not wrong, "\n".join(wrong)
