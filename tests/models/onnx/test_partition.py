"""A graph becomes steps that compute the same; what cannot be lowered is listed whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from roller.errors import ModelError
from roller.models.graph.model_graph import Graph, Node
from roller.models.onnx.partition_graph import partition_graph
from roller_runtime.plan.program_steps import Foreign, Run, Value
from tests.models.session.reference import evaluate_program


def graph(nodes, values, inputs, outputs, constants=None) -> Graph:
    typed = {n: v if isinstance(v, Value) else Value(n, v) for n, v in values.items()}
    held = constants or {}
    typed |= {n: Value(n, a.shape, a.dtype.name) for n, a in held.items()}
    named = tuple(replace(n, name=n.name or f"n{k}") for k, n in enumerate(nodes))
    return Graph("test", tuple(inputs), tuple(outputs), named, typed, held)


def test_a_chain_computes_what_its_nodes_do():
    g = graph([Node("Tanh", ("x",), ("a",)), Node("Relu", ("a",), ("y",))], dict.fromkeys("xay", (3, 5)), ["x"], ["y"])
    x = np.linspace(-1, 1, 15, dtype=np.float32).reshape(3, 5)
    found = evaluate_program(partition_graph(g), {"x": x})
    np.testing.assert_allclose(found["y"], np.maximum(np.tanh(x), 0), rtol=1e-6)


def test_equal_nodes_share_a_kernel_whatever_their_names():
    g = graph([Node("Tanh", ("x",), ("a",)), Node("Tanh", ("z",), ("b",))], dict.fromkeys("xzab", (3, 5)), "xz", "ab")
    program = partition_graph(g)
    assert len([s for s in program.steps if isinstance(s, Run)]) == 2
    assert len(program.kernels) == 1


def test_everything_refused_is_listed():
    nodes = [Node("Tanh", ("x",), ("a",)), Node("Frobnicate", ("a",), ("b",)), Node("Relu", ("b",), ("c",)),
             Node("Frobnicate", ("c",), ("d",)), Node("Twist", ("d",), ("y",), {}, "last", "my.domain")]  # fmt: skip
    with pytest.raises(ModelError) as why:
        partition_graph(graph(nodes, dict.fromkeys("xabcdy", (3,)), "x", "y"))
    text = str(why.value)
    assert "got 3 nodes" in text and "Frobnicate (2x: 'n1', 'n3')" in text and "'last'" in text
    assert "my.domain" in text and "Tanh" not in text


def test_a_node_that_nothing_needs_is_neither_computed_nor_refused():
    nodes = [Node("Relu", ("x",), ("y",)), Node("Frobnicate", ("x",), ("z",))]
    assert len(partition_graph(graph(nodes, dict.fromkeys("xyz", (3,)), "x", "y")).steps) == 1


def test_scalars_and_tensors_without_elements():
    nodes = [Node("Relu", ("x",), ("y",)), Node("Relu", ("e",), ("f",))]
    values = {"x": (), "y": (), "e": (0, 3), "f": (0, 3)}
    found = evaluate_program(
        partition_graph(graph(nodes, values, "xe", "yf")), {"x": np.float32(-2), "e": np.ones((0, 3))}
    )
    assert found["y"].shape == () and found["y"] == 0
    assert found["f"].shape == (0, 3) and found["f"].dtype == np.float32


def test_what_has_no_lowering_runs_elsewhere_and_only_that(monkeypatch):
    from roller.models.onnx.lowering_registry import LOWERINGS

    nodes = [
        Node("Relu", ("x",), ("a",), {}, "", "", 17), Node("Tanh", ("a",), ("b",), {}, "", "", 17),
        Node("Relu", ("b",), ("c",), {}, "", "", 17), Node("Tanh", ("c",), ("d",), {}, "", "", 17),
        Node("Add", ("b", "d"), ("e",), {}, "", "", 17), Node("Tanh", ("e",), ("f",), {}, "", "", 17),
        Node("Softsign", ("f",), ("y",), {}, "", "", 17),
    ]  # fmt: skip
    g = graph(nodes, dict.fromkeys("xabcdefy", (3, 4)), "x", "y")
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    expected = evaluate_program(partition_graph(g), {"x": x})["y"]
    for op in ("Tanh", "Softsign", "Add"):
        monkeypatch.delitem(LOWERINGS, ("", op))
    with pytest.raises(ModelError, match="got 5 nodes"):
        partition_graph(g)
    program = partition_graph(g, fallback="onnxruntime")
    outside = [s.nodes for s in program.steps if isinstance(s, Foreign)]
    # Tanh n1 is read by Relu n2, which the group of Add needs: both in one group would be a cycle.
    assert outside == [("n1",), ("n3", "n4", "n5", "n6")]
    assert [s.nodes for s in program.steps if isinstance(s, Run)] == [("n0",), ("n2",)]
    np.testing.assert_allclose(evaluate_program(program, {"x": x})["y"], expected, rtol=1e-6)


def test_nodes_that_meet_later_are_one_group(monkeypatch):
    from roller.models.onnx.lowering_registry import LOWERINGS

    nodes = [Node("Tanh", (a,), (b,), {}, "", "", 17) for a, b in ("xa", "zb", "cd")]
    nodes.insert(2, Node("Relu", ("b",), ("c",), {}, "", "", 17))
    nodes.append(Node("Mul", ("a", "d"), ("y",), {}, "", "", 17))
    g = graph(nodes, dict.fromkeys("xzabcdy", (2,)), "xz", "y")
    feeds = {"x": np.float32([1, 2]), "z": np.float32([-1, 3])}
    expected = evaluate_program(partition_graph(g), feeds)["y"]
    for op in ("Tanh", "Mul"):
        monkeypatch.delitem(LOWERINGS, ("", op))
    program = partition_graph(g, fallback="onnxruntime")
    assert [s.nodes for s in program.steps if isinstance(s, Foreign)] == [("n1",), ("n0", "n3", "n4")]
    np.testing.assert_allclose(evaluate_program(program, feeds)["y"], expected, rtol=1e-6)


def test_a_value_no_step_can_pass_on_is_refused_with_fallback_too():
    values = {"x": (2,), "t": Value("t", (2,), "uint64"), "y": (2,)}
    nodes = [Node("Twist", ("x",), ("t",)), Node("Twist", ("t",), ("y",))]
    with pytest.raises(ModelError, match="not for fallback either, as 't' is uint64"):
        partition_graph(graph(nodes, values, "x", "y"), fallback="onnxruntime")
    with pytest.raises(ModelError, match="expected 'onnxruntime' or None"):
        partition_graph(graph(nodes[:0], {"x": (2,)}, "x", "x"), fallback="tflite")


def test_the_report_says_what_runs_where(monkeypatch):
    from roller.models.onnx.lowering_registry import LOWERINGS
    from roller.models.onnx.partition_graph import partition_with_report

    nodes = [Node("Relu", (a,), (b,), {}, "", "", 17) for a, b in ("xa", "zb")]
    nodes += [Node("Tanh", ("a",), ("c",), {}, "", "", 17), Node("Neg", ("c",), ("y",))]
    g = graph(nodes, dict.fromkeys("xzabcy", (2,)), "xz", ["y", "b"])
    partition_graph(g)
    monkeypatch.delitem(LOWERINGS, ("", "Tanh"))
    report = partition_with_report(g, fallback="onnxruntime")
    assert [(k.nodes, k.runs) for k in report.kernels] == [(("n0",), 2), (("n3",), 1)]
    assert report.steps == {"runs": 3, "foreign": 1}
    assert report.outside == {"n2": "operator Tanh has no lowering"}
    assert "2x" in str(report) and "outside: n2: operator Tanh has no lowering" in str(report)
