"""A conversion to a narrow float rounds, to nearest even, wherever the value goes on in float32; the check sees it."""

import numpy as np
import pytest

pytest.importorskip("tvm")
pytest.importorskip("ml_dtypes")

import ml_dtypes

from roller import ConstructOptions, construct
from roller.backends.cpu import CpuKernel
from roller.compiler.pipeline import lower
from roller.expr import Cast, Const
from roller.hardware import load_spec
from roller.runtime.check import Oracle
from roller.te.compat import te
from roller.te.emit_tvm_expressions import emit_scalar
from roller.te.reader import read
from roller_runtime.core.dtypes import round_to_dtype

#: Neighbours of ties, of infinity and of zero, and numbers of all magnitudes.
VALUES = np.concatenate((
    np.float32([0.0, -0.0, 1.00390625, 1.01171875, 1.0039063, np.inf, -np.inf, np.nan, 3.3961775e38, 3.3953e38]),
    np.random.default_rng(3).integers(0x0100_0000, 0x7F00_0000, 118).astype(np.uint32).view(np.float32),
))  # fmt: skip


def one_kernel(x, narrow):
    return te.compute(x.shape, lambda i, j: x[i, j].astype(narrow).astype("float32") * 2.0, name="Y")


def within_a_sum(x, narrow):
    r = te.reduce_axis((0, x.shape[1]), "r")
    return te.compute(x.shape[:1], lambda i: te.max(x[i, r].astype(narrow).astype("float32"), axis=r), name="Y")


def own_stages(x, narrow):
    t = te.compute(x.shape, lambda i, j: (x[i, j] * 1.5).astype(narrow), name="T")
    r = te.reduce_axis((0, x.shape[1]), "r")
    return te.compute(x.shape[:1], lambda i: te.sum(t[i, r].astype("float32"), axis=r), name="Y")


def row_by_row(x, narrow):
    r = te.reduce_axis((0, x.shape[1]), "r")
    most = te.compute(x.shape[:1], lambda i: te.max(x[i, r].astype(narrow).astype("float32"), axis=r), name="M")
    return te.compute(x.shape, lambda i, j: x[i, j].astype(narrow).astype("float32") - most[i], name="Y")


def kernels(build, narrow, shape):
    x = te.placeholder(shape, name="X")
    expr, spec = read([x, build(x, narrow)]), load_spec("cpu")
    found = construct(expr, spec, options=ConstructOptions(top_k=2))
    return expr, [CpuKernel(lower(c.program, expr, spec)) for c in found]


@pytest.mark.parametrize("narrow", ["bfloat16", "float16"])
@pytest.mark.parametrize("build", [one_kernel, within_a_sum, own_stages, row_by_row])
def test_processors_round_and_the_check_sees_what_does_not(build, narrow):
    x = np.random.default_rng(5).uniform(1, 3, (9, 8)).astype(np.float32)
    expr, found = kernels(build, narrow, x.shape)
    oracle = Oracle(expr, [x])
    half = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}[narrow]

    def expected(a):
        t = (a * np.float32(1.5 if build is own_stages else 1)).astype(half).astype(np.float32)
        return {one_kernel: lambda: t * 2, within_a_sum: lambda: t.max(1), own_stages: lambda: t.sum(1),
                row_by_row: lambda: t - t.max(1, keepdims=True)}[build]()  # fmt: skip

    for kernel in found:
        np.testing.assert_allclose(kernel(x), expected(x), rtol=1e-6)
        assert oracle.check([kernel(x)]).ok
    half = np.float32
    assert not oracle.check([expected(x)]).ok


def test_processors_round_ties_and_keep_what_is_no_number():
    _, found = kernels(one_kernel, "bfloat16", (8, 16))
    with np.errstate(over="ignore"):
        want = VALUES.astype(ml_dtypes.bfloat16).astype(np.float32) * np.float32(2)
    for kernel in found:
        np.testing.assert_array_equal(kernel(VALUES.reshape(8, 16)).ravel(), want)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal((round_to_dtype(VALUES, "bfloat16") * 2).astype(np.float32), want)


def test_literals_are_rounded_too():
    there_and_back = emit_scalar(Cast("float32", Cast("bfloat16", Const(1.001))), {}, {})
    assert there_and_back.value == 1.0


@pytest.mark.parametrize("build", [one_kernel, own_stages])
def test_devices_without_bfloat16_round_by_a_function(build):
    x = te.placeholder((64, 64), name="X")
    expr, spec = read([x, build(x, "bfloat16")]), load_spec("v100")
    artifact = lower(construct(expr, spec)[0].program, expr, spec)
    assert any(launch.source.count("roller_bfloat16(") > 1 for launch in artifact.launches)  # defined, and called
