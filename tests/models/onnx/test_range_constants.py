"""Constants that sizes determine: corners of the one at the largest sizes are copied, others are refused."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import roller
from roller.errors import ModelError

#: Attention to earlier rows only; the mask is computed from the length, as exporters write it.
CAUSAL = """<ir_version: 8, opset_import: ["": 17]>
causal (float[batch, rows, 16] x) => (float[batch, rows, 16] y)
<int64 one = {1}, int64 zero = {0}, int64[1] first = {0}, int64[1] second = {1}, float low = {-1e30}, float o = {0.0}>
{
  shape = Shape(x)
  length = Gather<axis = 0>(shape, one)
  numbers = Range(zero, length, one)
  row = Unsqueeze(numbers, second)
  column = Unsqueeze(numbers, first)
  before = LessOrEqual(column, row)
  mask = Where(before, o, low)
  turned = Transpose<perm = [0, 2, 1]>(x)
  products = MatMul(x, turned)
  scores = Add(products, mask)
  weights = Softmax<axis = -1>(scores)
  y = MatMul(weights, x)
}"""


def causal(x: np.ndarray) -> np.ndarray:
    scores = x.astype(np.float64) @ x.transpose(0, 2, 1)
    scores = np.where(np.tri(x.shape[1], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ x


@pytest.mark.slow
def test_a_causal_mask_is_a_corner_of_the_largest(tmp_path):
    model = onnx.parser.parse_model(CAUSAL)
    session = roller.compile_model(model, shapes={"x": (("batch", 1, 4), ("rows", 1, 40), 16)}, cache=False)
    loaded = roller.load_model(session.save(tmp_path / "saved", proofs=20))
    draw = np.random.default_rng(3)
    for batch, rows in ((1, 1), (1, 40), (4, 1), (4, 40), (2, 17), (3, 2), (1, 39)):
        x = draw.standard_normal((batch, rows, 16)).astype(np.float32)
        for made in (session, loaded):
            np.testing.assert_allclose(made.run({"x": x})["y"], causal(x), rtol=0, atol=1e-5)


def test_other_constants_that_sizes_determine_are_refused():
    """A mask of later rows is no corner: it moves with the length."""
    text = CAUSAL.replace(
        "row = Unsqueeze(numbers, second)", "turn = Sub(length, numbers)\n  row = Unsqueeze(turn, second)"
    )
    with pytest.raises(ModelError, match=r"the constant '.*' is computed from sizes"):
        roller.compile_model(onnx.parser.parse_model(text), shapes={"x": (1, ("rows", 1, 40), 16)}, cache=False)


@pytest.mark.parametrize("changed", ["scalar", "corner"])
def test_a_constant_that_differs_only_at_an_end_of_a_range_is_refused(changed):
    """A factor that is another one for a single row, and a mask whose only element is another one then."""
    text = CAUSAL
    if changed == "scalar":
        text = text.replace("Softmax<axis = -1>(scores)", "Mul(scores, factor)")
    text = text.replace("float o = {0.0}", "float o = {0.0}, float half = {0.5}")
    several = "several = Greater(length, one)\n  factor = Where(several, low, half)\n  "
    text = text.replace("before =", several + ("before =" if changed == "scalar" else "all ="))
    if changed == "corner":
        text = text.replace("mask =", "before = And(all, several)\n  mask =")
    model = onnx.parser.parse_model(text)
    with pytest.raises(ModelError, match=r"a constant is computed from sizes; it is .* at .*'rows': 1"):
        roller.compile_model(model, shapes={"x": (2, ("rows", 1, 40), 16)}, cache=False)
