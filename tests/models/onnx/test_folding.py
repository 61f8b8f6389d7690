"""Folding: the graph computes the same, and what should be gone is gone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from roller.models.onnx.read_model import read_onnx_graph
from roller.models.onnx.simplify_graph import fold_graph
from tests.models.onnx import models
from tests.models.onnx.export import to_model
from tests.models.onnx.models import FLOAT, info

RNG = np.random.default_rng(5)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def model_of(nodes, inputs, outputs, initialisers=None, opset=17):
    """A float32 model; inputs are shapes by name, outputs names."""
    given = [info(n, shape=s) for n, s in inputs.items()]
    return models.model_of(nodes, given, [info(n) for n in outputs], initialisers or {}, opset=opset)


def run(model, feeds):
    return models.runtime(model, feeds, optimised=False)


def folded(model, rtol=1e-5, atol=1e-5):
    """Fold a model, hold it against the original, and return the folded graph."""
    graph = fold_graph(read_onnx_graph(model))
    feeds = {n: RNG.standard_normal(graph.values[n].shape).astype(graph.values[n].dtype) for n in graph.inputs}
    assert graph.outputs == tuple(o.name for o in model.graph.output)
    for expected, got in zip(run(model, feeds), run(to_model(graph), feeds), strict=True):
        assert expected.dtype == got.dtype and expected.shape == got.shape
        np.testing.assert_allclose(got, expected, rtol, atol)
    used = {n for node in graph.nodes for n in (*node.inputs, *node.outputs) if n}
    assert set(graph.values) == used | set(graph.inputs) | set(graph.outputs)
    return graph


def ops(graph):
    return [n.op for n in graph.nodes]


def norm(c):
    return {"g": floats(c), "b": floats(c), "m": floats(c), "v": np.abs(floats(c)) + 0.5}


BN = ["g", "b", "m", "v"]


@pytest.mark.parametrize("bias", [False, True])
def test_normalisation_scale_and_shift_fold_into_convolution(bias):
    nodes = [
        helper.make_node("Conv", ["x", "w", *["c"][:bias]], ["a"], pads=[1, 1, 1, 1], group=2),
        helper.make_node("BatchNormalization", ["a", *BN], ["n"], epsilon=0.1),
        helper.make_node("Unsqueeze", ["s", "axes"], ["s3"]),
        helper.make_node("Mul", ["s3", "n"], ["p"]),
        helper.make_node("Sub", ["p", "t"], ["y"]),
    ]
    weights = {"w": floats(6, 2, 3, 3), "c": floats(6), "s": floats(6), "axes": np.array([1, 2]), **norm(6)}
    graph = folded(model_of(nodes, {"x": (2, 4, 5, 5)}, ["y"], {**weights, "t": floats(1, 6, 1, 1)}))
    assert ops(graph) == ["Conv"] and len(graph.nodes[0].inputs) == 3


@pytest.mark.parametrize("group", [1, 2])
def test_normalisation_folds_into_transposed_convolution(group):
    nodes = [
        helper.make_node("ConvTranspose", ["x", "w"], ["a"], strides=[2, 2], group=group),
        helper.make_node("BatchNormalization", ["a", *BN], ["y"]),
    ]
    graph = folded(model_of(nodes, {"x": (1, 4, 3, 3)}, ["y"], {"w": floats(4, 6 // group, 3, 3), **norm(6)}))
    assert ops(graph) == ["ConvTranspose"]


@pytest.mark.parametrize(
    ("attributes", "bias"),
    [({"transB": 1, "beta": 0.5}, (6,)), ({"alpha": 2.0}, (1, 6)), ({}, (1,)), ({}, None), ({}, (3, 1))],
)
def test_normalisation_folds_into_gemm_where_its_bias_is_one_row(attributes, bias):
    nodes = [
        helper.make_node("Gemm", ["x", "w", *(["c"] if bias else [])], ["a"], **attributes),
        helper.make_node("BatchNormalization", ["a", *BN], ["y"]),
    ]
    weights = {"w": floats(6, 4) if attributes.get("transB") else floats(4, 6), **norm(6)}
    graph = folded(model_of(nodes, {"x": (3, 4)}, ["y"], {**weights, **({"c": floats(*bias)} if bias else {})}))
    assert ops(graph) == (["Gemm", "Mul", "Add"] if bias == (3, 1) else ["Gemm"])


def test_scale_folds_into_the_weights_of_a_product_and_the_shift_stays():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("BatchNormalization", ["a", *BN], ["y"]),
    ]
    assert ops(folded(model_of(nodes, {"x": (3, 4)}, ["y"], {"w": floats(4, 6), **norm(6)}))) == ["MatMul", "Add"]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Div", ["a", "eight"], ["y"])]
    weights = {"w": floats(4, 6), "eight": np.float32(8)}
    assert ops(folded(model_of(nodes, {"x": (2, 3, 4)}, ["y"], weights))) == ["MatMul"]


def test_what_another_node_or_the_caller_reads_is_not_folded_into():
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("BatchNormalization", ["a", *BN], ["n"]),
        helper.make_node("Add", ["a", "n"], ["y"]),
    ]
    weights = {"w": floats(3, 3, 1, 1), **norm(3)}
    assert ops(folded(model_of(nodes, {"x": (1, 3, 4, 4)}, ["y"], weights))) == ["Conv", "Mul", "Add", "Add"]
    assert ops(folded(model_of(nodes[:2], {"x": (1, 3, 4, 4)}, ["a", "n"], weights))) == ["Conv", "Mul", "Add"]


def test_scales_in_a_row_become_one():
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("BatchNormalization", ["r", *BN], ["n"]),
        helper.make_node("Mul", ["n", "two"], ["p"]),
        helper.make_node("Sub", ["c", "p"], ["y"]),
    ]
    weights = {"two": np.float32(2), "c": floats(3, 1), **norm(3)}
    assert ops(folded(model_of(nodes, {"x": (2, 3, 5)}, ["y"], weights))) == ["Relu", "Mul", "Add"]


MAGIC = np.float32(12582912)


@pytest.mark.parametrize(
    ("before", "left"),
    [
        ([], ["Add", "Sub"]),
        ([helper.make_node("Conv", ["x", "w", "m"], ["x1"])], ["Conv", "Sub"]),  # the first sum is a bias
        ([helper.make_node("Conv", ["x", "w"], ["x1"])], ["Conv", "Sub"]),
    ],
    ids=["alone", "after a biased convolution", "after a convolution"],
)
def test_shifts_that_cancel_are_not_added_up(before, left):
    weights = {"magic": MAGIC, "w": floats(3, 3, 1, 1), "m": np.zeros(3, np.float32)}
    source = "x1" if before else "x"
    nodes = [*before, helper.make_node("Add", [source, "magic"], ["t"]), helper.make_node("Sub", ["t", "magic"], ["y"])]
    graph = fold_graph(read_onnx_graph(model_of(nodes, {"x": (1, 3, 4, 4)}, ["y"], weights)))
    assert ops(graph) == left


def test_two_operators_of_the_model_round_one_after_the_other():
    nodes = [
        helper.make_node("Mul", ["x", "large"], ["t"]),  # overflows, and does not come back
        helper.make_node("Mul", ["t", "small"], ["y"]),
    ]
    model = model_of(nodes, {"x": (2, 3, 4)}, ["y"], {"large": np.float32(1e38), "small": np.float32(1e-38)})
    assert ops(fold_graph(read_onnx_graph(model))) == ["Mul", "Mul"]


@pytest.mark.parametrize(
    ("op", "zero", "left"), [("Add", 0.0, ["Add"]), ("Add", -0.0, []), ("Sub", 0.0, []), ("Sub", -0.0, ["Sub"])]
)
def test_a_sum_with_zero_that_loses_the_sign_of_zero_stays(op, zero, left):
    nodes = [
        helper.make_node("Exp", ["x"], ["t"]),
        helper.make_node(op, ["t", "zero"], ["y"]),
    ]
    graph = fold_graph(read_onnx_graph(model_of(nodes, {"x": (2, 3)}, ["y"], {"zero": np.float32(zero)})))
    assert ops(graph) == ["Exp", *left]


def test_constants_that_do_not_vary_by_channel_stay():
    nodes = [helper.make_node("Conv", ["x", "w"], ["a"]), helper.make_node("Add", ["a", "c"], ["y"])]
    for shape in ((4, 4), (1, 1, 4, 1), (2, 3, 4, 4)):
        assert ops(
            folded(model_of(nodes, {"x": (2, 3, 4, 4)}, ["y"], {"w": floats(3, 3, 1, 1), "c": floats(*shape)}))
        ) == [
            "Conv",
            "Add",
        ]


def test_division_by_zero_is_left_alone():
    nodes = [helper.make_node("Conv", ["x", "w"], ["a"]), helper.make_node("Div", ["a", "c"], ["y"])]
    weights = {"w": floats(2, 3, 1, 1), "c": np.array([[[1.0]], [[0.0]]], np.float32)}
    assert ops(folded(model_of(nodes, {"x": (1, 3, 2, 2)}, ["y"], weights))) == ["Conv", "Div"]


@pytest.mark.parametrize(("kind", "left"), [(np.float32, ["Conv"]), (np.float16, ["Conv", "BatchNormalization"])])
def test_weights_of_half_precision_are_not_rounded_once_more(kind, left):
    """Their error would be alike for all results of a channel; lowered, scale and shift are kept in float32."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("BatchNormalization", ["a", *BN], ["y"]),
    ]
    weights = {n: a.astype(kind) for n, a in {"w": floats(6, 2, 1, 1), **norm(6)}.items()}
    model = model_of(nodes, {"x": (1, 2, 2, 2)}, ["y"], weights)
    for entry in (*model.graph.input, *model.graph.output):
        entry.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    assert ops(fold_graph(read_onnx_graph(model))) == left


