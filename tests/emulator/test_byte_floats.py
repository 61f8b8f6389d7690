"""Floats of 8 bits, and bytes, in kernels of GPUs: bit for bit, and where vectors of them are guarded."""

import numpy as np
import pytest

pytest.importorskip("tvm")
pytest.importorskip("ml_dtypes")

from roller import construct, load_spec, ops
from roller.backends.cuda import toolchain
from roller.compiler.pipeline import lower
from roller.emulator import emulate, prove
from roller.runtime.check import check
from roller_runtime.core.dtypes import BYTE_FLOATS, as_numpy_bits, numpy_dtype
from tests.test_dtypes import BYTES, converted, numbers_of, of_numbers


@pytest.mark.parametrize("dtype", BYTE_FLOATS)
@pytest.mark.parametrize("device", ["v100", *(pytest.param(d, marks=pytest.mark.slow) for d in ("h200", "mi50"))])
def test_gpus_convert_bit_for_bit(device, dtype, built):
    def run(values, to):
        expr, spec = of_numbers(values, to, back=False), load_spec(device).emitted
        artifact = lower(construct(expr, spec, top_k=1)[0].program, expr, spec)
        return emulate(artifact, [as_numpy_bits(values)], cache_dir=built)[0]

    values, every = numbers_of(dtype), BYTES.view(numpy_dtype(dtype))
    np.testing.assert_array_equal(run(values, dtype), converted(values, dtype).astype(np.float32))
    np.testing.assert_array_equal(run(every, "float32"), every.astype(np.float32))


GUARDED = [("matmul", "float8_e4m3fn", "h200"), ("pool", "float8_e4m3fn", "v100"), ("matmul", "uint8", "a100")]
REST = [
    (o, t, d) for o in ("matmul", "pool", "softmax", "sum") for t in (*BYTE_FLOATS, "uint8")
        for d in ("v100", "h200", "mi50") if (o, t, d) not in GUARDED and (o != "softmax" or t != "uint8")
]  # fmt: skip


KERNELS = [*GUARDED, *(pytest.param(*r, marks=pytest.mark.slow) for r in REST)]


@pytest.mark.parametrize(("operator", "dtype", "device"), KERNELS)
def test_kernels_of_bytes_are_right(operator, dtype, device, built):
    """Odd extents: vectors of bytes are guarded, which took a constructor that CUDA does not have."""
    expr = {
        "matmul": lambda: ops.matmul(33, 48, 64, dtype=dtype), "softmax": lambda: ops.softmax((8, 40), dtype=dtype),
        "pool": lambda: ops.pool2d("max", 1, 2, 5, 5, 3, 3, stride=2, padding=1, dtype=dtype),
        "sum": lambda: ops.reduce("sum", (8, 40), dtype=dtype),
    }[operator]()  # fmt: skip
    spec = load_spec(device).emitted  # some have matrix units for these bytes that no template writes yet
    artifact = lower(construct(expr, spec, top_k=1)[0].program, expr, spec)
    proof = prove(artifact, compare=lambda *a: check(*a).message, cache_dir=built, orders=("forward",))
    assert proof.ok, f"{artifact.program}: {proof}"
    if artifact.language == "cuda" and toolchain.available() is None:
        assert ".entry" in toolchain.compile_to_ptx(artifact.source, artifact.target["arch"])
