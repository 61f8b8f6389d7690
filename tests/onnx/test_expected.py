"""What results are held to: ONNX Runtime's, of the model as it is written."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from roller.onnx.compile import partitioned, read
from roller.onnx.expected import expected_of

pytest.importorskip("onnxruntime")

DYNAMIC = """<ir_version: 8, opset_import: ["": 17]>
m (float[4, 64] x) => (float[4, 8] y) {
    q, scale, zero = DynamicQuantizeLinear(x)
    sums = MatMulInteger(q, w, zero)
    real = Cast<to = 1>(sums)
    y = Mul(real, scale)
}"""


def test_sums_of_quantised_products_do_not_saturate():
    """Without dot products of bytes ONNX Runtime adds pairs in 16 bits, unless it is asked not to."""
    model = onnx.parser.parse_model(DYNAMIC)
    weight = np.full((64, 8), 127, "int8")
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    expected = expected_of(model, partitioned(read(model)))
    (x,), (found,) = expected.feeds, expected.outputs
    low, high = min(x.min(), 0.0), max(x.max(), 0.0)
    scale = np.float32((high - low) / 255)
    zero = np.clip(np.rint(-low / scale), 0, 255)
    q = np.clip(np.rint(x / scale) + zero, 0, 255)
    np.testing.assert_allclose(found, (q - zero) @ weight.astype("float64") * scale, rtol=1e-5, atol=1e-2)
