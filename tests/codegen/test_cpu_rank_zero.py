"""Tensors of one element are read without indices, though their buffers have a dimension, packed or not."""

import numpy as np
import pytest

pytest.importorskip("tvm")

from roller import ConstructOptions, construct
from roller.backends.cpu import CpuKernel
from roller.compiler.pipeline import lower
from roller.hardware import load_spec
from roller.te.compat import te, tirx
from roller.te.reader import read


@pytest.mark.parametrize("shape", [(1,), (1, 1), ()], ids=str)
def test_a_guarded_scalar_is_packed(shape):
    one, x = te.placeholder(shape, name="X0"), te.placeholder((32,), name="X")
    r = te.reduce_axis((0, 2), "r")
    product = te.compute((8, 1, 32), lambda i, j, k: te.floor(one[(j,) * len(shape)] * x[k]), name="T")
    y = te.compute(
        (8, 1, 32),
        lambda i, j, k: te.sum(tirx.if_then_else(k >= 3, product[i, j, k - 3], tirx.const(0, "float32")), axis=r),
        name="Y",
    )
    expr, spec = read([one, x, y]), load_spec("cpu")
    values = np.full(shape, 2.5, np.float32), np.linspace(-3, 3, 32, dtype=np.float32)
    want = np.zeros(32, np.float32)
    want[3:] = 2 * np.floor(values[0].reshape(()) * values[1][:-3])
    for candidate in construct(expr, spec, options=ConstructOptions(top_k=2)):
        got = CpuKernel(lower(candidate.program, expr, spec))(*values)
        np.testing.assert_array_equal(got, np.broadcast_to(want, (8, 1, 32)))
