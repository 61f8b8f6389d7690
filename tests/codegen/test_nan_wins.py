"""NaN wins in maxima and minima, on every target and in every operand, unless it was asked for that it need not."""

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("tvm")

import roller
from roller import ConstructOptions, ops
from roller.backends.cuda import toolchain
from roller.compiler.pipeline import lower
from roller.emulator import emulate
from roller.expr import Axis, Call, Cast, Const, Load, Stage, Tensor, TensorExpr, axis_index
from roller.expr.serialize import expr_from_dict, expr_to_dict
from roller.templates.common.forms import canonical_forms, joined_channel_forms
from tests.codegen.cpu_programs import kernel, program
from tests.offenders import every

N = 256
_MANY = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -2.5, 3e4)
needs_emulator = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ not found")


def both(fn, a, b):
    return Call(fn, (a, b))


def cases(dtype):
    """Return what is built of two loads, and what NumPy computes of two arrays."""
    x, y = (Load(n, (axis_index("i"),)) for n in "XY")
    x, y = (Cast("float32", v) if dtype in ("float16", "bfloat16") else v for v in (x, y))
    kind = "float32" if dtype in ("float16", "bfloat16") else dtype

    def c(value):
        return Const(value, kind)

    product = both("mul", x, y)
    return {
        "max": (both("max", x, y), np.maximum),
        "min": (both("min", x, y), np.minimum),
        "relu": (both("max", x, c(0)), lambda a, b: np.maximum(a, 0)),
        "relu, the bound first": (both("max", c(0), x), lambda a, b: np.maximum(0, a)),
        "clip": (both("min", both("max", x, c(-1)), c(2)), lambda a, b: np.clip(a, -1, 2)),
        "above infinity": (both("max", x, c(np.inf)), lambda a, b: np.maximum(a, np.inf)),
        "below minus infinity": (both("min", c(-np.inf), x), lambda a, b: np.minimum(a, -np.inf)),
        "of itself": (both("max", x, x), lambda a, b: a),
        "nested": (
            both("max", both("max", both("min", x, y), product), both("max", y, product)),
            lambda a, b: np.maximum(np.maximum(np.minimum(a, b), a * b), np.maximum(b, a * b)),
        ),
        "of a literal NaN": (both("max", x, c(np.nan)), lambda a, b: a + np.nan),
    }


def expression(dtype):
    """Return one expression with an output per case: one kernel computes all."""
    tensors, at = tuple(Tensor(n, (N,), dtype) for n in "XY"), (axis_index("i"),)
    stages = tuple(
        Stage(Tensor(f"Z{n}", (N,), "float64" if dtype == "float64" else "float32"), (Axis("i", N),), at, body, None,
              "float64" if dtype == "float64" else "float32")
        for n, (body, _) in enumerate(cases(dtype).values())
    )  # fmt: skip
    return TensorExpr("extrema", tensors, stages, tuple(s.name for s in stages))


