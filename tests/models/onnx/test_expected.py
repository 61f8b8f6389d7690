"""What results are held to: ONNX Runtime's, of the model as it is written."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from roller.models.compile import partition_graph, read_folded_graph
from roller.models.onnxruntime_reference import make_random_expected_outputs

pytest.importorskip("onnxruntime")

DYNAMIC = """<ir_version: 8, opset_import: ["": 17]>
m (float[4, 64] x) => (float[4, 8] y) {
    q, scale, zero = DynamicQuantizeLinear(x)
    sums = MatMulInteger(q, w, zero)
    real = Cast<to = 1>(sums)
    y = Mul(real, scale)
}"""


FLOAT_BIAS = """<ir_version: 8, opset_import: ["": 17]>
m (float[1, 4, 6, 6] x) => (float[1, 3, 6, 6] y)
<float one = {0.05}, uint8 middle = {128}, float fine = {0.01}, int8 zero = {0}> {
    q = QuantizeLinear(x, one, middle)
    real = DequantizeLinear(q, one, middle)
    weights = DequantizeLinear(w, fine, zero)
    sums = Conv<kernel_shape = [1, 1]>(real, weights, bias)
    out = QuantizeLinear(sums, one, middle)
    y = DequantizeLinear(out, one, middle)
}"""


def test_biases_are_added_as_they_are_written():
    """ONNX Runtime would round them to steps of the product of both scales, here 0.0005."""
    model, random = onnx.parser.parse_model(FLOAT_BIAS), np.random.default_rng(0)
    weight = random.integers(-9, 10, (3, 4, 1, 1)).astype("int8")
    # Half a step of the sums from where the result is rounded up: rounding it to the nearest step decides each result.
    bias = np.array([0.02524, 0.02524, 0.02524], "float32")
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(bias, "bias"))
    expected = make_random_expected_outputs(model, partition_graph(read_folded_graph(model)))
    (x,), (found,) = expected.feeds, expected.outputs
    steps = np.clip(np.rint(x / np.float32(0.05)) + 128, 0, 255) - 128
    sums = np.einsum("oi,nihw->nohw", weight[:, :, 0, 0].astype("float64"), steps) * 0.05 * 0.01
    meant = (np.clip(np.rint((sums + 0.02524) / 0.05) + 128, 0, 255) - 128) * 0.05
    np.testing.assert_allclose(found, meant, atol=1e-4)


def test_sums_of_quantised_products_do_not_saturate():
    """Without dot products of bytes ONNX Runtime adds pairs in 16 bits, unless it is asked not to."""
    model = onnx.parser.parse_model(DYNAMIC)
    weight = np.full((64, 8), 127, "int8")
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    expected = make_random_expected_outputs(model, partition_graph(read_folded_graph(model)))
    (x,), (found,) = expected.feeds, expected.outputs
    low, high = min(x.min(), 0.0), max(x.max(), 0.0)
    scale = np.float32((high - low) / 255)
    zero = np.clip(np.rint(-low / scale), 0, 255)
    q = np.clip(np.rint(x / scale) + zero, 0, 255)
    np.testing.assert_allclose(found, (q - zero) @ weight.astype("float64") * scale, rtol=1e-5, atol=1e-2)
