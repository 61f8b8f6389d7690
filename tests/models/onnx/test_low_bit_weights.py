"""Products with 4-bit weights: what stays packed, and the numbers against float64."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import roller
from benchmarks.onnx_backend import RollerBackend
from roller.models.compile import read_folded_graph
from roller.models.onnx.low_bit_weights import MOST_ROWS, pack_low_bit_rows

K, N, BLOCK = 64, 24, 16


def blocks_model(kind, *, transposed=False, zeros=False, rows=2, block=BLOCK, k=K, axis=None):
    """Return a product with weights that DequantizeLinear expands, its input, and the meant result in float64."""
    rng = np.random.default_rng(0)
    low = -8 if kind == "INT4" else 0
    numbers = rng.integers(low, low + 16, (N, k) if transposed else (k, N))
    along = int(transposed) if axis is None else axis
    count = [-(-e // block) if d == along else e for d, e in enumerate(numbers.shape)]
    scales, shift = (rng.random(count) / 10).astype(np.float32), rng.integers(low, low + 16, count)
    number = getattr(TensorProto, kind)
    held = [
        helper.make_tensor("q", number, numbers.shape, numbers.ravel().tolist()),
        numpy_helper.from_array(scales, "s"),
    ]
    if zeros:
        held.append(helper.make_tensor("z", number, shift.shape, shift.ravel().tolist()))
    inputs = ["q", "s", "z"] if zeros else ["q", "s"]
    nodes = [helper.make_node("DequantizeLinear", inputs, ["w"], axis=along, block_size=block)]
    if transposed:
        nodes.append(helper.make_node("Transpose", ["w"], ["wt"], perm=[1, 0]))
    nodes.append(helper.make_node("MatMul", ["x", nodes[-1].output[0]], ["y"]))
    ends = [helper.make_tensor_value_info(n, 1, shape) for n, shape in (("x", [rows, k]), ("y", [rows, N]))]
    graph = helper.make_graph(nodes, "blocks", ends[:1], ends[1:], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)

    def whole(array):
        return np.repeat(array.astype(np.float64), block, along)[: numbers.shape[0], : numbers.shape[1]]

    weights = (numbers - (whole(shift) if zeros else 0)) * whole(scales)
    x = rng.standard_normal((rows, k)).astype(np.float32)
    return model, x, x.astype(np.float64) @ (weights.T if transposed else weights)


def operators(model):
    return [n.op for n in read_folded_graph(model).nodes]


@pytest.mark.parametrize("kind", ["INT4", "UINT4"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
def test_dequantised_blocks_stay_packed(kind, transposed, zeros):
    model, x, meant = blocks_model(kind, transposed=transposed, zeros=zeros)
    assert operators(model) == ["MatMulLowBits"]
    (found,) = RollerBackend.prepare(model, evaluated=True).run([x])
    np.testing.assert_allclose(found, meant, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "details",
    [
        {"rows": MOST_ROWS + 1},
        {"rows": MOST_ROWS + 1, "transposed": True, "zeros": True},
        {"axis": 1, "block": 8},  # blocks along columns
        {"k": 72},  # a last block that is not full
        {"block": 1, "k": 6},
    ],
)
def test_other_blocks_are_expanded(details):
    model, x, meant = blocks_model("INT4", **details)
    assert "MatMulLowBits" not in operators(model)
    (found,) = RollerBackend.prepare(model, evaluated=True).run([x])
    np.testing.assert_allclose(found, meant, rtol=1e-5, atol=1e-5)


def test_another_reader_gets_the_expanded_weights():
    model, x, meant = blocks_model("INT4")
    model.graph.node.append(helper.make_node("Relu", ["w"], ["positive"]))
    model.graph.output.append(helper.make_tensor_value_info("positive", 1, [K, N]))
    assert "MatMulLowBits" not in operators(model)
    found, positive = RollerBackend.prepare(model, evaluated=True).run([x])
    np.testing.assert_allclose(found, meant, rtol=1e-5, atol=1e-5)
    assert positive.min() == 0


def packed_model(dtype=np.float32, *, zeros=False, rows=1, k=K, n=N, block=BLOCK, bias=False):
    """Return a MatMulNBits, its input, and the meant result in float64."""
    rng = np.random.default_rng(1)
    blocks = -(-k // block)
    packed = rng.integers(0, 256, (n, blocks, block // 2), np.uint8)
    scales = (rng.random((n, blocks)) / 10).astype(dtype)
    shift = rng.integers(0, 256, (n, -(-blocks // 2)), np.uint8)
    held = {"p": packed, "s": scales.reshape(-1)} | ({"z": shift.reshape(-1)} if zeros else {})
    if bias:
        held["c"] = rng.standard_normal(n).astype(dtype)
    inputs = ["x", "p", "s", "z" if zeros else "", "", "c" if bias else ""]
    node = helper.make_node("MatMulNBits", inputs, ["y"], domain="com.microsoft", K=k, N=n, bits=4, block_size=block)
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    ends = [helper.make_tensor_value_info(name, number, shape) for name, shape in (("x", [rows, k]), ("y", [rows, n]))]
    arrays = [numpy_helper.from_array(a, name) for name, a in held.items()]
    graph = helper.make_graph([node], "packed", ends[:1], ends[1:], arrays)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    numbers = np.stack([packed & 15, packed >> 4], -1).reshape(n, blocks, block).astype(np.float64)
    off = np.stack([shift & 15, shift >> 4], -1).reshape(n, -1)[:, :blocks, None] if zeros else 8
    weights = ((numbers - off) * scales.astype(np.float64)[:, :, None]).reshape(n, -1)[:, :k].T
    x = rng.standard_normal((rows, k)).astype(dtype)
    return model, x, x.astype(np.float64) @ weights + (held["c"].astype(np.float64) if bias else 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_packed_products(dtype, zeros, bias):
    model, x, meant = packed_model(dtype, zeros=zeros, bias=bias, rows=3)
    assert operators(model)[0] == "MatMulLowBits"
    (found,) = RollerBackend.prepare(model, evaluated=True).run([x])
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype is np.float32 else {"rtol": 2e-3, "atol": 2e-3}
    np.testing.assert_allclose(found.astype(float), meant, **close)


def test_a_last_block_that_is_not_full_is_expanded():
    model, x, meant = packed_model(k=72)
    assert operators(model) == ["MatMul"]
    (found,) = RollerBackend.prepare(model, evaluated=True).run([x])
    np.testing.assert_allclose(found, meant, rtol=1e-5, atol=1e-5)


def test_ranges_expand_weights():
    """Few rows and many would have different steps."""
    model, *_ = packed_model()
    assert [n.op for n in read_folded_graph(model, low_bit_rows=0).nodes] == ["MatMul"]


@pytest.mark.parametrize(("dtype", "bytes_per_weight"), [(np.float32, 0.5 + 4 / 32), (np.float16, 0.5 + 2 / 32)])
def test_a_session_holds_4_bits_a_weight(dtype, bytes_per_weight):
    model, x, meant = packed_model(dtype, k=2048, n=1024, block=32)
    session = roller.compile_model(model, deterministic=True, threads=1)
    found = session.run(x)
    assert np.abs(found - meant).max() <= (1e-5 if dtype is np.float32 else 1e-3) * np.abs(meant).max()
    arrays = [*session.constants.arrays.values(), *(a for p in session.constants.panels.values() for a in p)]
    assert sum(a.nbytes for a in arrays) == bytes_per_weight * 2048 * 1024


def test_bytes():
    numbers = np.arange(32).reshape(16, 2) % 16
    packed = pack_low_bit_rows(numbers, 8)
    assert packed.shape == (2, 4, 2)
    unpacked = np.stack([packed & 15, packed >> 4], 2).reshape(16, 2)
    np.testing.assert_array_equal(unpacked, numbers)