def operands(dtype):
    kind = np.dtype("float32" if dtype == "bfloat16" else dtype)
    x = np.resize(np.array(_MANY), N).astype(kind)
    return x, np.repeat(np.array(_MANY), N // len(_MANY)).astype(kind)


def assert_nan_wins(dtype, got, x, y):
    wrong = []
    x, y = (a.astype(np.float64) for a in (x, y))
    with np.errstate(all="ignore"):
        for (name, (_, right)), found in zip(cases(dtype).items(), got, strict=True):
            want = np.asarray(right(x, y))
            same = (found == want) | (np.isnan(found) & np.isnan(want))
            if not same.all():
                at = int(np.argmin(same))
                wrong.append(f"{name} of x = {x[at]!r}, y = {y[at]!r}: {found[at]!r} instead of {want[at]!r}")
    assert not wrong, "\n".join(wrong)


@every("nontemporal", [False, True])
@every("vector", ["i", None])
@every("dtype", ["float32", "float64", "float16"])
def test_on_a_processor(dtype, vector, nontemporal):
    e, given = expression(dtype), operands(dtype)
    made = program(e, "streaming", {"i": 32 if vector else 1}, {"i": 64}, vector)
    assert_nan_wins(dtype, kernel(e, replace(made, nontemporal=nontemporal))(*given), *given)


@needs_emulator
@pytest.mark.parametrize("device", ["v100", "mi50", "a100"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_on_a_gpu(dtype, device):
    e, given, spec = expression(dtype), operands(dtype), roller.load_spec(device)
    (best,) = roller.construct(e, spec, top_k=1)
    assert_nan_wins(dtype, emulate(lower(best.program, e, spec), given), *given)


REDUCTIONS = {
    "max": ops.reduce("max", (6, 300), (1,)), "min": ops.reduce("min", (6, 300), (1,)),
    "max of columns": ops.reduce("max", (300, 6), (0,)), "max of all": ops.reduce("max", (2000,), (0,)),
    "max of halves": ops.reduce("max", (6, 300), (1,), dtype="float16"),
    "max of doubles": ops.reduce("max", (6, 300), (1,), dtype="float64"),
    "argmax": ops.reduce("argmax", (6, 300), (1,)), "softmax": ops.softmax((6, 300)),
    "pool": ops.pool2d("max", 1, 2, 9, 9, 3, 3, stride=2, padding=1),
    "relu of a product": ops.matmul(12, 16, 20, epilogue=("relu",)),
    "relu of a convolution": ops.conv2d(1, 4, 12, 12, 4, 3, 3, padding=1, epilogue=("relu",)),
}  # fmt: skip


def with_nan(e):
    """Return inputs some of which are NaN, and what NumPy makes of them."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(t.shape).astype(t.dtype) for t in e.inputs]
    for n in (3, 170, 171):
        arrays[0].reshape(-1)[n % arrays[0].size] = np.nan
    return arrays, e.evaluate(arrays)[0]


def assert_same(got, want):
    assert np.array_equal(np.isnan(got), np.isnan(want)) and np.isnan(want).any() == np.isnan(got).any()
    assert np.allclose(got, want, 1e-2, 1e-2, equal_nan=True)


@every("name", REDUCTIONS)
def test_of_a_reduction_on_this_processor(name):
    e = REDUCTIONS[name]
    arrays, want = with_nan(e)
    options = ConstructOptions(top_k=1, winograd=False)  # which spreads NaN to a tile
    assert_same(roller.compile(e, options=options, cache=False, deterministic=True)(*arrays), want)


@needs_emulator
@pytest.mark.parametrize("device", ["v100", "a100"])
@pytest.mark.parametrize("name", ["max", "max of columns", "argmax", "softmax", "pool"])
def test_of_a_reduction_on_a_gpu(name, device):
    e, spec = REDUCTIONS[name], roller.load_spec(device)
    arrays, want = with_nan(e)
    (best,) = roller.construct(e, spec, top_k=1)
    assert_same(emulate(lower(best.program, e, spec), arrays)[0], want)


def test_the_first_nan_is_the_position_of_the_extreme():
    e = ops.reduce("argmax", (2, 8), (1,))
    x = np.float32([[1, np.nan, 3, np.nan, 9, 0, 0, 0], [0, 9, 0, 0, 0, 0, 0, 0]])
    assert roller.compile(e, top_k=1, cache=False, deterministic=True)(x).tolist() == [1, 1]


def test_without_the_option_a_processor_compares_once():
    e = ops.elementwise("max", (N,))
    sources = {}
    for wins in (True, False):
        options = ConstructOptions(top_k=1, propagate_nan=wins)
        (best,) = roller.construct(e, "a100", options=options)
        sources[wins] = lower(best.program, e, roller.load_spec("a100")).source
        assert best.program.expr.propagate_nan is wins
    assert "max.NaN.f32" in sources[True] and "roller_max_float32(" in sources[True]
    assert "NaN" not in sources[False] and "max(" in sources[False] and "roller_" not in sources[False]


def test_what_an_architecture_has_decides():
    e = ops.elementwise(("max", "relu"), (N,))
    for device, instruction in (("v100", False), ("t4", False), ("a100", True), ("h200", True), ("mi50", False)):
        (best,) = roller.construct(e, device, top_k=1)
        source = lower(best.program, e, roller.load_spec(device)).source
        assert ("max.NaN.f32" in source) is instruction
        assert ("return a > b || a != a ? a : b;" in source) is not instruction
        assert ("return b < a ? a : b;" in source) is not instruction, "a literal is not NaN"


def test_kernels_with_and_without_are_kept_apart():
    e = ops.elementwise("relu", (N,))
    wins, loses = (o.meant(e) for o in (ConstructOptions(), ConstructOptions(propagate_nan=False)))
    assert wins is e and loses.key != e.key and not loses.propagate_nan
    assert expr_from_dict(expr_to_dict(loses)) == loses and "propagate_nan" not in expr_to_dict(wins)


@every("name", REDUCTIONS)
def test_every_form_of_an_expression_keeps_the_option(name):
    options = ConstructOptions(propagate_nan=False, top_k=3)
    e = options.meant(REDUCTIONS[name])
    assert not any(f.propagate_nan for f in (*canonical_forms(e, options), *joined_channel_forms(e, options)))
    found = roller.construct(REDUCTIONS[name], "cpu-avx2", options=options)
    assert not any(c.program.expr.propagate_nan for c in found)


@pytest.mark.skipif(toolchain.available() is not None, reason="NVRTC not found")
@pytest.mark.parametrize(("device", "arch"), [("v100", "sm_70"), ("a100", "sm_80")])
def test_instructions_of_a_maximum_and_of_a_bound(device, arch):
    """One each with ``max.NaN``; else two comparisons of values, one with a literal, and a selection."""
    found = {}
    for name in ("max", "relu"):
        e = ops.elementwise(name, (N,))
        (best,) = roller.construct(e, device, top_k=1)
        text = toolchain.compile_to_ptx(lower(best.program, e, roller.load_spec(device)).source, arch)
        found[name] = [len(re.findall(rf"\b{op}\b", text)) for op in (r"max\.NaN", r"setp\.\w+\.f32", "selp")]
    assert found == (
        {"max": [1, 0, 0], "relu": [1, 0, 0]} if arch == "sm_80" else {"max": [0, 2, 1], "relu": [0, 1, 1]}
    )
