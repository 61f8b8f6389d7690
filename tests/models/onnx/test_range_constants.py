"""Constants that sizes determine: corners of the one at the largest sizes are copied, others are refused."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import roller
from roller.compiler.dynamic.dynamic_size_box import SizeBox
from roller.errors import ModelError
from roller.models.onnx.critical_sizes import find_critical_sizes
from roller.models.onnx.folded_nodes import record_folded_nodes
from roller.models.onnx.read_model import read_onnx_graph

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


#: A factor that is chosen by the sizes; all values between the dimensions and the choice are folded.
CHOSEN = """<ir_version: 8, opset_import: ["": 18]>
chosen (float[batch, rows] x) => (float[batch, rows] y)
<int64 zero = {{0}}, int64 one = {{1}}, int64 two = {{2}}, int64 c17 = {{17}}, int64 c34 = {{34}}, int64 c40 = {{40}},
 int64 c42 = {{42}}, int64 absent = {{-1}}, float low = {{2.0}}, float high = {{3.0}}>
{{
  shape = Shape(x)
  batches = Gather<axis = 0>(shape, zero)
  length = Gather<axis = 0>(shape, one)
  {choice}
  factor = Where(wanted, low, high)
  y = Mul(x, factor)
}}"""
CHOICES = {
    "equal": ("wanted = Equal(length, c17)", "'rows': 17"),
    "between": ("a = Greater(length, c40)  b = Less(length, c42)  wanted = And(a, b)", "'rows': 41"),
    "parity": (
        "m = Mod(length, two)  a = Equal(m, one)  b = Greater(length, c40)  wanted = And(a, b)",
        "sizes",
    ),
    "minimum": ("m = Min(length, c17)  d = Sub(length, m)  wanted = Equal(d, one)", "'rows': 18"),
    "product": ("m = Mul(length, batches)  wanted = Equal(m, c34)", "{'batch': 2, 'rows': 17}"),
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_constant_that_differs_at_a_size_between_the_samples_is_refused(name):
    choice, where = CHOICES[name]
    model = onnx.parser.parse_model(CHOSEN.format(choice=choice))
    with pytest.raises(ModelError, match=f"(?s)expected the same steps for all.*{where}.*without these sizes"):
        roller.compile_model(model, shapes={"x": (("batch", 1, 5), ("rows", 1, 64))}, cache=False)


def test_a_mask_that_differs_at_a_single_size_is_refused():
    text = CAUSAL.replace("int64 one = {1}", "int64 one = {1}, int64 odd = {17}")
    text = text.replace("before =", "single = Equal(length, odd)\n  tri =").replace(
        "mask =", "before = Or(tri, single)\n  mask ="
    )
    with pytest.raises(ModelError, match=r"the constant '.*' is computed from sizes; it differs at .*'rows': 17"):
        roller.compile_model(onnx.parser.parse_model(text), shapes={"x": (2, ("rows", 1, 40), 16)}, cache=False)


def test_choices_that_no_size_changes_are_compiled():
    """Exporters compare each dimension with -1 before they expand a value."""
    model = onnx.parser.parse_model(CHOSEN.format(choice="wanted = Equal(length, absent)"))
    made = roller.compile_model(
        model, shapes={"x": (("batch", 1, 5), ("rows", 1, 64))}, cache=False, deterministic=True
    )
    x = np.random.default_rng(0).standard_normal((3, 17)).astype(np.float32)
    np.testing.assert_array_equal(made.run({"x": x})["y"], 3 * x)


def test_what_nodes_compute_is_evaluated_at_all_sizes_at_once():
    """A comparison differs at one size of each batch; a maximum of positions cannot be evaluated."""
    box = SizeBox({"batch": (1, 5), "rows": (1, 64)})
    choice = """p = Range(zero, length, one)  most = ReduceMax<keepdims = 0>(p)
      flag = Equal(length, c17)  wanted = Equal(most, absent)  other = Identity(flag)"""
    text = CHOSEN.format(choice=choice).replace(
        "y = Mul(x, factor)", "f = Cast<to = 1>(other) g = Add(factor, f) y = Mul(x, g)"
    )
    model = onnx.parser.parse_model(text)
    points = [{"batch": b, "rows": n} for b, n in ((2, 3), (4, 63), (3, 30), (2, 50), (4, 22), (3, 8))]
    samples = []
    for p in points:
        with record_folded_nodes() as nodes:
            read_onnx_graph(model, shapes={"x": tuple(p.values())})
        samples.append(nodes)
    classes, unknown = find_critical_sizes(box, points, samples)
    assert classes == [[{"batch": b, "rows": 17} for b in range(1, 6)]]
    assert unknown == ["most"]
