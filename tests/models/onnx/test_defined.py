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
