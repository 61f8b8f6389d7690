"""A node and the ready operator that computes it are one tensor expression: formulas stand once, in ``roller.ops``."""

from __future__ import annotations

import numpy as np

from roller import ops
from tests.models.onnx.lowering_oracle import expressions, node
from tests.offenders import every


def _f(*shape):
    return np.ones(shape, np.float32)


@every(
    ("made", "arrays", "ready"),
    [
        (node("Softmax", 1, axis=1), [_f(2, 5, 3)], ops.softmax((2, 5, 3), 1)),
        (node("LayerNormalization", 3), [_f(4, 6), _f(6), _f(6)], ops.layer_norm((4, 6))),
        (node("RMSNormalization", 2), [_f(4, 6), _f(6)], ops.rms_norm((4, 6), 1e-5)),
        (node("MatMul", 2), [_f(3, 4, 5), _f(3, 5, 6)], ops.matmul(4, 6, 5, 3)),
        (node("Gemm", 3, transB=1), [_f(4, 5), _f(6, 5), _f(6)],
         ops.matmul(4, 6, 5, None, False, True, epilogue="bias")),
        (node("Conv", 3, pads=(1, 1, 1, 1), strides=(2, 2)), [_f(2, 4, 9, 8), _f(6, 4, 3, 3), _f(6)],
         ops.conv2d(2, 4, 9, 8, 6, 3, 3, 2, 1, epilogue="bias")),
        (node("Conv", 2, group=4), [_f(1, 4, 9, 8), _f(8, 1, 3, 2)],
         ops.depthwise_conv2d(1, 4, 9, 8, 3, 2, multiplier=2)),
        (node("Conv", 2, group=2), [_f(1, 4, 9, 8), _f(6, 2, 3, 2)], ops.conv2d(1, 4, 9, 8, 6, 3, 2, groups=2)),
        (node("MaxPool", 1, kernel_shape=(3, 3), pads=(1, 1, 1, 1)), [_f(1, 4, 9, 8)],
         ops.pool2d("max", 1, 4, 9, 8, 3, 3, 1, 1)),
        (node("AveragePool", 1, kernel_shape=(3, 3)), [_f(1, 4, 9, 8)], ops.pool2d("avg", 1, 4, 9, 8, 3, 3)),
        (node("ReduceMean", 1, axes=(1,), version=13), [_f(2, 5, 3)], ops.reduce("mean", (2, 5, 3), 1, True)),
        (node("ReduceProd", 1, axes=(0, 2), keepdims=0, version=13), [_f(2, 5, 3)],
         ops.reduce("prod", (2, 5, 3), (0, 2))),
        (node("ArgMax", 1, axis=1, keepdims=0), [_f(2, 5, 3)], ops.reduce("argmax", (2, 5, 3), 1)),
        (node("Gelu", 1), [_f(4, 5)], ops.elementwise("gelu", (4, 5))),
    ],
    ids=lambda v: getattr(v, "op", ""),
)  # fmt: skip
def test_a_node_is_the_ready_operator(made, arrays, ready):
    ((lowered, _),) = expressions(made, arrays)
    assert lowered.key == ready.key
