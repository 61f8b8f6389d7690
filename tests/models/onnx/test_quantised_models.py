"""Models between dequantising and quantising run on the integers they store, as ONNX Runtime's do but for ties."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import roller
from roller.models.onnx.read_model import read_onnx_graph
from roller.models.onnx.simplify_graph import fold_graph
from tests.models.onnx.quantised_nets import Quantised, program_of, results, runtime, stored_dtypes

#: Elements that may round the other way: what is rounded was within a few roundings of float32 of a half.
TIES = 0.01


def agree(model, feeds, ties=TIES, kernels=(False, True)):
    """Hold a program to the operators as they are written and to ONNX Runtime's kernels; return its program."""
    found = results(model, feeds)
    for fused in kernels:
        for mine, other in zip(found, runtime(model, feeds, fused=fused), strict=True):
            assert mine.dtype == other.dtype and mine.shape == other.shape
            if mine.dtype.kind == "f":
                np.testing.assert_allclose(mine, other, rtol=2e-5, atol=2e-5)
                continue
            apart = np.abs(mine.astype(int) - other.astype(int))
            assert apart.max() <= 1 and (apart > 0).mean() <= ties, (fused, apart.max(), (apart > 0).mean())
    return program_of(model)


def conv(net, x, filters=6, channels=4, dtype="uint8", scale=0.03, zero=128, *, kernel=3, per_channel=True, bias=True,
         weight_dtype="int8", weight_zero=None, group=1, **attributes):  # fmt: skip
    weight, by = net.weights((filters, channels // group, kernel, kernel), 0, per_channel, weight_dtype, weight_zero)
    more = [net.bias(np.float32(scale) * by, filters)] if bias else []
    return net.add("Conv", net.real(x, scale, zero, dtype), weight, *more, group=group, **attributes)


@pytest.mark.parametrize("dtype, zero", [("uint8", 0), ("uint8", 128), ("uint8", 255), ("int8", 0), ("int8", -128),
                                         ("int8", 127)])  # fmt: skip
@pytest.mark.parametrize("per_channel", [True, False])
def test_a_convolution_is_one_kernel_of_integers(dtype, zero, per_channel):
    net = Quantised()
    x = net.input((2, 4, 9, 8), dtype)
    y = conv(net, x, dtype=dtype, zero=zero, per_channel=per_channel, pads=[1, 0, 2, 1], strides=[2, 1])
    program = agree(net.model(net.stored(net.add("Relu", y), 0.9, 7, "uint8")), net.feeds)
    assert stored_dtypes(program) == ["uint8"]
    (source,) = program.kernels.values()
    assert source.expression.stages[0].acc_dtype == "int32"


@pytest.mark.parametrize("told", [
    {"bias": False}, {"group": 2}, {"group": 4, "filters": 4}, {"group": 4, "filters": 8}, {"kernel": 1},
    {"dilations": [2, 2]}, {"weight_dtype": "uint8", "weight_zero": 128}, {"weight_dtype": "uint8", "weight_zero": 0},
    {"auto_pad": "SAME_UPPER"}, {"kernel": 1, "pads": [1, 1, 0, 2]},
], ids=str)  # fmt: skip
def test_every_form_of_a_convolution(told):
    net = Quantised()
    y = conv(net, net.input((1, 4, 9, 8)), **told)
    assert stored_dtypes(agree(net.model(net.stored(y, 1.1, 100)), net.feeds)) == ["uint8"]


def test_weights_of_nine_bits_are_multiplied_as_numbers():
    net = Quantised()
    y = conv(net, net.input((1, 4, 9, 8)), weight_dtype="uint8", weight_zero=100)
    nodes = fold_graph(read_onnx_graph(net.model(net.stored(y, 1.1, 100)).SerializeToString())).nodes
    assert "Conv" in {n.op for n in nodes}
    agree(net.model(net.stored(y, 1.1, 100)), net.feeds)


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("bias", ["integers", "numbers", "none"])
def test_a_fully_connected_layer(turned, bias):
    net = Quantised()
    weight, by = net.weights((7, 33) if turned else (33, 7), 0 if turned else 1)
    more = {"integers": lambda: [net.bias(np.float32(0.02) * by, 7)], "none": list,
            "numbers": lambda: [net.constant(net.random.standard_normal(7).astype(np.float32))]}[bias]()  # fmt: skip
    y = net.add("Gemm", net.real(net.input((5, 33)), 0.02, 3), weight, *more, transB=turned)
    assert stored_dtypes(agree(net.model(net.stored(y, 0.5, 9, "int8")), net.feeds)) == ["int8"]


def test_a_product_of_three_dimensions_and_its_weights_transposed():
    net = Quantised()
    weight, _ = net.weights((7, 33), 0)
    y = net.add("MatMul", net.real(net.input((2, 5, 33)), 0.02, 3), net.add("Transpose", weight, perm=[1, 0]))
    assert stored_dtypes(agree(net.model(net.stored(y, 0.5, 9)), net.feeds)) == ["uint8"]


def test_a_product_of_two_values_of_run_time():
    net = Quantised()
    a, b = net.real(net.input((2, 5, 16)), 0.02, 100), net.real(net.input((2, 16, 6), "int8"), 0.03, 5, "int8")
    net.feeds["x1"] = net.halved((2, 16, 6))
    agree(net.model(net.stored(net.add("MatMul", a, b), 0.7, 128)), net.feeds)


def test_a_residual_block_stores_bytes_only():
    net = Quantised()
    x = net.input((1, 4, 8, 8))
    inner = net.stored(net.add("Relu", conv(net, x, 4, pads=[1] * 4)), 0.4, 0)
    left = net.stored(conv(net, inner, 4, zero=0, scale=0.4, pads=[1] * 4), 3.1, 120)
    right = net.stored(conv(net, x, 4, kernel=1), 0.7, 90)
    total = net.add("Relu", net.add("Add", net.real(left, 3.1, 120), net.real(right, 0.7, 90)))
    program = agree(net.model(net.stored(total, 2.3, 0)), net.feeds, 0.05)
    assert stored_dtypes(program) == ["uint8"] * 3


def test_a_value_read_as_integers_and_as_numbers():
    net = Quantised()
    x = net.stored(conv(net, net.input((1, 4, 6, 6)), 4, kernel=1), 0.6, 128)
    shown = net.real(x, 0.6, 128)
    weight, _ = net.weights((3, 4, 1, 1), 0)
    y = net.stored(net.add("Conv", shown, weight), 0.8, 128)
    other = net.stored(net.add("Sigmoid", shown), 1 / 256, 0)
    program = agree(net.model(y, other, shown), net.feeds, 0.03)
    assert sorted(stored_dtypes(program)) == ["float32", "uint8", "uint8", "uint8"]


@pytest.mark.parametrize("op", ["Add", "Mul", "Sub", "Max"])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_arithmetic_of_two_values(op, dtype):
    net = Quantised()
    a, b = (net.real(net.input((3, 5, 7), dtype), s, z, dtype) for s, z in ((0.11, 3), (0.07, 12)))
    assert stored_dtypes(agree(net.model(net.stored(net.add(op, a, b), 0.31, 5, dtype)), net.feeds)) == [dtype]


@pytest.mark.parametrize("op, told", [
    ("MaxPool", {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [2, 2]}),
    ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 0, 1, 1]}), ("GlobalAveragePool", {}),
    ("HardSwish", {}), ("Sigmoid", {}), ("Softmax", {"axis": 1}), ("LeakyRelu", {"alpha": 0.1}),
    ("Flatten", {}), ("Transpose", {"perm": [0, 2, 3, 1]}), ("DepthToSpace", {"blocksize": 2}),
])  # fmt: skip
@pytest.mark.parametrize("dtype, zero", [("uint8", 130), ("int8", -3)])
def test_one_operator_between_conversions(op, told, dtype, zero):
    net = Quantised()
    y = net.add(op, net.real(net.input((2, 4, 6, 6), dtype), 0.05, zero, dtype), **told)
    moves = op in ("MaxPool", "Flatten", "Transpose", "DepthToSpace")
    model = net.model(net.stored(y, 0.05 if moves else 0.0173, zero, dtype))
    # ONNX Runtime's own softmax of bytes, a table of powers, is a step off at one element in five.
    program = agree(model, net.feeds, kernels=(False,) if op == "Softmax" else (False, True))
    assert op == "AveragePool" or set(stored_dtypes(program)) <= {dtype}
    if moves:
        assert {
            n.op
            for n in fold_graph(read_onnx_graph(net.model(net.stored(y, 0.05, zero, dtype)).SerializeToString())).nodes
        } == {op}


