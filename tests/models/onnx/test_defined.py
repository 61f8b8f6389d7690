"""Operators that ONNX defines by others: their definition is read where roller has no lowering of its own."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from roller.errors import ModelError
from roller.models.compile import partition_graph
from roller.models.onnx.lowering_registry import has_lowering
from roller.models.onnx.read_model import read_onnx_graph
from roller.models.onnx.simplify_graph import fold_graph
from tests.models.session.reference import evaluate_program


def _model(op, shapes, opset=24, outputs=("y",), types=None, **attributes):
    names = [f"x{i}" for i in range(len(shapes))]
    types = types or [TensorProto.FLOAT] * len(shapes)
    inputs = [helper.make_tensor_value_info(n, t, s) for n, t, s in zip(names, types, shapes, strict=True)]
    node = helper.make_node(op, names, list(outputs), **attributes)
    results = [onnx.ValueInfoProto(name=o) for o in outputs]
    graph = helper.make_graph([node], op, inputs, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def _agrees(model, arrays):
    feeds = {i.name: a for i, a in zip(model.graph.input, arrays, strict=True)}
    program = partition_graph(fold_graph(read_onnx_graph(model)))
    got = evaluate_program(program, feeds)
    for name, wanted in zip(program.outputs, ReferenceEvaluator(model).run(None, feeds), strict=True):
        np.testing.assert_allclose(got[name], wanted, rtol=1e-4, atol=1e-5)


def _array(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("heads", [2, 4])
def test_attention(causal, heads):
    assert not has_lowering("", "Attention")
    shapes = [(2, 4, 5, 8), (2, heads, 6, 8), (2, heads, 6, 8)]
    _agrees(_model("Attention", shapes, is_causal=causal), [_array(s, n) for n, s in enumerate(shapes)])


def test_a_definition_older_than_the_model():
    model = _model("DynamicQuantizeLinear", [(3, 4)], outputs=("y", "scale", "zero"))
    _agrees(model, [_array((3, 4))])


def test_what_is_refused_names_the_operator_of_the_model():
    model = _model("Bernoulli", [(3, 4)])
    with pytest.raises(ModelError, match=r"Bernoulli|RandomUniformLike"):
        partition_graph(fold_graph(read_onnx_graph(model)))


def test_attributes_reach_the_definition():
    model = _model("HannWindow", [()], types=[TensorProto.INT32], periodic=0)
    graph = fold_graph(read_onnx_graph(model, values={"x0": np.array(8, np.int32)}))
    (name,) = graph.outputs
    np.testing.assert_allclose(graph.constants[name], np.hanning(8), atol=1e-6)


_RANGES_OF_ZEROS = {
    "zeros": np.zeros((3, 4), np.float32),
    "negative zeros": np.full((3, 4), -0.0, np.float32),
    "no elements": np.zeros((0, 4), np.float32),
    "a range whose scale vanishes": np.full((3, 4), 1e-45, np.float32),
}


# The oracle's scale is a float64, which does not vanish.
@pytest.mark.parametrize(
    ("kind", "folded"), [(k, f) for k, x in _RANGES_OF_ZEROS.items() for f in (False, True) if f or not x.any()]
)
def test_a_range_of_zeros_has_the_scale_1(kind, folded):
    """ONNX divides zero by a scale of zero; ONNX Runtime has the scale 1, with which every formula is defined."""
    x = _RANGES_OF_ZEROS[kind]
    model = _model("DynamicQuantizeLinear", [x.shape], outputs=("y", "scale", "zero"))
    program = partition_graph(fold_graph(read_onnx_graph(model, values={"x0": x} if folded else None)))
    assert not (folded and program.steps)
    found = evaluate_program(program, {} if folded else {"x0": x})
    quantised, scale, zero = (found[name] for name in program.outputs)
    np.testing.assert_array_equal(quantised, np.zeros(x.shape, np.uint8))
    assert (float(scale), int(zero)) == (1.0, 0)


@pytest.mark.parametrize("factor", [0.0, -0.0, 1.0])
def test_a_product_of_dynamically_quantised_zeros_is_zero(factor):
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        helper.make_node("MatMulInteger", ["q", "w", "zero"], ["total"]),
        helper.make_node("Cast", ["total"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["real", "scale"], ["y"]),
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["again"]),
    ]
    w = np.arange(-10, 10, dtype=np.int8).reshape(4, 5)
    graph = helper.make_graph(
        nodes, "product", [helper.make_tensor_value_info("x", TensorProto.FLOAT, (3, 4))],
        [onnx.ValueInfoProto(name=n) for n in ("y", "again")], [onnx.numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    x = factor * _array((3, 4))
    program = partition_graph(fold_graph(read_onnx_graph(model)))
    y, again = (evaluate_program(program, {"x": x})[name] for name in program.outputs)
    wanted, stored = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(again, stored)


def test_nan_stays_visible_in_the_scale():
    x = _array((3, 4))
    x[1, 2] = np.nan
    program = partition_graph(
        fold_graph(read_onnx_graph(_model("DynamicQuantizeLinear", [(3, 4)], outputs=("y", "s"))))
    )
    assert np.isnan(evaluate_program(program, {"x0": x})[program.outputs[1]])