def test_half_precision_weights_that_would_overflow_are_left_alone():
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("Mul", ["a", "s"], ["y"]),
    ]
    weights = {"w": np.full((2, 1, 1, 1), 6e4, np.float16), "s": np.float16(4)}
    model = model_of(nodes, {"x": (1, 1, 2, 2)}, ["y"], weights)
    for entry in (*model.graph.input, *model.graph.output):
        entry.type.tensor_type.elem_type = TensorProto.FLOAT16
    assert ops(fold_graph(read_onnx_graph(model))) == ["Conv", "Mul"]


def test_zero_padding_folds_into_convolution_and_average():
    pads = np.array([0, 0, 1, 2, 0, 0, 0, 1])
    for reader, weights in (
        (helper.make_node("Conv", ["p", "w"], ["y"], pads=[0, 1, 1, 0]), {"w": floats(3, 2, 3, 3)}),
        (helper.make_node("AveragePool", ["p"], ["y"], kernel_shape=[3, 3]), {}),
    ):
        nodes = [helper.make_node("Pad", ["x", "pads"], ["p"]), reader]
        graph = folded(model_of(nodes, {"x": (1, 2, 5, 6)}, ["y"], {"pads": pads, **weights}))
        assert ops(graph) == [reader.op_type]


@pytest.mark.parametrize(
    ("pads", "value", "attributes"),
    [
        ([0, 0, 1, 1, 0, 0, 1, 1], 1.0, {}),
        ([0, 1, 0, 0, 0, 1, 0, 0], 0.0, {}),
        ([0, 0, -1, 0, 0, 0, 0, 0], 0.0, {}),
        ([0, 0, 1, 1, 0, 0, 1, 1], 0.0, {"auto_pad": "SAME_UPPER"}),
    ],
)
def test_padding_that_is_none_of_a_convolution_stays(pads, value, attributes):
    nodes = [
        helper.make_node("Pad", ["x", "pads", "value"], ["p"]),
        helper.make_node("Conv", ["p", "w"], ["y"], **attributes),
    ]
    channels = 2 + pads[1] + pads[5]
    weights = {"pads": np.array(pads), "value": np.float32(value), "w": floats(3, channels, 3, 3)}
    assert ops(folded(model_of(nodes, {"x": (1, 2, 5, 6)}, ["y"], weights))) == ["Pad", "Conv"]


