"""Quantised products against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import roller
from tests.models.onnx.lowering_oracle import agrees, node, runtime


def _bytes(shape, seed=0, dtype=np.uint8):
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max, shape, endpoint=True).astype(dtype)


def _scale(value):
    return np.asarray(value, np.float32)


def test_products():
    arrays = [_bytes((3, 4)), _scale(0.02), np.uint8(120), _bytes((4, 5), 1), _scale(0.03), np.uint8(100), _scale(0.1),
              np.uint8(110)]  # fmt: skip
    agrees(node("QLinearMatMul", 8), arrays, wanted=runtime(node("QLinearMatMul", 8), arrays), atol=1)


@pytest.mark.parametrize("constants", [(), (2,)])
@pytest.mark.parametrize("bias", [True, False])
def test_convolutions(bias, constants):
    per_filter = _scale([0.02, 0.03, 0.01])
    arrays = [_bytes((1, 2, 5, 5)), _scale(0.02), np.uint8(7), _bytes((3, 2, 3, 3), 1, np.int8) // 2, per_filter,
              np.zeros(3, np.int8), _scale(0.3), np.uint8(90),
              np.array([100, -50, 3], np.int32) if bias else None]  # fmt: skip
    op = node("QLinearConv", 9, pads=[1, 1, 1, 1], version=10)
    agrees(op, arrays, constants, wanted=runtime(op, arrays), atol=1)


@pytest.mark.parametrize("op", ["Sigmoid", "Tanh"])
def test_a_function_between_two_quantisations_has_a_kernel(op):
    """As every quantised transformer has them; compiled, because it was TVM that refused."""
    names = ["x", "q", "d", "a", "p", "y"]
    parts = [("QuantizeLinear", "s"), ("DequantizeLinear", "s"), (op, ""), ("QuantizeLinear", "t"),
             ("DequantizeLinear", "t")]  # fmt: skip
    nodes = [
        helper.make_node(kind, [names[n], *([scale, "z"] if scale else [])], [names[n + 1]])
        for n, (kind, scale) in enumerate(parts)
    ]
    constants = [numpy_helper.from_array(v, n) for n, v in
                 (("s", np.float32(0.05)), ("t", np.float32(0.01)), ("z", np.int8(3)))]  # fmt: skip
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3, 50]) for n in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    session = roller.compile_model(model, device="cpu", top_k=1, deterministic=True)
    x = np.random.default_rng(0).uniform(-4, 4, (3, 50)).astype(np.float32)
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(session(x), wanted, atol=0.0101)
