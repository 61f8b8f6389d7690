"""Reading models: every source, static shapes everywhere, overrides, constants computed."""

from __future__ import annotations

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from roller.errors import ModelError, UnsupportedError
from roller.models.onnx.read_model import read_onnx_graph
from roller.models.onnx.simplify_graph import fold_graph
from tests.models.onnx.models import FLOAT, INT64, model_of
from tests.offenders import every

LIGHT = sorted((Path(onnx.__file__).parent / "backend/test/data/light").glob("*.onnx"))


@pytest.mark.parametrize("path", LIGHT, ids=lambda p: p.stem)
@pytest.mark.parametrize("batch", [None, 8])
def test_light_models_are_all_static(path, batch):
    graph = read_onnx_graph(path, batch=batch)
    assert len(graph.inputs) == len(graph.outputs) == 1
    assert graph.values[graph.inputs[0]].shape == (batch or 1, 3, 224, 224)
    assert graph.values[graph.outputs[0]].shape[:2] == (batch or 1, 1000)
    written = set(graph.inputs) | set(graph.constants)
    for node in graph.nodes:
        assert node.op not in ("ConstantOfShape", "Unsqueeze"), node
        assert all(n in written for n in node.inputs if n)
        written.update(node.outputs)
        assert all(n in graph.values for n in (*node.inputs, *node.outputs) if n)
    assert len({n.name for n in graph.nodes}) == len(graph.nodes)


