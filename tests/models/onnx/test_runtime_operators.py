"""ONNX Runtime's own operators: each against ONNX Runtime, and whole models that its tools optimised or quantised."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from benchmarks.onnx_backend import RollerBackend
from roller.errors import ModelError, RollerError
from tests.models.onnx import runtime_models as made
from tests.models.onnx.models import model_of, runtime
from tests.models.onnx.runtime_models import values

_OWN = helper.make_opsetid("com.microsoft", 1)


def single(op, inputs, outputs=1, used=None, weights=(), domain="com.microsoft", version=17, **attributes):
    """Return a model of one node and its feeds; ``inputs`` are arrays, ``None`` where absent."""
    names = [f"i{n}" if a is not None else "" for n, a in enumerate(inputs)]
    results = [f"o{n}" if used is None or n in used else "" for n in range(outputs)]
    node = helper.make_node(op, names, results, domain=domain, **attributes)
    arrays = {n: np.asarray(a) for n, a in zip(names, inputs, strict=True) if n}
    held = {n: a for n, a in arrays.items() if int(n[1:]) in weights}
    feeds = {n: a for n, a in arrays.items() if n not in held}
    given = [(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()]
    made_outputs = [onnx.ValueInfoProto(name=r) for r in results if r]
    return model_of([node], given, made_outputs, held, opset=version, imports=[_OWN]), feeds


def agree(model, feeds, atol=2e-6):
    """Hold a model to ONNX Runtime; quantised results may round a half the other way."""
    wanted = runtime(model, feeds)
    found = RollerBackend.prepare(model, evaluated=True).run(list(feeds.values()))
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        step = 1 if other.dtype.kind in "iu" and other.dtype.itemsize < 4 else atol
        np.testing.assert_allclose(one.astype(float), other.astype(float), rtol=2e-5, atol=step)


F = np.float32
X4, W4, B4 = values(2, 4, 6, 5), values(3, 4, 3, 3, seed=1, scale=0.2), values(3, seed=2)
Z4 = values(2, 3, 6, 5, seed=3)
U8 = np.random.default_rng(0).integers(0, 255, (2, 4, 6, 5), np.uint8)
V8 = np.random.default_rng(1).integers(0, 255, (2, 4, 6, 5), np.uint8)
I8 = np.random.default_rng(2).integers(-128, 127, (2, 4, 6, 5), np.int8)
TWO = (F(0.02), np.uint8(120), F(0.03), np.uint8(7))
SIGNED = (F(0.02), np.int8(-3), F(0.01), np.int8(5))


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("FusedConv", (X4, W4, B4), {"pads": [1] * 4, "activation": "Relu"}),
        ("FusedConv", (X4, W4, B4, Z4), {"pads": [1] * 4, "activation": "Relu"}),
        ("FusedConv", (X4, W4), {"strides": [2, 1], "activation": "LeakyRelu", "activation_params": [0.3]}),
        ("FusedConv", (X4, W4), {"activation": "Clip", "activation_params": [-0.5, 0.5]}),
        ("FusedConv", (X4, W4), {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]}),
        ("FusedConv", (X4, W4), {"activation": "Tanh", "dilations": [2, 1]}),
        ("FusedGemm", (values(3, 4), values(4, 5), values(5)), {"activation": "Relu", "alpha": 0.5, "beta": 2.0}),
        ("FusedGemm", (values(3, 4), values(5, 4), values(5)), {"activation": "LeakyRelu", "activation_alpha": 0.2,
                                                                "transB": 1}),
        ("FusedMatMul", (values(3, 4, 5), values(3, 4, 6)), {"transA": 1, "alpha": 0.25}),
        ("FusedMatMul", (values(2, 3, 4, 5), values(2, 3, 6, 5)), {"transB": 1}),
        ("FusedMatMul", (values(4, 3, 5), values(3, 5, 6)), {"transBatchA": 1}),
        ("FusedMatMul", (values(4, 3, 5), values(3, 4, 6)), {"transBatchA": 1, "transA": 1, "alpha": -1.5}),
        ("FusedMatMul", (values(3, 4, 5), values(5, 3, 6)), {"transBatchB": 1}),
        ("TransposeMatMul", (values(4, 5), values(6, 5)), {"transB": 1, "alpha": 2.0}),
        ("Gelu", (values(3, 7),), {}),
        ("BiasGelu", (values(3, 7), values(7)), {}),
        ("FastGelu", (values(3, 7),), {}),
        ("FastGelu", (values(3, 7), values(7)), {}),
        ("QuickGelu", (values(3, 7),), {}),
        ("QuickGelu", (values(3, 7),), {"alpha": 0.7}),
        ("SkipLayerNormalization", (values(2, 3, 8), values(2, 3, 8, seed=1), values(8), values(8, seed=2)), {}),
        ("SkipLayerNormalization", (values(2, 3, 8), values(2, 3, 8, seed=1), values(8), values(8), values(8, seed=4)),
         {"epsilon": 1e-3}),
        ("SkipLayerNormalization", (values(2, 3, 8), values(2, 3, 8, seed=1), values(8)), {}),
        ("SkipSimplifiedLayerNormalization", (values(2, 3, 8), values(2, 3, 8, seed=1), values(8)), {"epsilon": 1e-5}),
        ("QLinearAdd", (U8, *TWO[:2], V8, *TWO[2:], F(0.04), np.uint8(90)), {}),
        ("QLinearAdd", (I8, *SIGNED[:2], I8[:, :, :1], *SIGNED[2:], F(0.04), np.int8(9)), {}),
        ("QLinearMul", (U8, *TWO[:2], V8, *TWO[2:], F(0.04), np.uint8(90)), {}),
        ("QLinearSigmoid", (U8, *TWO[:2], F(1 / 256), np.uint8(0)), {}),
        ("QLinearLeakyRelu", (I8, *SIGNED), {"alpha": 0.25}),
        ("QLinearGlobalAveragePool", (U8, *TWO), {}),
        ("QLinearGlobalAveragePool", (U8, *TWO), {"channels_last": 1}),
        ("QLinearAveragePool", (U8, *TWO), {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 0]}),
        ("QLinearAveragePool", (U8, *TWO), {"kernel_shape": [2, 2], "count_include_pad": 1, "pads": [1] * 4}),
        ("QLinearAveragePool", (U8, *TWO), {"kernel_shape": [3, 2], "channels_last": 1}),
        ("QLinearConcat", (F(0.03), np.uint8(5), U8, *TWO[:2], V8, *TWO[2:]), {"axis": 1}),
        ("QLinearSoftmax", (U8[:, :, 0, 0], *TWO[:2], F(1 / 256), np.uint8(0)), {"axis": -1, "opset": 13}),
        ("QLinearSoftmax", (U8[:, :, :, 0], *TWO[:2], F(1 / 256), np.uint8(0)), {"axis": 1, "opset": 11}),
        ("NhwcMaxPool", (U8,), {"kernel_shape": [2, 2], "strides": [1, 2]}),
        ("QuantizeLinear", (X4, F(0.02), np.uint8(120)), {}),
        ("DequantizeLinear", (I8, F(0.02), np.int8(3)), {}),
        ("DequantizeLinear", (I8, values(4, seed=9) ** 2, np.arange(4, dtype=np.int8)), {"axis": 1}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("constant", [False, True])
def test_operators_as_onnx_runtime_computes_them(op, inputs, attributes, constant):
    agree(*single(op, inputs, weights=range(1, len(inputs)) if constant else (), **attributes))


def test_normalisations_of_older_sets():
    """ONNX Runtime writes them into models of any operator set, in ONNX's own domain."""
    for op, inputs in (("LayerNormalization", (values(2, 3, 8), values(8), values(8))),
                       ("SimplifiedLayerNormalization", (values(2, 3, 8), values(8)))):  # fmt: skip
        agree(*single(op, inputs, domain="", version=13, epsilon=1e-4))