def test_padding_of_an_average_that_did_not_count_its_own_stays():
    nodes = [
        helper.make_node("Pad", ["x", "pads"], ["p"]),
        helper.make_node("AveragePool", ["p"], ["y"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    ]
    pads = np.array([0, 0, 1, 1, 0, 0, 1, 1])
    assert ops(folded(model_of(nodes, {"x": (1, 2, 5, 6)}, ["y"], {"pads": pads}))) == ["Pad", "AveragePool"]


def test_what_changes_nothing_is_gone_and_outputs_keep_their_names():
    nodes = [
        helper.make_node("Identity", ["x"], ["a"]),
        helper.make_node("Dropout", ["a"], ["b"]),
        helper.make_node("Exp", ["b"], ["c"]),
        helper.make_node("Cast", ["c"], ["d"], to=FLOAT),
        helper.make_node("Transpose", ["d"], ["e"], perm=[0, 1, 2]),
        helper.make_node("Mul", ["one", "e"], ["f"]),
        helper.make_node("Reshape", ["f", "shape"], ["g"]),
        helper.make_node("Pad", ["g", "pads"], ["h"]),
        helper.make_node("Slice", ["h", "zero", "end"], ["i"]),
        helper.make_node("Concat", ["i"], ["y"], axis=0),
    ]
    weights = {"one": np.ones((1, 1), np.float32), "shape": np.array([2, -1, 4]), "pads": np.zeros(6, np.int64),
               "zero": np.array([0]), "end": np.array([9])}  # fmt: skip
    graph = folded(model_of(nodes, {"x": (2, 3, 4)}, ["y"], weights))
    assert [(n.op, n.inputs, n.outputs) for n in graph.nodes] == [("Exp", ("x",), ("y",))]


def test_a_reversing_slice_and_a_broadcasting_one_stay():
    nodes = [
        helper.make_node("Slice", ["x", "last", "before", "axis", "back"], ["a"]),
        helper.make_node("Mul", ["a", "ones"], ["y"]),
    ]
    weights = {"last": np.array([-1]), "before": np.array([-9]), "axis": np.array([1]), "back": np.array([-1]),
               "ones": np.ones((4, 1, 1), np.float32)}  # fmt: skip
    assert ops(folded(model_of(nodes, {"x": (2, 3)}, ["y"], weights))) == ["Slice", "Mul"]


def test_outputs_that_are_inputs_constants_or_each_other():
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Identity", ["k"], ["fixed"]),
        helper.make_node("Neg", ["x"], ["n"]),
        helper.make_node("Identity", ["n"], ["n1"]),
        helper.make_node("Identity", ["n"], ["n2"]),
    ]
    graph = folded(model_of(nodes, {"x": (2, 3)}, ["same", "fixed", "n1", "n2"], {"k": floats(2)}))
    assert sorted(ops(graph)) == ["Identity", "Identity", "Neg"]
    assert "fixed" in graph.constants
    again = fold_graph(graph)
    assert [(n.op, n.inputs, n.outputs) for n in again.nodes] == [(n.op, n.inputs, n.outputs) for n in graph.nodes]


def test_movements_in_a_row_become_one():
    nodes = [
        helper.make_node("Unsqueeze", ["x", "one"], ["a"]),
        helper.make_node("Flatten", ["a"], ["b"], axis=1),
        helper.make_node("Reshape", ["b", "shape"], ["c"]),
        helper.make_node("Transpose", ["c"], ["d"], perm=[0, 2, 1]),
        helper.make_node("Transpose", ["d"], ["e"], perm=[1, 2, 0]),
        helper.make_node("Unsqueeze", ["e", "one"], ["f"]),
        helper.make_node("Transpose", ["f"], ["y"], perm=[0, 2, 1, 3]),
    ]
    graph = folded(model_of(nodes, {"x": (2, 3, 4)}, ["y"], {"one": np.array([1]), "shape": np.array([3, 2, 4])}))
    assert ops(graph) == ["Reshape", "Transpose", "Reshape"]


def test_equal_nodes_and_equal_constants_are_there_once():
    k = floats(3)
    nodes = [
        helper.make_node("Add", ["x", "k1"], ["a"]),
        helper.make_node("Add", ["x", "k2"], ["b"]),
        helper.make_node("Exp", ["a"], ["c"]),
        helper.make_node("Exp", ["b"], ["d"]),
        helper.make_node("Add", ["c", "d"], ["y"]),
    ]
    graph = folded(model_of(nodes, {"x": (2, 3)}, ["y"], {"k1": k, "k2": k.copy()}))
    assert ops(graph) == ["Add", "Exp", "Add"] and len(graph.constants) == 1


def test_random_draws_are_neither_folded_nor_merged():
    nodes = [
        helper.make_node("RandomNormal", [], ["a"], shape=[2, 3]),
        helper.make_node("RandomNormal", [], ["b"], shape=[2, 3]),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    graph = fold_graph(read_onnx_graph(model_of(nodes, {}, ["y"])))
    assert ops(graph) == ["RandomNormal", "RandomNormal", "Add"]


def test_large_equal_constants_are_told_from_nearly_equal_ones():
    k = floats(300, 300)
    near = k.copy()
    near[123, 45] += 1
    nodes = [helper.make_node("Sum", ["x", "k1", "k2", "k3"], ["y"])]
    graph = folded(model_of(nodes, {"x": (300, 300)}, ["y"], {"k1": k, "k2": k.copy(), "k3": near}))
    assert len(graph.constants) == 2 and graph.nodes[0].inputs == ("x", "k1", "k1", "k3")


@pytest.mark.parametrize("name", ["light_shufflenet", "light_squeezenet", "light_resnet50"])
def test_light_models_compute_the_same(name):
    """With weights that compute: each constant of the model filled at random before folding."""
    path = Path(onnx.__file__).parent / f"backend/test/data/light/{name}.onnx"
    graph = read_onnx_graph(path)
    filled = {
        n: a if a.dtype == np.int64 else (np.abs(floats(*a.shape)) + 0.5) * 0.1 for n, a in graph.constants.items()
    }
    graph = type(graph)(graph.name, graph.inputs, graph.outputs, graph.nodes, graph.values, filled)
    small = fold_graph(graph)
    assert not {"BatchNormalization", "Dropout", "Identity"} & set(ops(small))
    feeds = {n: floats(*graph.values[n].shape) for n in graph.inputs}
    for expected, got in zip(run(to_model(graph), feeds), run(to_model(small), feeds), strict=True):
        np.testing.assert_allclose(got, expected, 1e-3, 1e-6)


@pytest.mark.parametrize(("op", "attributes"), [("GlobalMaxPool", {}), ("LRN", {"size": 1})])
def test_what_the_reference_computes_wrongly_is_not_folded(op, attributes):
    held = onnx.numpy_helper.from_array(np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4), "c")
    nodes = [onnx.helper.make_node(op, ["c"], ["p"], **attributes), onnx.helper.make_node("Add", ["p", "x"], ["y"])]
    kinds = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, 2, 1, 1]) for n in "x"]
    out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    model = onnx.helper.make_model(onnx.helper.make_graph(nodes, "held", kinds, [out], [held]))
    assert [n.op for n in fold_graph(read_onnx_graph(model)).nodes] == [op, "Add"]
