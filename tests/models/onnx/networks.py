"""Small networks as ONNX models, quick to compile."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def tower(channels: int = 8, blocks: int = 1, size: int = 8, seed: int = 0) -> onnx.ModelProto:
    """Return blocks of convolution, bias, rectifier and a residual sum, then a pooling and a classifier."""
    rng = np.random.default_rng(seed)
    nodes, weights, here = [], [], "x"

    def weight(name, *shape):
        array = rng.standard_normal(shape, dtype=np.float32) / np.float32(np.sqrt(np.prod(shape[1:]) or 1))
        weights.append(numpy_helper.from_array(array, name))
        return name

    for n in range(blocks):
        conv = [here, weight(f"w{n}", channels, channels, 3, 3), weight(f"b{n}", channels)]
        nodes.append(helper.make_node("Conv", conv, [f"c{n}"], f"conv{n}", pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{n}"], [f"r{n}"], f"relu{n}"))
        nodes.append(helper.make_node("Add", [f"r{n}", here], [f"s{n}"], f"sum{n}"))
        here = f"s{n}"
    nodes.append(helper.make_node("GlobalAveragePool", [here], ["p"], "pool"))
    nodes.append(helper.make_node("Flatten", ["p"], ["f"], "flat"))
    gemm = ["f", weight("wf", 5, channels), weight("bf", 5)]
    nodes.append(helper.make_node("Gemm", gemm, ["y"], "classes", transB=1))
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", channels, size, size])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 5])
    graph = helper.make_graph(nodes, "tower", [image], [result], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def unsupported() -> onnx.ModelProto:
    """Return a network with two nodes of an operator set nobody knows."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "first"),
        helper.make_node("Mystery", ["a"], ["b"], "second", domain="nowhere"),
        helper.make_node("Riddle", ["b"], ["y"], "third", domain="nowhere"),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "strange", ends[:1], ends[1:], value_info=[
        helper.make_tensor_value_info("b", TensorProto.FLOAT, [4])])  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("nowhere", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def branches(width: int = 32, depth: int = 3, seed: int = 0) -> onnx.ModelProto:
    """Return two chains of small matrix products on one input that meet in a sum: what can run side by side."""
    rng = np.random.default_rng(seed)
    nodes, weights, ends = [], [], []
    for side in range(2):
        here = "x"
        for n in range(depth):
            array = rng.standard_normal((width, width), dtype=np.float32) / np.float32(np.sqrt(width))
            weights.append(numpy_helper.from_array(array, f"w{side}{n}"))
            nodes.append(helper.make_node("MatMul", [here, f"w{side}{n}"], [f"m{side}{n}"], f"product{side}{n}"))
            nodes.append(helper.make_node("Tanh", [f"m{side}{n}"], [f"t{side}{n}"], f"tanh{side}{n}"))
            here = f"t{side}{n}"
        ends.append(here)
    nodes.append(helper.make_node("Add", ends, ["y"], "sum"))
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", width])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", width])
    graph = helper.make_graph(nodes, "branches", [given], [result], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
