"""Cast to and from floats of 8 bits, saturating or not, as the reference of ONNX computes it."""

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("tvm")
pytest.importorskip("ml_dtypes")

from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from roller import compile_model

VALUES = np.float32([0, -0.0, 1, 448, 464, 465, 1e6, -1e6, np.inf, -np.inf, np.nan, 57344, 61440, 1e-9, 0.0137, -3.3])


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("kind", [TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2])
def test_cast_there_and_back(kind, saturate):
    nodes = [
        helper.make_node("Cast", ["x"], ["q"], to=kind, saturate=saturate),
        helper.make_node("Cast", ["q"], ["y"], to=TensorProto.FLOAT),
    ]
    x, q, y = (
        helper.make_tensor_value_info(n, t, VALUES.shape)
        for n, t in (("x", TensorProto.FLOAT), ("q", kind), ("y", TensorProto.FLOAT))
    )
    graph = helper.make_graph(nodes, "casts", [x], [q, y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    got = compile_model(model, device="cpu").run({"x": VALUES})
    wanted = ReferenceEvaluator(model).run(None, {"x": VALUES})
    for name, want in zip(("q", "y"), wanted, strict=True):
        assert got[name].dtype.name == want.dtype.name
        np.testing.assert_array_equal(got[name].astype(np.float32), want.astype(np.float32))
