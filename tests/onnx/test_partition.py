"""A graph becomes steps that compute the same; what cannot be lowered is listed whole."""

from __future__ import annotations

import numpy as np
import pytest

from roller.errors import ModelError
from roller.model.reference import evaluate_program
from roller.model.steps import Run, Value
from roller.onnx.graph import Graph, Node
from roller.onnx.partition import partition


def graph(nodes, values, inputs, outputs, constants=None) -> Graph:
    typed = {n: v if isinstance(v, Value) else Value(n, v) for n, v in values.items()}
    held = constants or {}
    typed |= {n: Value(n, a.shape, a.dtype.name) for n, a in held.items()}
    named = tuple(
        Node(n.op, n.inputs, n.outputs, n.attributes, n.name or f"n{k}", n.domain) for k, n in enumerate(nodes)
    )
    return Graph("test", tuple(inputs), tuple(outputs), named, typed, held)


def test_a_chain_computes_what_its_nodes_do():
    g = graph([Node("Tanh", ("x",), ("a",)), Node("Relu", ("a",), ("y",))], dict.fromkeys("xay", (3, 5)), ["x"], ["y"])
    x = np.linspace(-1, 1, 15, dtype=np.float32).reshape(3, 5)
    found = evaluate_program(partition(g), {"x": x})
    np.testing.assert_allclose(found["y"], np.maximum(np.tanh(x), 0), rtol=1e-6)


def test_equal_nodes_share_a_kernel_whatever_their_names():
    g = graph([Node("Tanh", ("x",), ("a",)), Node("Tanh", ("z",), ("b",))], dict.fromkeys("xzab", (3, 5)), "xz", "ab")
    program = partition(g)
    assert len([s for s in program.steps if isinstance(s, Run)]) == 2
    assert len(program.kernels) == 1


def test_everything_refused_is_listed():
    nodes = [Node("Tanh", ("x",), ("a",)), Node("Frobnicate", ("a",), ("b",)), Node("Relu", ("b",), ("c",)),
             Node("Frobnicate", ("c",), ("d",)), Node("Twist", ("d",), ("y",), {}, "last", "my.domain")]  # fmt: skip
    with pytest.raises(ModelError) as why:
        partition(graph(nodes, dict.fromkeys("xabcdy", (3,)), "x", "y"))
    text = str(why.value)
    assert "got 3 nodes" in text and "Frobnicate (2x: 'n1', 'n3')" in text and "'last'" in text
    assert "my.domain" in text and "Tanh" not in text


def test_a_node_that_nothing_needs_is_neither_computed_nor_refused():
    nodes = [Node("Relu", ("x",), ("y",)), Node("Frobnicate", ("x",), ("z",))]
    assert len(partition(graph(nodes, dict.fromkeys("xyz", (3,)), "x", "y")).steps) == 1


def test_scalars_and_tensors_without_elements():
    nodes = [Node("Relu", ("x",), ("y",)), Node("Relu", ("e",), ("f",))]
    values = {"x": (), "y": (), "e": (0, 3), "f": (0, 3)}
    found = evaluate_program(partition(graph(nodes, values, "xe", "yf")), {"x": np.float32(-2), "e": np.ones((0, 3))})
    assert found["y"].shape == () and found["y"] == 0
    assert found["f"].shape == (0, 3) and found["f"].dtype == np.float32