@pytest.mark.parametrize("scales, nodes", [((0.1, 0.1), {"Concat"}),
                                           ((0.1, 0.2), {"Concat", "DequantizeLinear", "QuantizeLinear"})])  # fmt: skip
def test_values_beside_each_other(scales, nodes):
    net = Quantised()
    parts = [net.real(net.input((2, n, 5)), s, 10) for n, s in zip((3, 4), scales, strict=True)]
    model = net.model(net.stored(net.add("Concat", *parts, axis=1), 0.1, 10))
    agree(model, net.feeds)
    graph = fold_graph(read_onnx_graph(model.SerializeToString()))
    assert {n.op for n in graph.nodes} == nodes
    assert sum(n.op == "QuantizeLinear" for n in graph.nodes) == len(nodes) // 3, "what has the scale is not touched"


def test_a_join_that_is_read_as_numbers_too():
    net = Quantised()
    parts = [net.real(net.input((2, 3, 5)), s, 10) for s in (0.1, 0.2)]
    joined = net.add("Concat", *parts, axis=1)
    agree(net.model(net.stored(joined, 0.1, 10), net.add("Tanh", joined)), net.feeds)


@pytest.mark.parametrize("opset", [10, 13, 17, 21])
def test_operator_sets(opset):
    net = Quantised(opset)
    y = conv(net, net.input((1, 4, 6, 6)), per_channel=opset >= 13)
    assert stored_dtypes(agree(net.model(net.stored(y, 1.1, 100)), net.feeds)) == ["uint8"]