def shape_arithmetic(batch):
    """x (batch, 3, 4) flattened by what Shape says: the usual export of `x.view(x.size(0), -1)`."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["b"]),
        helper.make_node("Unsqueeze", ["b", "axis"], ["b1"]),
        helper.make_node("Concat", ["b1", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    weights = [("zero", np.array(0)), ("axis", np.array([0])), ("rest", np.array([-1]))]
    return model_of(nodes, [("x", FLOAT, [batch, 3, 4])], [("y", FLOAT, None)], weights)


def test_shape_arithmetic_folds():
    graph = read_onnx_graph(shape_arithmetic("n"), batch=5)
    assert [n.op for n in graph.nodes] == ["Reshape"]
    assert graph.values["y"].shape == (5, 12)
    assert graph.constants[graph.nodes[0].inputs[1]].tolist() == [5, -1]


def test_bytes_path_and_message_agree(tmp_path):
    model = shape_arithmetic(2)
    before = model.SerializeToString()
    path = tmp_path / "m.onnx"
    path.write_bytes(before)
    graphs = [read_onnx_graph(m) for m in (model, before, path, str(path))]
    assert model.SerializeToString() == before
    for graph in graphs:
        assert [(n.op, n.inputs, n.outputs) for n in graph.nodes] == [("Reshape", ("x", "target"), ("y",))]
        assert graph.values == graphs[0].values


def test_unknown_dimensions_are_refused_with_the_remedy():
    with pytest.raises(ModelError, match=r"'x' with dimensions \['n', 3, 4\].*batch="):
        read_onnx_graph(shape_arithmetic("n"))


def test_shapes_override_binds_the_symbol_in_all_inputs():
    nodes = [helper.make_node("Add", ["x", "z"], ["y"])]
    model = model_of(nodes, [("x", FLOAT, ["n", "k"]), ("z", FLOAT, ["n", "k"])], [("y", FLOAT, ["n", "k"])])
    graph = read_onnx_graph(model, shapes={"x": (3, 7)})
    assert graph.values["z"].shape == graph.values["y"].shape == (3, 7)


@every(
    ("override", "message"),
    [
        ({"batch": 0}, "batch: expected a number of at least 1 .for a range, use shapes=., got 0"),
        ({"shapes": {"xx": (1, 3, 4)}}, "shapes: m has no input 'xx'; did you mean 'x'"),
        ({"shapes": {"x": (1, 3)}}, "with 3 dimensions"),
        ({"shapes": {"x": (1, 3, 4.5)}}, "expected numbers for 'x'"),
        ({"shapes": {"x": 3}}, "shapes: expected a tuple of sizes for 'x', got 3"),
        ({"shapes": [1, 3, 4]}, r"shapes: expected a dict of shapes by input, got \[1, 3, 4\]"),
        ({"values": 3}, "values: expected a dict of arrays by input, got 3"),
        ({"values": {"x": np.zeros((1, 3, 4), np.int64)}}, "takes 'x' as float32, got int64"),
        ({"values": {"x": np.zeros((1, 4, 4), np.float32)}}, "of shape"),
    ],
)
def test_overrides_that_do_not_fit_are_refused(override, message):
    with pytest.raises(ModelError, match=message):
        read_onnx_graph(shape_arithmetic("n"), **override)


def test_values_make_an_input_constant():
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    model = model_of(nodes, [("x", FLOAT, [2, 6]), ("shape", INT64, [2])], [("y", FLOAT, None)])
    with pytest.raises(ModelError, match=r"'y' depends on the values of 'x', 'shape'. Pass values=\{'shape': ...\}"):
        read_onnx_graph(model)
    graph = read_onnx_graph(model, values={"shape": np.array([3, 4])})
    assert graph.inputs == ("x",) and graph.values["y"].shape == (3, 4)
    assert graph.constants["shape"].tolist() == [3, 4]


def test_all_refusals_are_listed_at_once():
    nodes = [
        helper.make_node("NonZero", ["x"], ["a"], name="first"),
        helper.make_node("NonZero", ["z"], ["b"], name="second"),
        helper.make_node("Cast", ["a"], ["c"], to=FLOAT),
        helper.make_node("Cast", ["b"], ["d"], to=FLOAT),
    ]
    model = model_of(nodes, [("x", FLOAT, [4]), ("z", FLOAT, [4])], [("c", FLOAT, None), ("d", FLOAT, None)])
    with pytest.raises(ModelError, match=r"'first': the shape .*\n.*'second': the shape .*\n.*2 nodes after"):
        read_onnx_graph(model)


def test_what_has_no_lowering_is_listed_beside_what_has_no_shape():
    """Whatever stands against a model is in one error: nobody mends one node to be told of the next one."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["a"], name="shapeless"),
        helper.make_node("Frobnicate", ["x"], ["k"], name="declared", domain="acme"),
        helper.make_node("Relu", ["k"], ["r"], name="fine"),
        helper.make_node("Mystery", ["x"], ["m"], name="unknown"),
        helper.make_node("Cast", ["a"], ["b"], name="behind", to=FLOAT),
        helper.make_node("Widget", ["b"], ["c"], name="custom behind", domain="acme"),
        helper.make_node("NonZero", ["b"], ["d"], name="shapeless behind"),
        helper.make_node("Cast", ["x"], ["t"], name="text", to=TensorProto.STRING),
        helper.make_node("BatchNormalization", ["i", "s", "s", "s", "s"], ["n", "", ""], name="training",
                         training_mode=1),
    ]  # fmt: skip
    outputs = [("c", FLOAT, None), ("d", INT64, None), ("r", FLOAT, [4]), ("m", FLOAT, None), ("n", FLOAT, None),
               ("t", TensorProto.STRING, [4])]  # fmt: skip
    model = model_of(nodes, [("x", FLOAT, [4]), ("i", FLOAT, [1, 4, 2]), ("s", FLOAT, [4])], outputs)
    model.opset_import.append(helper.make_opsetid("acme", 1))
    model.graph.value_info.append(helper.make_tensor_value_info("k", FLOAT, [4]))
    with pytest.raises(UnsupportedError, match=r"\(1 node after them was not looked at\)") as caught:
        read_onnx_graph(model)
    assert {line.split("'")[1] for line in caught.value.nodes} == {
        "shapeless", "declared", "unknown", "custom behind", "shapeless behind", "text", "training"
    }  # fmt: skip
    assert "operator Frobnicate of domain 'acme' has no lowering" in str(caught.value)


