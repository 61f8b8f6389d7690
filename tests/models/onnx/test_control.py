"""If, Loop, Scan and local functions: written out as plain nodes that compute the same."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from roller.errors import ModelError
from roller.models.onnx.read_model import read_onnx_graph
from roller.models.onnx.simplify_graph import fold_graph
from tests.models.onnx.export import to_model
from tests.models.onnx.models import BOOL, FLOAT, INT64, body, info, model_of, runtime

RNG = np.random.default_rng(3)


def same(model, *all_feeds):
    """Read, fold, and hold the graph against the reference on all feeds; return it."""
    graph = fold_graph(read_onnx_graph(model))
    assert not {"If", "Loop", "Scan"} & {n.op for n in graph.nodes}
    assert graph.outputs == tuple(o.name for o in model.graph.output)
    small = to_model(graph)
    onnx.checker.check_model(small, full_check=True)
    for feeds in all_feeds:
        for name, expected, got in zip(graph.outputs, runtime(model, feeds), runtime(small, feeds), strict=True):
            np.testing.assert_allclose(got, expected, 1e-5, 1e-6)
            assert got.shape == expected.shape == graph.values[name].shape
    return graph


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def branches():
    """Two bodies that read `x` around them, one with a weight of its own."""
    then = body([helper.make_node("Add", ["x", "k"], ["t"])], [], [info("t")], [("k", floats(3))])
    other = body([helper.make_node("Neg", ["x"], ["n"]), helper.make_node("Exp", ["n"], ["e"])], [], [info("e")])
    return {"then_branch": then, "else_branch": other}


@pytest.mark.parametrize("taken", [True, False])
def test_constant_condition_takes_its_branch(taken):
    nodes = [helper.make_node("If", ["c"], ["y"], **branches())]
    graph = same(
        model_of(nodes, [info("x", FLOAT, [2, 3])], [info("y")], [("c", np.array(taken))]), {"x": floats(2, 3)}
    )
    assert [n.op for n in graph.nodes] == (["Add"] if taken else ["Neg", "Exp"])


@pytest.mark.parametrize("shape", [[], [1]])
def test_condition_of_run_time_chooses_between_both(shape):
    nodes = [helper.make_node("If", ["c"], ["a"], **branches()), helper.make_node("Neg", ["a"], ["y"])]
    model = model_of(nodes, [info("c", BOOL, shape), info("x", FLOAT, [2, 3])], [info("y")])
    x = floats(2, 3)
    same(model, {"c": np.full(shape, True), "x": x}, {"c": np.full(shape, False), "x": x})


def test_branches_of_different_shapes_are_refused_with_both():
    bodies = branches()
    bodies["else_branch"] = body([helper.make_node("ReduceSum", ["x"], ["s"])], [], [info("s")])
    nodes = [helper.make_node("If", ["c"], ["y"], name="choose", **bodies)]
    with pytest.raises(ModelError, match=r"If 'choose': .*float32\[2, 3\] and float32\[1, 1\]"):
        read_onnx_graph(model_of(nodes, [info("c", BOOL, []), info("x", FLOAT, [2, 3])], [info("y")]))


def power_loop(condition):
    """Multiply `v` by `x` each round and collect; `condition` is the nodes that make `go`."""
    nodes = [helper.make_node("Mul", ["v", "x"], ["w"]), helper.make_node("Identity", ["w"], ["seen"]), *condition]
    return body(
        nodes,
        [info("i", INT64, []), info("going", BOOL, []), info("v")],
        [info("go", BOOL, []), info("w"), info("seen")],
        [("bound", np.float32(5)), ("three", np.array(3))],
    )


def test_loop_with_a_known_count_is_unrolled():
    nodes = [helper.make_node("Loop", ["m", "", "v0"], ["y", "all"], body=power_loop([
        helper.make_node("Identity", ["going"], ["go"])]))]  # fmt: skip
    weights = [("m", np.array(4))]
    inputs = [info("x", FLOAT, [2, 3]), info("v0", FLOAT, [2, 3])]
    graph = same(model_of(nodes, inputs, [info("y"), info("all")], weights), {"x": floats(2, 3), "v0": floats(2, 3)})
    assert [n.op for n in graph.nodes].count("Mul") == 4
    assert graph.values["all"].shape == (4, 2, 3)


def test_loop_stops_where_a_constant_condition_says_so():
    nodes = [helper.make_node("Loop", ["", "yes", "v0"], ["y", "all"], body=power_loop([
        helper.make_node("Less", ["i", "three"], ["go"])]))]  # fmt: skip
    inputs = [info("x", FLOAT, [3]), info("v0", FLOAT, [3])]
    model = model_of(nodes, inputs, [info("y"), info("all")], [("yes", np.array(True))])
    graph = fold_graph(read_onnx_graph(model))
    assert graph.values["all"].shape == (4, 3)  # the turn whose condition fails is the last one


def test_loop_with_a_condition_of_run_time_freezes():
    inner = power_loop([helper.make_node("ReduceMax", ["w"], ["top"], keepdims=0),
                        helper.make_node("Less", ["top", "bound"], ["go"])])  # fmt: skip
    del inner.output[2]
    nodes = [helper.make_node("Loop", ["m", "", "v0"], ["y"], body=inner)]
    model = model_of(nodes, [info("x", FLOAT, [3]), info("v0", FLOAT, [3])], [info("y")], [("m", np.array(6))])
    ones = np.ones(3, np.float32)
    same(model, {"x": 1.7 * ones, "v0": ones}, {"x": 9 * ones, "v0": ones}, {"x": 0.5 * ones, "v0": ones})


def test_loops_without_a_bound_are_refused():
    collect = power_loop([helper.make_node("Identity", ["going"], ["go"])])
    inputs = [info("x", FLOAT, [3]), info("v0", FLOAT, [3])]
    outputs = [info("y"), info("all")]
    nodes = [helper.make_node("Loop", ["", "", "v0"], ["y", "all"], body=collect, name="turn")]
    with pytest.raises(ModelError, match=r"Loop 'turn': it does not say how often it runs"):
        read_onnx_graph(model_of(nodes, inputs, outputs))
    nodes = [helper.make_node("Loop", ["m", "", "v0"], ["y", "all"], body=collect, name="turn")]
    with pytest.raises(ModelError, match=r"Loop 'turn': how often it runs is computed at run time"):
        read_onnx_graph(model_of(nodes, [*inputs, info("m", INT64, [])], outputs))


def test_scan_is_unrolled_in_both_directions():
    inner = body(
        [helper.make_node("Add", ["s", "a"], ["s1"]), helper.make_node("Mul", ["s1", "b"], ["o"])],
        [info("s"), info("a"), info("b")],
        [info("s1"), info("o")],
    )
    nodes = [
        helper.make_node("Scan", ["s0", "p", "q"], ["last", "all"], body=inner, num_scan_inputs=2,
                         scan_input_axes=[0, 1], scan_input_directions=[0, 1], scan_output_directions=[1],
                         scan_output_axes=[-1])
    ]  # fmt: skip
    inputs = [info("s0", FLOAT, [3]), info("p", FLOAT, [4, 3]), info("q", FLOAT, [3, 4])]
    graph = fold_graph(read_onnx_graph(model_of(nodes, inputs, [info("last"), info("all")])))
    s0, p, q = floats(3), floats(4, 3), floats(3, 4)
    last, collected = ReferenceEvaluator(to_model(graph)).run(None, {"s0": s0, "p": p, "q": q})
    state, expected = s0, []
    for t in range(4):
        state = state + p[t]
        expected.append(state * q[:, 3 - t])
    np.testing.assert_allclose(last, state, 1e-5)
    np.testing.assert_allclose(collected, np.stack(expected[::-1], -1), 1e-5)


def test_loop_within_a_branch_names_everything_once():
    loop = helper.make_node("Loop", ["m", "", "x"], ["z", "seen"], body=power_loop([
        helper.make_node("Identity", ["going"], ["go"])]))  # fmt: skip
    then = body([loop], [], [info("z")], [("m", np.array(2))])
    nodes = [
        helper.make_node("If", ["c"], ["a"], then_branch=then, else_branch=then),
        helper.make_node("Add", ["a", "x"], ["y"]),
    ]
    graph = same(model_of(nodes, [info("c", BOOL, []), info("x", FLOAT, [3])], [info("y")]),
                 {"c": np.array(True), "x": floats(3)})  # fmt: skip
    assert [n.op for n in graph.nodes] == ["Mul", "Mul", "Add"]  # equal branches are one
    assert len({n.name for n in graph.nodes}) == 3


def function(name, nodes, inputs=("a",), outputs=("b",), attributes=()):
    return helper.make_function("local", name, inputs, outputs, nodes, [helper.make_opsetid("", 17),
                                helper.make_opsetid("local", 1)], attributes)  # fmt: skip


def calls(op, domain="local", **attributes):
    return helper.make_node(op, ["a"], ["b"], domain=domain, **attributes)


def test_local_functions_are_called_inline():
    leaky = helper.make_node("LeakyRelu", ["a"], ["t"])
    leaky.attribute.append(onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope"))
    inner = function("Inner", [leaky, helper.make_node("Exp", ["t"], ["b"])], attributes=["slope"])
    outer = function("Outer", [calls("Inner", slope=0.5)])
    nodes = [
        helper.make_node("Outer", ["x"], ["t"], domain="local"),
        helper.make_node("Outer", ["t"], ["u"], domain="local"),
        helper.make_node("Add", ["u", "t/w"], ["y"]),
    ]
    model = model_of(nodes, [info("x", FLOAT, [3])], [info("y")], [("t/w", floats(3))], functions=[inner, outer],
                     imports=[helper.make_opsetid("local", 1)])  # fmt: skip
    graph = same(model, {"x": floats(3)})
    assert [n.op for n in graph.nodes] == ["LeakyRelu", "Exp", "LeakyRelu", "Exp", "Add"]
    assert graph.nodes[0].attributes == {"alpha": 0.5}
