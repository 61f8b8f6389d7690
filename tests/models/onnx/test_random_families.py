"""Random models of families of operators, and what they have found: whatever is folded or fused, results are right."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from roller.errors import LaunchError, ModelError
from roller.models.compile import partition_graph, read_folded_graph
from roller.models.onnx.evaluate_constants import _REFERENCE_IS_WRONG
from roller_runtime.plan.program_steps import Foreign
from roller_runtime.session.fallback_runtime import run_fallback_step
from tests.models.onnx.random_families import (
    FAMILIES,
    FamilyCase,
    compiled,
    evaluated,
    family_case,
    judged,
    left_out,
    outcome,
)


def made(nodes, feeds=None, constants=None, *, opset=17) -> FamilyCase:
    """Return a model of nodes; their last results are its outputs."""
    feeds = {n: np.asarray(a) for n, a in (feeds or {}).items()}
    inputs = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
              for n, a in feeds.items()]  # fmt: skip
    held = [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()]
    read_ = {i for n in nodes for i in n.input}
    outputs = [onnx.ValueInfoProto(name=o) for n in nodes for o in n.output if o and o not in read_]
    graph = helper.make_graph(nodes, "made", inputs, outputs, held)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    proto = onnx.shape_inference.infer_shapes(proto)
    return FamilyCase(proto, feeds, proto)


def kinds(family, seeds, compute=evaluated):
    found = {seed: outcome(family_case(family, seed), compute) for seed in seeds}
    bad = {seed: why for seed, why in found.items() if why[0] in ("wrong", "crashed")}
    return bad, sum(kind == "equal" for kind, _ in found.values())


@pytest.mark.always  # each family is the only quick test of its operators
@pytest.mark.parametrize("family", FAMILIES)
def test_families_compute_what_onnx_runtime_does(family):
    bad, equal = kinds(family, range(30))
    assert bad == {}
    assert equal >= 18


@pytest.mark.parametrize("family", ["flow", "shapes", "indexing", "quantised"])
def test_families_of_which_another_runtime_computes_a_part(family):
    bad, equal = kinds(family, range(100, 112), left_out)
    assert bad == {}
    assert equal >= 8


def test_constants_without_dimensions_keep_none_in_another_runtime():
    nodes = [helper.make_node("Gather", ["x", "i"], ["y"], axis=0)]
    c = made(nodes, {"x": np.arange(6, dtype=np.float32).reshape(3, 2)}, {"i": np.int64(2)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zlib.crc32", lambda _: 0)
        assert outcome(c, left_out) == ("equal", "")


def test_what_another_runtime_raises_is_said_with_its_nodes():
    nodes = [helper.make_node("Gather", ["x", "i"], ["y"])]
    proto = made(nodes, {"x": np.zeros((3, 2), np.float32), "i": np.int64([7])}).proto
    (outside,) = [n.name for n in proto.graph.node]
    step = Foreign("onnxruntime", proto.SerializeToString(), ("x", "i"), ("y",), (outside or "gather",))
    with pytest.raises(LaunchError, match=r"gather: onnxruntime fails .*Check the model"):
        run_fallback_step(step, [np.zeros((3, 2), np.float32), np.int64([7])])


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_more_of_the_families(family):
    assert kinds(family, range(1000, 1060))[0] == {}


#: Operator: a use of which onnx's reference is wrong: attributes, shapes of its inputs, and its operator set.
_WRONGLY_FOLDED = {
    "LSTM": ({"hidden_size": 2, "activations": ["Relu", "Tanh", "Tanh"]}, [(3, 1, 2), (1, 8, 2), (1, 8, 2)], 14),
    "GRU": ({"hidden_size": 1, "clip": 0.25}, [(5, 2, 1), (1, 3, 1), (1, 3, 1), (1, 6)], 14),
    "RNN": ({"hidden_size": 2, "activations": ["Relu"]}, [(3, 1, 2), (1, 2, 2), (1, 2, 2)], 14),
    "LpNormalization": ({"axis": 1, "p": 1}, [(2, 4, 3, 1)], 17),
    "Softmax": ({"axis": 0}, [(5, 2, 3)], 11),
    "LogSoftmax": ({"axis": 0}, [(5, 2, 3)], 11),
    "Hardmax": ({"axis": 0}, [(2, 4)], 11),
    "BatchNormalization": ({"epsilon": 0.01}, [(2, 4, 2, 2), (4,), (4,), (4,), (4,)], 13),
    "ConvTranspose": ({"group": 2, "kernel_shape": [2]}, [(1, 2, 2), (2, 1, 2), (2,)], 17),
}


@pytest.mark.parametrize("op", _WRONGLY_FOLDED)
def test_constants_are_not_folded_by_a_reference_that_is_wrong(op):
    at, shapes, opset = _WRONGLY_FOLDED[op]
    rng = np.random.default_rng(7)
    arrays = {f"c{k}": np.abs(rng.standard_normal(s)).astype(np.float32) - (op == "LpNormalization")
              for k, s in enumerate(shapes)}  # fmt: skip
    nodes = [helper.make_node(op, list(arrays), ["y"], **at), helper.make_node("Add", ["y", "x"], ["z"])]
    c = made(nodes, {"x": np.zeros((), np.float32)}, arrays, opset=opset)
    assert outcome(c) == ("equal", "")


def test_the_table_of_what_the_reference_is_wrong_about_names_operators():
    assert {op for op in _REFERENCE_IS_WRONG if not onnx.defs.has(op)} == set()


def test_the_nearest_neighbour_is_found_in_the_precision_of_scales():
    x = np.arange(3, dtype=np.float32)
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], nearest_mode="floor")
    c = made([node], {"x": x}, {"s": np.float32([0.6])})
    np.testing.assert_array_equal(judged(c)["y"], [0])
    c = made([node], {"x": np.arange(5, dtype=np.float32)}, {"s": np.float32([0.6])})
    np.testing.assert_array_equal(judged(c)["y"], [0, 2, 3])
    assert outcome(c) == ("equal", "")


@pytest.mark.parametrize(("op", "opset"), [("Resize", 10), ("Upsample", 9)])
def test_resize_of_version_ten_rounds_up_where_it_shrinks(op, opset):
    x = np.arange(1, 9, dtype=np.float32).reshape(1, 1, 2, 4)
    scales = np.float32([1, 1, 0.6, 0.6] if op == "Resize" else [1, 1, 1.5, 1.5])
    assert outcome(made([helper.make_node(op, ["x", "s"], ["y"])], {"x": x}, {"s": scales}, opset=opset))[0] == "equal"


def test_a_result_of_one_element_is_read_at_the_first():
    node = helper.make_node("Resize", ["x", "", "", "n"], ["y"], mode="cubic",
                            coordinate_transformation_mode="pytorch_half_pixel")  # fmt: skip
    x = np.float32([[[[1, 5], [9, 2]]]])
    assert outcome(made([node], {"x": x}, {"n": np.int64([1, 1, 3, 1])}))[0] == "equal"


@pytest.mark.parametrize("padding", ["border", "reflection"])
def test_cubic_neighbours_beyond_the_border_are_brought_within_one_by_one(padding):
    rng = np.random.default_rng(1)
    feeds = {"x": rng.standard_normal((1, 1, 4, 3)).astype(np.float32),
             "g": rng.uniform(-1.4, 1.4, (1, 3, 3, 2)).astype(np.float32)}  # fmt: skip
    node = helper.make_node("GridSample", ["x", "g"], ["y"], mode="bicubic", padding_mode=padding, align_corners=1)
    assert outcome(made([node], feeds)) == ("equal", "")


@pytest.mark.parametrize("bounds", [["", ""], ["lo", ""], ["", "hi"]])
@pytest.mark.parametrize("constant", [False, True])
def test_a_clip_without_a_bound_has_that_of_its_type(bounds, constant):
    x = {"x": np.float32([-np.inf, -1, 0.5, np.inf])}
    nodes = [helper.make_node("Clip", ["x", *bounds], ["c"]), helper.make_node("Add", ["c", "zero"], ["y"])]
    held = {"lo": np.float32(-2), "hi": np.float32(2)} | (x if constant else {})
    c = made(nodes, {"zero": np.float32(0)} | ({} if constant else x), held, opset=13)
    found = evaluated(c)["y"]
    np.testing.assert_array_equal(found, judged(c)["y"])
    assert np.isfinite(found).all()


def test_a_compiled_clip_without_a_bound_has_that_of_its_type(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLER_CACHE_DIR", str(tmp_path))
    c = made([helper.make_node("Clip", ["x"], ["y"])], {"x": np.float32([-np.inf, -1, 0.5, np.inf])}, opset=13)
    assert outcome(c, compiled) == ("equal", "")


@pytest.mark.parametrize("opset", [18, 21])
def test_group_normalisation_has_the_shape_of_its_input(opset):
    span = 4 if opset == 21 else 2
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 4, 3, 3)).astype(np.float32),
             "s": np.ones(span, np.float32), "b": np.zeros(span, np.float32)}  # fmt: skip
    c = made([helper.make_node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=2)], feeds, opset=opset)
    assert outcome(c) == ("equal", "")


def test_shapes_that_onnx_does_not_infer_though_they_are_known():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    chosen = helper.make_node("Compress", ["x", "c"], ["y"], axis=-1)
    assert outcome(made([chosen], {"x": x}, {"c": np.array([True, False, True])}))[0] == "equal"
    assert outcome(made([helper.make_node("GatherND", ["x", "i"], ["y"])], {"x": x, "i": np.int64([1])}))[0] == "equal"
    cut = helper.make_node("Slice", ["x"], ["y"], starts=[9], ends=[-8], axes=[0])
    c = made([cut], {"x": x}, opset=8)
    assert evaluated(c)["y"].shape == judged(c)["y"].shape == (0, 4)


@pytest.mark.parametrize("op", ["Compress", "GatherND", "GroupNormalization", "Slice"])
def test_nodes_without_their_inputs_are_refused(op):
    x = {"x": np.zeros((2, 3), np.float32)}
    proto = made([helper.make_node("Identity", ["x"], ["y"])], x).proto
    proto.graph.node[0].CopyFrom(helper.make_node(op, ["x"], ["y"], axis="a"))
    with pytest.raises(ModelError):
        partition_graph(read_folded_graph(proto))


def test_one_tuple_names_one_slice():
    program = partition_graph(read_folded_graph(made([helper.make_node("GatherND", ["x", "i"], ["y"])],
                                    {"x": np.zeros((3, 4), np.float32), "i": np.int64([1])}).proto))  # fmt: skip
    assert program.values["y"].shape == (4,)