def test_zero_points_may_be_missing():
    net = Quantised()
    weight = net.real(net.constant(net.integers((5, 8), "int8")), 0.02, 0, "int8")
    y = net.add("Gemm", net.real(net.input((3, 5)), 0.1, None), weight)
    assert stored_dtypes(agree(net.model(net.stored(y, 0.5, None)), net.feeds)) == ["uint8"]


def test_sixteen_bits_and_scales_that_are_computed_stay_numbers():
    net = Quantised(21)
    x, scale = net.input((3, 5), "int16"), net.input((), "float32")
    net.feeds[scale] = np.float32(0.01)
    wide = net.real(x, 0.001, 0, "int16")
    other = net.add("DequantizeLinear", net.input((3, 5)), scale, net.constant(np.uint8(3)))
    net.feeds = {k: np.asarray(v) for k, v in net.feeds.items()}
    agree(net.model(net.stored(net.add("Add", wide, other), 0.1, 100)), net.feeds)


@pytest.mark.parametrize("scale", [1e-30, -0.5])
def test_odd_scales_stay_as_they_are(scale):
    net = Quantised()
    x = net.input((3, 5), "float32")
    model = net.model(net.real(net.stored(x, scale, 3), scale, 3))
    assert [n.op for n in fold_graph(read_onnx_graph(model.SerializeToString())).nodes] == [
        "QuantizeLinear",
        "DequantizeLinear",
    ]


