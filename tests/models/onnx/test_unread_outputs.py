"""Nodes of which only later outputs are read: what nothing reads still says what the others are of."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

import roller  # noqa: E402

X = np.random.default_rng(0).standard_normal((3, 2, 4, 4)).astype(np.float32)


@pytest.mark.parametrize(
    ("op", "constants", "count", "read", "attributes"),
    [
        ("TopK", (np.array([2]),), 2, [1], {}),
        ("MaxPool", (), 2, [1], {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("LayerNormalization", (np.ones(4, np.float32),), 3, [2], {}),
        ("Dropout", (), 2, [1], {}),
        ("Split", (np.array([1, 2, 0, 1]),), 4, [1, 3], {"axis": 2}),
    ],
)
def test_unread_outputs_before_a_read_one(op, constants, count, read, attributes):
    outputs = [f"y{k}" for k in range(count)]
    inputs = ["x", *(f"c{k}" for k in range(len(constants)))]
    kinds = {"TopK": TensorProto.INT64, "MaxPool": TensorProto.INT64, "Dropout": TensorProto.BOOL}
    graph = helper.make_graph(
        [helper.make_node(op, inputs, outputs, **attributes)],
        op,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [helper.make_tensor_value_info(outputs[k], kinds.get(op, TensorProto.FLOAT), None) for k in read],
        [onnx.numpy_helper.from_array(c, f"c{k}") for k, c in enumerate(constants)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = roller.compile_model(model, top_k=1, deterministic=True, cache=False, progress=False)
    for found, expected in zip(session.run(None, {"x": X}), ReferenceEvaluator(model).run(None, {"x": X}), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-4)
