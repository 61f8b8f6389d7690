"""Literals, truth values and reductions of nothing that is loaded, in kernels of devices with and without bfloat16."""

import numpy as np
import pytest

pytest.importorskip("tvm")

from tvm import te, tirx

import roller
from roller import ops
from roller.backends.cuda import toolchain
from roller.compiler import pipeline
from roller.emulator import emulate, prove
from roller.runtime.check import check
from roller.te.reader import read
from roller.templates.gpu.emit.cuda import lower

needs_cuda = pytest.mark.skipif(toolchain.available() is not None, reason="needs the CUDA wheels")


def best(expr, device):
    """The expression and its best program, lowered."""
    expr, spec = read(expr) if isinstance(expr, list) else expr, roller.load_spec(device)
    program = roller.construct(expr, spec, top_k=1)[0].program
    cuda = spec.target["language"] == "cuda"
    return pipeline.lower(program, expr, spec) if cuda else lower(program, expr, "sm_70", spec.name)


def proved(expr, device, built):
    artifact = best(expr, device)
    proof = prove(artifact, compare=lambda *a: check(*a).message, cache_dir=built, orders=("forward",))
    assert proof.ok, f"{artifact.program}: {proof}"
    return artifact


def of_positions(combiner, dtype):
    """A reduction of numbers made of positions alone."""
    r = te.reduce_axis((0, 20), name="r")
    reduced = {"sum": te.sum, "max": te.max, "min": te.min}[combiner]
    return [te.compute((16,), lambda i: reduced((r * 2 + i).astype(dtype), axis=r), name="Y")]


def outside(value, dtype):
    """Elements four places on, and a value where there are none."""
    x = te.placeholder((64,), name="X", dtype=dtype)

    def shifted(i):
        return tirx.if_then_else(tirx.all(i >= 4, i < 60), x[i - 4], tirx.const(value, dtype))

    return [x, te.compute((64,), shifted, name="Y")]


@needs_cuda
@pytest.mark.parametrize(
    ("device", "arch"),
    [("v100", "sm_70"), ("a100", "sm_80"), *(pytest.param(*x, marks=pytest.mark.slow) for x in [("h200", "sm_90")])],
)
def test_infinite_padding_of_bfloat16_is_a_literal_the_compiler_knows(built, device, arch):
    pool = ops.pool2d("max", 1, 2, 5, 5, 3, 3, stride=2, padding=1, dtype="bfloat16")
    source = proved(pool, device, built).source
    assert "inff" not in source.replace("CUDART_INF_F", "")
    assert ".entry" in toolchain.compile_to_ptx(source, arch)


@pytest.mark.slow
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 0.1, 1e-30, -0.0])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("device", ["v100", "a100"])
def test_any_literal_outside_is_right(built, device, dtype, value):
    proved(outside(value, dtype), device, built)


@pytest.mark.parametrize("device", ["v100", "mi50", "a100"])
def test_a_nan_of_low_bits_stays_one_in_bfloat16(built, device):
    x = te.placeholder((64,), name="X")
    artifact = best([x, te.compute((64,), lambda i: x[i].astype("bfloat16"), name="Y")], device)
    values = np.linspace(-3, 3, 64, dtype=np.float32)
    values.view(np.uint32)[::5] = 0x7FFFFFFF  # what NVIDIA's arithmetic gives
    values.view(np.uint32)[1::5] = 0xFFFFFFFF
    values[3] = np.inf
    (found,) = emulate(artifact, [values], cache_dir=built)
    assert (np.isnan(found) == np.isnan(values)).all() and found[3] == np.inf


CASES = [("sum", "float32", "v100"), ("max", "int8", "h200"), ("min", "bfloat16", "mi50")]
REST = [
    (c, t, d) for c in ("sum", "max", "min") for t in ("float32", "float16", "bfloat16", "int64", "int8")
    for d in ("v100", "h200", "mi50") if (c, t, d) not in CASES
]  # fmt: skip


@pytest.mark.parametrize(
    ("combiner", "dtype", "device"), [*CASES, *(pytest.param(*x, marks=pytest.mark.slow) for x in REST)]
)
def test_a_reduction_that_loads_nothing_is_constructed_and_right(built, combiner, dtype, device):
    proved(of_positions(combiner, dtype), device, built)


def truth(which):
    x, w = te.placeholder((32, 64), name="X"), te.placeholder((32, 64), name="W")
    m = te.placeholder((32, 64), name="M", dtype="bool")
    return {
        "compared": [x, w, te.compute((32, 64), lambda i, j: x[i, j] < w[i, j], name="Y")],
        "chosen": [x, m, te.compute((32, 64), lambda i, j: tirx.Select(m[i, j], x[i, j], tirx.const(0.0)), name="Y")],
        "transposed": [m, te.compute((64, 32), lambda i, j: m[j, i], name="Y")],
        "any": ops.reduce("max", (9, 40), (1,), dtype="bool"),
        "all": ops.reduce("min", (9, 40), (1,), dtype="bool"),
        "first": ops.reduce("argmax", (9, 40), (1,), dtype="bool"),
    }[which]


@pytest.mark.parametrize("which", ["compared", "chosen", "transposed", "any", "all", "first"])
def test_truth_values_are_read_and_written_byte_by_byte(built, which):
    proved(truth(which), "v100", built)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["max", "min", "sum", "prod", "argmax"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("device", ["v100", "h200"])
def test_any_reduction_of_any_dtype_is_right(built, kind, dtype, device):
    proved(ops.reduce(kind, (9, 40), (1,), dtype=dtype), device, built)
