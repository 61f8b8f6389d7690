"""Random models, and what they and special values have found: whatever is fused, results are ONNX Runtime's."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import roller
from roller.models.compile import partition_graph, read_folded_graph
from roller_runtime.plan.program_steps import Run
from tests.models.onnx.random_graphs import Case, case, compiled, differences, expected


def model(nodes, feeds, outputs, constants=None) -> Case:
    kinds = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in feeds.items()}
    inputs = [helper.make_tensor_value_info(n, kinds[n], a.shape) for n, a in feeds.items()]
    held = [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()]
    graph = helper.make_graph(nodes, "made", inputs, [onnx.ValueInfoProto(name=o) for o in outputs], held)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return Case(onnx.shape_inference.infer_shapes(proto), feeds)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(0, 160, 40))
def test_random_models_compute_what_onnx_runtime_does(first):
    found = {seed: differences(case(seed, 24)) for seed in range(first, first + 40)}
    assert {seed: why for seed, why in found.items() if why} == {}


def test_most_random_models_are_models():
    assert all(expected(case(seed)) for seed in range(30))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_random_models_compile(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLER_CACHE_DIR", str(tmp_path))
    found = {seed: differences(case(seed), compiled) for seed in range(1000, 1008)}
    assert {seed: why for seed, why in found.items() if why} == {}


def test_what_a_transpose_cuts_is_stored_beside_it_along_axes():
    x, z = np.arange(54, dtype=np.float32).reshape(6, 3, 1, 3), np.float32([[1, 2, 3]])
    nodes = [helper.make_node("Add", ["x", "z"], ["a"]), helper.make_node("Transpose", ["a"], ["y"], perm=[2, 1, 3, 0])]
    c = model(nodes, {"x": x, "z": z}, ["a", "y"])
    assert differences(c) == []
    kernels = partition_graph(read_folded_graph(c.proto)).kernels.values()
    assert all(i.is_affine for k in kernels for s in k.expression.stages for i in s.store)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul"])
def test_whole_numbers_wrap_before_they_are_widened(op):
    x = np.array([-(2**31), 2**31 - 1, 5, 7], np.int32)
    nodes = [helper.make_node(op, ["x", "z"], ["a"]), helper.make_node("Cast", ["a"], ["c"], to=onnx.TensorProto.INT64),
             helper.make_node("Add", ["c", "one"], ["y"])]  # fmt: skip
    assert differences(model(nodes, {"x": x, "z": x[::-1].copy()}, ["y"], {"one": np.int64(1)})) == []


def test_whole_numbers_that_may_wrap_are_stored_before_they_are_compared():
    nodes = [helper.make_node("Add", ["x", "one"], ["a"]), helper.make_node("Less", ["x", "a"], ["y"])]
    program = partition_graph(
        read_folded_graph(model(nodes, {"x": np.int32([2**31 - 1, 3])}, ["y"], {"one": np.int32(1)}).proto)
    )
    assert len([s for s in program.steps if isinstance(s, Run)]) == 2


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
def test_a_position_is_one_of_the_tensor_whatever_it_holds(op, last):
    x = np.float32([[1, np.nan, 3], [1, 0, 0], [np.nan] * 3])
    c = model([helper.make_node(op, ["x"], ["y"], axis=1, keepdims=0, select_last_index=last)], {"x": x}, ["y"])
    from tests.models.session.reference import evaluate_program

    found = evaluate_program(partition_graph(read_folded_graph(c.proto)), c.feeds)["y"]
    plain = {"ArgMax": 0, "ArgMin": 1 + last}[op]
    assert list(found) == [1, plain, 2 * last]


def test_a_constant_log_softmax_has_no_infinities():
    nodes = [helper.make_node("LogSoftmax", ["c"], ["s"], axis=1), helper.make_node("Add", ["x", "s"], ["y"])]
    c = model(nodes, {"x": np.zeros((1, 2), np.float32)}, ["y"], {"c": np.float32([[0, 5000]])})
    assert differences(c) == []


def test_a_product_over_nothing_is_nought(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLER_CACHE_DIR", str(tmp_path))
    x, w, b = np.zeros((3, 0), np.float32), np.zeros((0, 4), np.float32), np.float32([1, 2, 3, 4])
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Gemm", ["x", "w", "b"], ["q"]),
             helper.make_node("Gemm", ["x", "w"], ["r"])]  # fmt: skip
    c = model(nodes, {"x": x}, ["p", "q", "r"], {"w": w, "b": b})
    assert differences(c) == []
    found = roller.compile_model(c.proto, top_k=1, deterministic=True, progress=False).run({"x": x})
    np.testing.assert_array_equal(found["q"], np.tile(b, (3, 1)))