def test_attributes_are_plain_python_and_unread_outputs_gone():
    table = np.arange(3, dtype=np.float32)
    nodes = [
        helper.make_node("Constant", [], ["k"], value=onnx.numpy_helper.from_array(table)),
        helper.make_node("MaxPool", ["x"], ["p", "indices"], kernel_shape=[2, 2], auto_pad="SAME_UPPER"),
        helper.make_node("LeakyRelu", ["p"], ["l"], alpha=0.5),
        helper.make_node("Mul", ["l", "k"], ["y"]),
    ]
    graph = read_onnx_graph(model_of(nodes, [("x", FLOAT, [1, 1, 3, 3])], [("y", FLOAT, None)]))
    pool, leaky, _ = graph.nodes
    assert pool.attributes == {"kernel_shape": (2, 2), "auto_pad": "SAME_UPPER"}
    assert pool.outputs == ("p",) and pool.version == 17
    assert leaky.attributes == {"alpha": 0.5}
    assert np.array_equal(graph.constants["k"], table)


def test_initialisers_that_are_inputs_too_are_constants():
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    w = np.ones(3, np.float32)
    graph = read_onnx_graph(model_of(nodes, [("x", FLOAT, [3]), ("w", FLOAT, [3])], [("y", FLOAT, [3])], [("w", w)]))
    assert graph.inputs == ("x",) and np.array_equal(graph.constants["w"], w)


def test_unsorted_nodes_are_sorted():
    nodes = [helper.make_node("Neg", ["a"], ["y"]), helper.make_node("Exp", ["x"], ["a"])]
    graph = read_onnx_graph(model_of(nodes, [("x", FLOAT, [3])], [("y", FLOAT, [3])]))
    assert [n.op for n in graph.nodes] == ["Exp", "Neg"]