def test_the_sum_that_skips_a_layer_is_a_result():
    agree(
        *single("SkipLayerNormalization", (values(2, 3, 8), values(2, 3, 8, seed=1), values(8), values(8)), 4, {0, 3})
    )


PACKED = np.random.default_rng(3).integers(-60, 60, (6, 5), np.int8)
ROWS = np.random.default_rng(4).integers(0, 255, (3, 6), np.uint8)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("MatMulIntegerToFloat", (ROWS, PACKED, F(0.02), F(0.03), np.uint8(7), np.int8(2)), {}),
        ("MatMulIntegerToFloat", (ROWS, PACKED, F(0.02), values(5) ** 2, np.uint8(7), None, values(5)), {}),
        ("DynamicQuantizeMatMul", (values(3, 6), PACKED, F(0.03)), {}),
        ("DynamicQuantizeMatMul", (values(3, 6), PACKED, values(5) ** 2, np.zeros(5, np.int8), values(5)), {}),
        ("QGemm", (ROWS, F(0.02), np.uint8(7), PACKED, F(0.03), np.int8(0)), {}),
        ("QGemm", (ROWS, F(0.02), np.uint8(7), PACKED.T.copy(), F(0.03), np.int8(0), np.arange(5, dtype=np.int32) * 99,
                   F(0.04), np.uint8(70)), {"transB": 1}),
    ],
)  # fmt: skip
def test_products_of_integers(op, inputs, attributes):
    agree(*single(op, inputs, weights=range(1, len(inputs)), **attributes), atol=1e-5)