@pytest.mark.parametrize("op", ["QLinearConv", "QLinearMatMul"])
def test_operators_of_quantised_tensors_are_the_same_kernels(op):
    net = Quantised()
    conv_shapes = op == "QLinearConv"
    x = net.input((1, 4, 6, 6) if conv_shapes else (3, 8))
    weight = net.constant(net.halved((5, 4, 3, 3) if conv_shapes else (8, 5)))
    by = np.full(5, 0.01, np.float32) * np.arange(1, 6, dtype=np.float32)
    parts = [x, *net.told(0.03, 7, "uint8"), weight, *net.told(by if conv_shapes else 0.02, np.zeros(5) if conv_shapes
             else 0, "int8"), *net.told(0.9, 100, "uint8")]  # fmt: skip
    if conv_shapes:
        parts.append(net.constant(np.arange(5, dtype=np.int32) * 1000))
    assert stored_dtypes(agree(net.model(net.add(op, *parts)), net.feeds)) == ["uint8"]


def test_weights_alone_may_be_quantised():
    net = Quantised()
    weight, _ = net.weights((8, 5), 1)
    model = net.model(net.add("MatMul", net.input((3, 8), "float32"), weight))
    # ONNX Runtime's own kernel quantises the other operand, too.
    np.testing.assert_allclose(results(model, net.feeds)[0], runtime(model, net.feeds, fused=False)[0], rtol=1e-5)
    assert [n.op for n in fold_graph(read_onnx_graph(model.SerializeToString())).nodes] == ["MatMul"], (
        "dequantised once, not per call"
    )


def test_a_bias_that_overflows_is_added_as_a_number():
    net = Quantised()
    weight, by = net.weights((8, 5), 1)
    held = net.constant(np.full(5, 2**31 - 5, np.int32))
    bias = net.real(held, np.float32(0.1) * by, np.zeros(5, np.int32), "int32", axis=0)
    y = net.add("Gemm", net.real(net.input((3, 8)), 0.1, 0), weight, bias)
    graph = fold_graph(read_onnx_graph(net.model(net.stored(y, 1e6, 0)).SerializeToString()))
    assert {n.op for n in graph.nodes} >= {"Gemm"}
    agree(net.model(net.stored(y, 1e6, 0)), net.feeds)


def test_compiled_kernels_compute_what_the_model_says():
    net = Quantised()
    x = net.input((1, 8, 10, 10))
    y = net.stored(net.add("Relu", conv(net, x, 16, 8, pads=[1] * 4)), 0.4, 3)
    y = net.stored(conv(net, y, 16, 16, scale=0.4, zero=3, group=16, strides=[2, 2]), 0.9, 128)
    y = net.stored(net.add("Add", net.real(y, 0.9, 128), net.real(y, 0.9, 128)), 1.8, 128)
    y = net.stored(net.add("GlobalAveragePool", net.real(y, 1.8, 128)), 0.5, 128)
    model = net.model(net.real(y, 0.5, 128))
    session = roller.compile_model(model.SerializeToString(), top_k=1, deterministic=True, progress=False)
    (mine,), (other,) = session.run(None, net.feeds), runtime(model, net.feeds, fused=True)
    assert np.abs(mine - other).max() <= 0.5001 and (mine != other).mean() < 0.1


def test_rows_are_normalised_between_conversions():
    """Compiled, because a kernel of rows once computed in the dtype that it stores."""
    net = Quantised()
    w, b = (net.constant(net.random.standard_normal(48).astype(np.float32)) for _ in range(2))
    y = net.add("LayerNormalization", net.real(net.input((5, 48)), 1.1, 131), w, b)
    model = net.model(net.stored(y, 0.03, 120))
    session = roller.compile_model(model.SerializeToString(), top_k=1, deterministic=True, progress=False)
    apart = np.abs(session.run(None, net.feeds)[0].astype(int) - runtime(model, net.feeds, fused=False)[0])
    assert apart.max() <= 1 and (apart > 0).mean() < TIES


def dynamic(net, x, weight, by, op, **attributes):
    """Return a product of a value that is quantised as it comes, as ONNX Runtime's tool writes it."""
    stored, scale, zero = (f"{net.name('dyn')}.{k}" for k in range(3))
    net.nodes.append(helper.make_node("DynamicQuantizeLinear", [x], [stored, scale, zero]))
    zeros = net.constant(np.zeros((), np.int8))
    total = net.add(op, stored, net.constant(weight), zero, zeros, **attributes)
    real = net.add("Cast", total, to=TensorProto.FLOAT)
    return net.add("Mul", real, net.add("Mul", scale, net.constant(by)))


