"""Fusion changes how many kernels there are and never what they compute."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from roller.models.onnx.lower_graph import lower_graph
from roller.models.onnx.partition_graph import make_program, partition_graph
from roller.models.onnx.read_model import read_onnx_graph
from roller.models.onnx.simplify_graph import fold_graph
from roller_runtime.plan.program_steps import Run
from tests.models.session.reference import evaluate_program


class Net:
    """A small model being written."""

    def __init__(self) -> None:
        self.nodes, self.inputs, self.constants, self.shapes = [], [], [], {}
        self.random = np.random.default_rng(5)

    def input(self, *shape):
        name = f"x{len(self.inputs)}"
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        self.shapes[name] = shape
        return name

    def constant(self, array):
        name = f"w{len(self.constants)}"
        array = np.asarray(array)
        kind = TensorProto.INT64 if array.dtype == np.int64 else TensorProto.FLOAT
        array = array if kind == TensorProto.INT64 else array.astype(np.float32)
        self.constants.append(helper.make_tensor(name, kind, array.shape, array.ravel().tolist()))
        return name

    def weight(self, *shape):
        return self.constant(self.random.standard_normal(shape) / 2)

    def add(self, op, *inputs, outputs=1, **attributes):
        names = [f"t{len(self.nodes)}.{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, f"{op}{len(self.nodes)}", **attributes))
        return names[0] if outputs == 1 else names

    def graph(self, *outputs):
        described = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
        model = helper.make_graph(self.nodes, "net", self.inputs, described, self.constants)
        made = helper.make_model(model, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        return fold_graph(read_onnx_graph(made.SerializeToString()))


def held(graph, rtol=1e-5):
    """Return the fused program after holding it to the program of one step per node."""
    random = np.random.default_rng(1)
    feeds = {n: random.standard_normal(graph.values[n].shape).astype(graph.values[n].dtype) for n in graph.inputs}
    program = partition_graph(graph)
    expected = evaluate_program(make_program(lower_graph(graph)), feeds)
    found = evaluate_program(program, feeds)
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=rtol, atol=1e-6, err_msg=name)
    return program


def runs(program) -> list[Run]:
    return [s for s in program.steps if isinstance(s, Run)]


def kinds(program) -> Counter:
    return Counter(type(s).__name__ for s in program.steps)


def test_a_residual_block_is_a_kernel_per_convolution():
    net = Net()
    x = net.input(1, 8, 7, 7)
    y = net.add("Relu", net.add("Conv", x, net.weight(8, 8, 3, 3), net.weight(8), pads=[1, 1, 1, 1]))
    y = net.add("Conv", y, net.weight(8, 8, 1, 1), net.weight(8))
    y = net.add("Clip", net.add("Add", y, x), net.constant(0.0), net.constant(6.0))
    program = held(net.graph(y))
    assert kinds(program) == {"Run": 2}
    assert [s.nodes for s in runs(program)] == [("Conv0", "Relu1"), ("Conv2", "Add3", "Clip4")]


def test_of_two_convolutions_in_a_sum_the_later_one_takes_it():
    net = Net()
    x = net.input(2, 4, 6, 6)
    one = net.add("Conv", x, net.weight(8, 4, 1, 1), net.weight(8), strides=[2, 2])
    two = net.add("Conv", x, net.weight(8, 4, 3, 3), net.weight(8), strides=[2, 2], pads=[1, 1, 1, 1])
    program = held(net.graph(net.add("Relu", net.add("Add", two, one))))
    assert [s.nodes for s in runs(program)] == [("Conv0",), ("Conv1", "Add2", "Relu3")]


def attention(net, x, rows, width, heads, batch):
    def split(perm):
        flat = net.add("Add", net.add("MatMul", x, net.weight(width, width)), net.weight(width))
        shape = net.constant(np.array([0, 0, heads, width // heads]))
        return net.add("Transpose", net.add("Reshape", flat, shape), perm=perm)

    q, k, v = split([0, 2, 1, 3]), split([0, 2, 3, 1]), split([0, 2, 1, 3])
    scores = net.add("Div", net.add("MatMul", q, k), net.constant(math.sqrt(width // heads)))
    shares = net.add("Softmax", net.add("Add", scores, net.weight(batch, 1, 1, rows)), axis=-1)
    mixed = net.add("Transpose", net.add("MatMul", shares, v), perm=[0, 2, 1, 3])
    flat = net.add("Reshape", mixed, net.constant(np.array([0, 0, width])))
    return net.add("Add", net.add("Add", net.add("MatMul", flat, net.weight(width, width)), net.weight(width)), x)


@pytest.mark.parametrize("batch", [1, 2])
def test_attention_has_no_transpose_left(batch):
    net = Net()
    x = net.input(batch, 6, 12)
    program = held(net.graph(attention(net, x, 6, 12, 3, batch)))
    assert kinds(program) == {"Run": 7}, "three projections, scores, softmax, mixture, output"
    assert [s.label.count("Transpose") for s in runs(program)] == [0, 0, 0, 2, 0, 2, 0]
    same = [s.kernel for s in runs(program)[:3]]
    assert len(set(same)) == 1, "the projections share a kernel"
    for source in program.kernels.values():
        for s in source.expression.stages:
            assert all(i.is_affine for ld in s.loads for i in ld.index)


def norm(net, x, width, eps=1e-5):
    centred = net.add("Sub", x, net.add("ReduceMean", x, axes=[-1]))
    spread = net.add("ReduceMean", net.add("Pow", centred, net.constant(2.0)), axes=[-1])
    deviation = net.add("Sqrt", net.add("Add", spread, net.constant(eps)))
    scaled = net.add("Mul", net.add("Div", centred, deviation), net.weight(width))
    return net.add("Add", scaled, net.weight(width))


def test_a_normalisation_spelled_out_is_one_kernel():
    net = Net()
    program = held(net.graph(norm(net, net.input(2, 5, 16), 16)))
    assert kinds(program) == {"Run": 1}
    (source,) = program.kernels.values()
    assert [s.combiner for s in source.expression.stages] == ["sum", "sum", None] or len(source.expression.stages) == 4


def test_gelu_ends_its_product():
    net = Net()
    x = net.add("Add", net.add("MatMul", net.input(2, 4, 6), net.weight(6, 10)), net.weight(10))
    erf = net.add("Erf", net.add("Div", x, net.constant(math.sqrt(2))))
    y = net.add("Mul", net.add("Mul", x, net.add("Add", erf, net.constant(1.0))), net.constant(0.5))
    program = held(net.graph(y))
    assert kinds(program) == {"Run": 1}
    (source,) = program.kernels.values()
    assert source.expression.epilogue is not None


def test_a_gate_is_not_computed_again_for_every_point():
    net = Net()
    x = net.input(2, 8, 6, 6)
    pooled = net.add("GlobalAveragePool", x)
    gate = net.add("Sigmoid", net.add("Conv", pooled, net.weight(8, 8, 1, 1), net.weight(8)))
    program = held(net.graph(net.add("Mul", x, gate)))
    assert [len(s.nodes) for s in runs(program)][-1] == 1
    assert "Sigmoid2" in runs(program)[1].nodes


def test_shuffled_channels_are_written_where_they_are_read():
    net = Net()
    x = net.input(1, 8, 5, 5)
    y = net.add("Relu", net.add("Conv", x, net.weight(8, 8, 1, 1), net.weight(8)))
    y = net.add("Reshape", y, net.constant(np.array([1, 2, 4, 5, 5])))
    y = net.add("Reshape", net.add("Transpose", y, perm=[0, 2, 1, 3, 4]), net.constant(np.array([1, 8, 5, 5])))
    y = net.add("Conv", y, net.weight(8, 1, 3, 3), net.weight(8), group=8)
    assert kinds(held(net.graph(y))) == {"Run": 2}


def test_what_two_read_is_stored_once():
    net = Net()
    y = net.add("Tanh", net.add("MatMul", net.input(4, 6), net.weight(6, 8)))
    program = held(net.graph(net.add("MatMul", y, net.weight(8, 3)), net.add("MatMul", y, net.weight(8, 5)), y))
    assert kinds(program) == {"Run": 3}
    assert runs(program)[0].nodes == ("MatMul0", "Tanh1")


UNARY = ["Relu", "Tanh", "Neg", "Abs", "Sigmoid"]
STEPS = st.lists(
    st.sampled_from(["unary", "transpose", "reshape", "slice", "broadcast", "add", "softmax", "mean", "matmul", "pad",
                     "concat", "split", "old"]), min_size=3, max_size=9)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), STEPS, st.randoms(use_true_random=False))
def test_random_models_compute_what_their_nodes_do(shape, steps, random):
    net = Net()
    names = [(net.input(*shape), tuple(shape))]
    for step in steps:
        names.append(extended(net, step, *random.choice(names[-2:]), names, random))
        if math.prod(names[-1][1]) > 600:
            break
    held(net.graph(names[-1][0], *([names[-2][0]] if random.random() < 0.3 and len(names) > 2 else [])))


def extended(net, step, x, shape, names, random):
    """Return the name and shape of one more value."""
    rank = len(shape)
    d = random.randrange(rank)
    if step == "unary":
        return net.add(random.choice(UNARY), x), shape
    if step == "transpose":
        perm = random.sample(range(rank), rank)
        return net.add("Transpose", x, perm=perm), tuple(shape[p] for p in perm)
    if step == "reshape":
        n = random.choice([k for k in range(1, math.prod(shape) + 1) if math.prod(shape) % k == 0])
        new = random.choice([(n, math.prod(shape) // n), (math.prod(shape),), (1, *shape), (*shape, 1)])
        return net.add("Reshape", x, net.constant(np.array(new))), new
    if step == "slice":
        first = random.randrange(shape[d])
        y = net.add("Slice", x, *(net.constant(np.array([v])) for v in (first, shape[d], d)))
        return y, (*shape[:d], shape[d] - first, *shape[d + 1 :])
    if step == "broadcast" and rank < 4:
        return net.add("Add", x, net.weight(2, *(1 if random.random() < 0.5 else n for n in shape))), (2, *shape)
    if step == "add":
        return net.add("Add", x, net.add("Transpose", net.add("Transpose", x))), shape
    if step in ("softmax", "mean"):
        if step == "softmax":
            return net.add("Softmax", x, axis=d), shape
        return net.add("ReduceMean", x, axes=[d], keepdims=1), (*shape[:d], 1, *shape[d + 1 :])
    if step == "matmul" and rank > 1:
        return net.add("MatMul", x, net.weight(shape[-1], 3)), (*shape[:-1], 3)
    if step == "pad":
        pads = [int(k == d) for k in range(rank)] + [0] * rank
        y = net.add("Pad", x, net.constant(np.array(pads)), net.constant(0.5))
        return y, (*shape[:d], shape[d] + 1, *shape[d + 1 :])
    if step == "concat":
        return net.add("Concat", x, x, axis=d), (*shape[:d], 2 * shape[d], *shape[d + 1 :])
    if step == "split" and shape[d] > 1:
        sizes = [1, shape[d] - 1]
        one, two = net.add("Split", x, net.constant(np.array(sizes)), axis=d, outputs=2)
        return net.add("Mul", one, two), (*shape[:d], shape[d] - 1, *shape[d + 1 :])
    old, was = random.choice(names)
    return (net.add("Mul", x, old), shape) if was == shape else (net.add("Relu", x), shape)


def test_a_negative_zero_is_not_taken_for_zero():
    net = Net()
    x, zero, negative = net.input(2), net.constant(0.0), net.constant(-0.0)
    parts = [net.add("Reciprocal", net.add("Mul", net.add("Abs", x), z)) for z in (zero, negative)]
    program = partition_graph(net.graph(*parts))
    found = evaluate_program(program, {"x0": np.ones(2, np.float32)})
    assert [float(a[0]) for a in found.values()] == [np.inf, -np.inf]
    assert len(program.kernels) == 2


def test_a_reduction_that_several_rows_share_is_a_kernel_of_its_own():
    # Masked attention as ONNX spells it out: rows of the mask are fewer than those of the softmax.
    net = Net()
    mask, x = net.input(4, 6), net.input(3, 4, 6)
    largest = net.add("ReduceMax", mask, axes=[-1], keepdims=1)
    masked = net.add("Less", largest, net.constant(np.float32(0.5)))
    result = net.add("Where", masked, net.constant(np.float32(0)), net.add("Softmax", x, axis=-1))
    program = held(net.graph(result))
    for kernel in program.kernels.values():
        reductions = [s for s in kernel.expression.stages if s.combiner]
        assert len({math.prod(a.extent for a in s.spatial_axes) for s in reductions}) <= 1