@pytest.mark.parametrize(("bits", "block"), [(4, 16), (4, 32), (8, 16)])
@pytest.mark.parametrize("zeros", [None, np.uint8])
def test_weights_of_few_bits(bits, block, zeros):
    rng, n, k = np.random.default_rng(bits + block), 6, 40
    blocks = -(-k // block)
    packed = rng.integers(0, 255, (n, blocks, block * bits // 8), np.uint8)
    scales = rng.random((n * blocks), np.float32) / 10
    held = None if zeros is None else rng.integers(0, 255, n * -(-blocks * bits // 8), np.uint8)
    inputs = [values(3, k), packed, scales, held]
    model = single("MatMulNBits", inputs, weights=(1, 2, 3), N=n, K=k, bits=bits, block_size=block)
    agree(*model, atol=1e-4)


def attention_inputs(mask=None, bias=None):
    return values(2, 5, 12), values(12, 36, seed=1, scale=0.4), values(36, seed=2), mask, None, bias


@pytest.mark.parametrize(
    ("mask", "bias", "attributes"),
    [
        (None, None, {}), (None, None, {"unidirectional": 1}), (None, None, {"scale": 0.2}),
        (np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32), None, {}),
        (np.array([3, 5], np.int32), None, {}),
        (None, values(2, 3, 5, 5, seed=5), {}),
        (np.tril(np.ones((2, 5, 5), np.int32)), None, {}),
    ],
)  # fmt: skip
def test_fused_attention(mask, bias, attributes):
    agree(*single("Attention", attention_inputs(mask, bias), weights=(1, 2), num_heads=3, **attributes), atol=1e-5)


@pytest.mark.parametrize("bias", [None, values(36, seed=7)])
@pytest.mark.parametrize("mask", [None, np.array([[1, 1, 1, 0, 0, 1], [1] * 6], np.int32)])
def test_attention_of_three_inputs(bias, mask):
    inputs = (values(2, 5, 12), values(2, 6, 12, seed=1), values(2, 6, 12, seed=2), bias, mask)
    agree(*single("MultiHeadAttention", inputs, num_heads=3), atol=1e-5)


def test_embeddings():
    rng = np.random.default_rng(0)
    ids, segments = rng.integers(0, 20, (2, 5), np.int32), rng.integers(0, 2, (2, 5), np.int32)
    tables = (values(20, 8), values(7, 8, seed=1), values(2, 8, seed=2), values(8, seed=3), values(8, seed=4))
    mask = np.array([[1, 1, 1, 0, 0], [1] * 5], np.int32)
    agree(*single("EmbedLayerNormalization", (ids, segments, *tables, mask), 2, weights=range(2, 7)))
    agree(*single("EmbedLayerNormalization", (ids, None, tables[0], tables[1], None, *tables[3:]), 2, {0}))


_MODELS = {"convolutions": (made.convolutions, (2, 3, 8, 8)), "transformer": (made.transformer, (2, 6, 16))}


@pytest.mark.parametrize("name", _MODELS)
def test_optimised_models(name, tmp_path):
    make, shape = _MODELS[name]
    model = made.optimised(make(), tmp_path)
    assert any(n.domain == "com.microsoft" for n in model.graph.node)
    agree(model, {"x": values(*shape, seed=9)}, atol=2e-5)


@pytest.mark.parametrize("name", _MODELS)
@pytest.mark.parametrize("form", ["QOperator", "QDQ", "dynamic"])
@pytest.mark.filterwarnings("ignore")
def test_quantised_and_optimised_models(name, form, tmp_path):
    """A step of the last quantised value lies between two right answers."""
    make, shape = _MODELS[name]
    samples = [{"x": values(*shape, seed=20 + n)} for n in range(3)]
    model = made.quantised(make(), tmp_path, samples, form)
    feeds = {"x": values(*shape, seed=9)}
    for given in (model, made.optimised(model, tmp_path), made.optimised(model, tmp_path, "ALL")):
        if any(n.domain == "com.microsoft.nchwc" for n in given.graph.node):
            # Where channels are multiples of this processor's vectors, all optimisations write blocks for it alone.
            with pytest.raises(RollerError, match="ORT_ENABLE_BASIC"):
                RollerBackend.prepare(given, evaluated=True).run([feeds["x"]])
            continue
        (wanted,) = runtime(given, feeds)
        (found,) = RollerBackend.prepare(given, evaluated=True).run([feeds["x"]])
        scale = float(np.abs(wanted).max())
        assert float(np.abs(found - wanted).max()) <= 0.05 * scale
        assert float(np.abs(found - wanted).mean()) <= 0.01 * scale


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "message"),
    [
        ("FusedConv", (X4, W4), {"activation": "Nonsense"}, "activation Nonsense"),
        ("Attention", (*attention_inputs()[:4], None, None, np.array(2, np.int32)), {"num_heads": 3}, "a length of"),
        ("MatMulNBits", (values(3, 40), np.zeros((6, 3, 8), np.uint8), values(18)), {"N": 6, "K": 40, "bits": 4,
                         "block_size": 16}, "its weights are computed at run time"),
        ("FusedGemm", (values(3, 4),), {}, "Gemm"),
        ("QLinearAdd", (U8,), {}, "QLinearAdd"),
        ("SkipLayerNormalization", (values(3, 4),), {}, "its input 1 is missing"),
        ("GroupQueryAttention", (values(3, 4),), {}, "GroupQueryAttention"),
    ],
)  # fmt: skip
def test_what_is_not_spelled_out_says_what_to_do(op, inputs, attributes, message):
    model, feeds = single(op, inputs, **attributes)
    with pytest.raises(ModelError, match=message) as refused:
        RollerBackend.prepare(model, evaluated=True).run(list(feeds.values()))
    assert "graph_optimization_level" in str(refused.value)


def test_layouts_of_one_processor_are_refused_with_the_way_out(tmp_path):
    model = made.optimised(made.convolutions(), tmp_path, "ALL")
    if not any(n.domain == "com.microsoft.nchwc" for n in model.graph.node):
        pytest.skip("ONNX Runtime keeps plain layouts on this processor")
    with pytest.raises(ModelError, match=r"nchwc(.|\n)*ORT_ENABLE_BASIC"):
        RollerBackend.prepare(model, evaluated=True).run([values(2, 3, 8, 8)])


def test_a_result_that_is_not_computed_is_refused_where_it_is_read():
    inputs = (values(2, 3, 8), values(2, 3, 8, seed=1), values(8), values(8))
    model, feeds = single("SkipLayerNormalization", inputs, 2, {0, 1})
    with pytest.raises(ModelError, match="its result 1 is read"):
        RollerBackend.prepare(model, evaluated=True).run(list(feeds.values()))