@pytest.mark.parametrize("told", [{}, {"pads": [1, 0, 2, 1], "strides": [2, 1]}, {"pads": [1] * 4, "group": 4},
                                  {"auto_pad": "SAME_UPPER"}], ids=str)  # fmt: skip
def test_a_convolution_that_quantises_its_image(told):
    net = Quantised()
    x = net.add("Relu", net.input((2, 4, 9, 8), "float32"))
    weight = net.integers((8, 4 // told.get("group", 1), 3, 3), "int8")
    y = dynamic(net, x, weight, np.float32(0.02), "ConvInteger", **told)
    model = net.model(net.add("Add", y, net.constant(np.arange(8, dtype=np.float32).reshape(8, 1, 1))))
    agree(model, net.feeds)
    ops = {(n.domain, n.op) for n in fold_graph(read_onnx_graph(model.SerializeToString())).nodes}
    assert ("" if "auto_pad" in told else "roller", "ConvInteger") in ops
    assert ("", "Pad") in ops or "pads" not in told


@pytest.mark.parametrize("per_column", [True, False])
def test_products_that_quantise_their_input_once(per_column):
    net = Quantised()
    x = net.input((3, 5, 33), "float32")
    by = [net.random.uniform(0.01, 0.02, 7 if per_column else ()).astype(np.float32) for _ in range(2)]
    left, right = (dynamic(net, x, net.halved((33, 7)), s, "MatMulInteger") for s in by)
    program = agree(net.model(net.add("Add", left, right)), net.feeds)
    kernels = [program.kernels[s.kernel].expression for s in program.steps]
    assert sum("int32" in {s.acc_dtype for s in k.stages if s.combiner} for k in kernels) == 2
    assert stored_dtypes(program).count("uint8") == 1, "what both read is quantised once"


def test_a_sum_of_integers_that_others_read_stays_one():
    net = Quantised()
    x, w = net.input((3, 33)), net.constant(net.halved((33, 7)))
    total = net.add("MatMulInteger", x, w, net.constant(np.uint8(5)))
    real = net.add("Cast", total, to=TensorProto.FLOAT)
    found = results(net.model(total, real), net.feeds)
    for mine, other in zip(found, runtime(net.model(total, real), net.feeds, fused=False), strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("block", [0, 4])
def test_weights_of_four_bits_stay_packed_in_blocks_and_are_dequantised_once_elsewhere(block):
    held = helper.make_tensor("w", TensorProto.INT4, [8, 2], list(range(-8, 8)))
    net = Quantised(21)
    scale = net.constant(np.full((2, 2) if block else 2, 0.1, np.float32))
    weight = net.add("DequantizeLinear", "w", scale, **({"axis": 0, "block_size": 4} if block else {"axis": 1}))
    model = net.model(net.add("MatMul", net.input((3, 8), "float32"), weight))
    model.graph.initializer.append(held)
    operator = "MatMulLowBits" if block else "MatMul"
    assert [n.op for n in fold_graph(read_onnx_graph(model.SerializeToString())).nodes] == [operator]
    np.testing.assert_allclose(results(model, net.feeds)[0], runtime(model, net.feeds, fused=False)[0], rtol=1e-5)


def test_values_of_four_bits_are_refused_by_name():
    net = Quantised(21)
    zero = helper.make_tensor("z", TensorProto.INT4, [], [0])
    scale = net.constant(np.float32(0.1))
    stored = net.add("QuantizeLinear", net.input((3, 8), "float32"), scale, "z")
    model = net.model(net.add("DequantizeLinear", stored, scale, "z"))
    model.graph.initializer.append(zero)
    with pytest.raises(roller.errors.ModelError, match="int4, which is not compiled"):
        fold_graph(read_onnx_graph(model.SerializeToString()))