def test_literal_batches_in_reshapes_follow_the_override():
    """Exports say `Reshape(x, [1, ...])`; weights of the same first dimension must not follow."""
    nodes = [
        helper.make_node("Reshape", ["x", "split"], ["a"]),
        helper.make_node("Transpose", ["a"], ["b"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["b", "flat"], ["c"]),
        helper.make_node("Reshape", ["w", "flat"], ["v"]),
        helper.make_node("Add", ["c", "v"], ["y"]),
    ]
    weights = [("split", np.array([1, 2, 3, 4])), ("flat", np.array([1, -1])), ("w", np.ones((1, 24), np.float32))]
    model = model_of(nodes, [("x", FLOAT, [1, 6, 4])], [("y", FLOAT, [1, 24])], weights)
    graph = read_onnx_graph(model, batch=3)
    assert [graph.values[n].shape for n in ("a", "b", "c", "y")] == [(3, 2, 3, 4), (3, 3, 2, 4), (3, 24), (3, 24)]
    assert graph.constants["v"].shape == (1, 24)
    assert read_onnx_graph(model, batch=1).values["y"].shape == (1, 24)


def test_models_whose_constants_fix_the_batch_are_refused():
    nodes = [helper.make_node("Add", ["x", "w"], ["a"]), helper.make_node("MatMul", ["a", "a"], ["y"])]
    model = model_of(nodes, [("x", FLOAT, [2, 2])], [("y", FLOAT, None)], [("w", np.ones((2, 2), np.float32))])
    with pytest.raises(ModelError, match="Add_a"):
        read_onnx_graph(model, batch=3)


def test_outputs_nobody_reads_may_lack_a_name():
    nodes = [helper.make_node("LSTM", ["x", "w", "r"], ["", "h"], hidden_size=2)]
    weights = [("w", np.ones((1, 8, 3), np.float32)), ("r", np.ones((1, 8, 2), np.float32))]
    graph = fold_graph(read_onnx_graph(model_of(nodes, [("x", FLOAT, [4, 1, 3])], [("h", FLOAT, None)], weights)))
    assert graph.nodes[0].outputs == ("", "h") and graph.values["h"].shape == (1, 1, 2)


@every(
    ("op", "arrays", "attributes", "expected"),
    [
        ("Div", [np.array([-7, 7]), np.array([2, 2])], {}, [-3, 3]),
        ("Mod", [np.array([-7, 7]), np.array([3, 3])], {}, [2, 1]),
        ("Range", [np.array([1]), np.array([7]), np.array([3])], {}, [1, 4]),
        ("Gather", [np.array([5, 6, 7]), np.array([-1, 0])], {}, [7, 5]),
        ("Cast", [np.array([1.9, -1.9])], {"to": INT64}, [1, -1]),
        ("Cast", [np.array([0.0, 0.5])], {"to": TensorProto.BOOL}, [False, True]),
        ("Where", [np.array([True, False]), np.array([1, 2]), np.array([3, 4])], {}, [1, 4]),
        ("Slice", [np.arange(5), np.array([-1]), np.array([-9]), np.array([0]), np.array([-2])], {}, [4, 2, 0]),
        ("NonZero", [np.array([0, 3, 0, 4])], {}, [[1, 3]]),
        ("Expand", [np.array([2]), np.array([3])], {}, [2, 2, 2]),
        ("Transpose", [np.arange(6).reshape(1, 2, 3)], {}, [[[0], [3]], [[1], [4]], [[2], [5]]]),
        ("Tile", [np.array([1, 2]), np.array([2])], {}, [1, 2, 1, 2]),
        ("Compress", [np.array([1, 2, 3]), np.array([True, False, True])], {}, [1, 3]),
        ("Unique", [np.array([3, 1, 3])], {}, [1, 3]),
    ],
)
def test_constants_are_computed(op, arrays, attributes, expected):
    names = [f"c{i}" for i in range(len(arrays))]
    model = model_of([helper.make_node(op, names, ["y"], **attributes)], [], [("y", FLOAT, None)],
                     list(zip(names, arrays, strict=True)))  # fmt: skip
    graph = read_onnx_graph(model)
    assert graph.nodes == ()
    assert graph.constants["y"].tolist() == expected


def test_shapes_of_half_and_small_types_are_kept():
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=TensorProto.BFLOAT16),
        helper.make_node("Add", ["a", "w"], ["y"]),
    ]

    model = model_of(nodes, [("x", TensorProto.FLOAT16, [3])], [("y", TensorProto.BFLOAT16, [3])],
                     [("w", np.arange(3).astype(ml_dtypes.bfloat16))])  # fmt: skip
    graph = fold_graph(read_onnx_graph(model))
    assert [graph.values[n].dtype for n in ("x", "a", "w", "y")] == ["float16", "bfloat16", "bfloat16", "bfloat16"]
    assert graph.constants["w"].tolist() == [0, 1, 2]


def test_tensorflow_graphs_say_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    path = tmp_path / "frozen.pb"
    path.write_bytes(b"")
    with pytest.raises(ModelError, match=r"frozen\.pb: reading TensorFlow graphs needs tf2onnx and tensorflow"):
        read_onnx_graph(path)


def test_declared_types_are_believed_for_operators_of_unknown_domains():
    nodes = [helper.make_node("Magic", ["x"], ["a"], domain="shop"), helper.make_node("Neg", ["a"], ["y"])]
    model = model_of(nodes, [("x", FLOAT, [2, 3])], [("y", FLOAT, None)])
    model.opset_import.append(helper.make_opsetid("shop", 3))
    with pytest.raises(ModelError, match="domain 'shop', and the model does not declare what it returns"):
        read_onnx_graph(model)
    model.graph.value_info.append(helper.make_tensor_value_info("a", FLOAT, [2, 5]))
    graph = read_onnx_graph(model)
    assert graph.values["y"].shape == (2, 5) and (graph.nodes[0].domain, graph.nodes[0].version) == ("shop", 3)
