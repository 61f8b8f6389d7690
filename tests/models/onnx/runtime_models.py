"""Models that ONNX Runtime's own tools wrote: optimised and saved, quantised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

from tests.models.onnx.models import model_of


def values(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def optimised(model: onnx.ModelProto, folder: Path, level: str = "EXTENDED") -> onnx.ModelProto:
    """Return a model as ONNX Runtime saves it after its optimisation."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(folder / "optimised.onnx")


class _Samples(CalibrationDataReader):
    def __init__(self, feeds: Sequence[Mapping[str, np.ndarray]]) -> None:
        self._left = iter(feeds)

    def get_next(self) -> Mapping[str, np.ndarray] | None:
        return next(self._left, None)


def quantised(
    model: onnx.ModelProto,
    folder: Path,
    feeds: Sequence[Mapping[str, np.ndarray]],
    form: str,
    per_channel: bool = False,
    signed: bool = False,
) -> onnx.ModelProto:
    """Return a model quantised: ``form`` is ``QDQ``, ``QOperator`` or ``dynamic``.

    Weights have 7 bits: without VNNI, ONNX Runtime's sums of bytes saturate beyond.
    """
    source, target = folder / "float.onnx", folder / "quantised.onnx"
    onnx.save(model, source)
    activations = QuantType.QInt8 if signed else QuantType.QUInt8
    if form == "dynamic":
        quantize_dynamic(source, target, weight_type=QuantType.QInt8, per_channel=per_channel, reduce_range=True)
    else:
        quantize_static(
            source,
            target,
            _Samples(feeds),
            quant_format=getattr(QuantFormat, form),
            per_channel=per_channel,
            activation_type=activations,
            weight_type=QuantType.QInt8,
            reduce_range=True,
        )
    return onnx.load(target)


def convolutions() -> onnx.ModelProto:
    """Return convolutions with batch normalisation, activations, a residual, pooling and a classifier."""
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["c0"], pads=[1] * 4),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("Conv", ["r0", "w1", "b0"], ["c1"], pads=[1] * 4),
        helper.make_node("Add", ["c1", "r0"], ["a0"]),
        helper.make_node("Relu", ["a0"], ["r1"]),
        helper.make_node("Conv", ["r1", "w1", "b0"], ["c2"], pads=[1] * 4),
        helper.make_node("LeakyRelu", ["c2"], ["l0"], alpha=0.2),
        helper.make_node("MaxPool", ["l0"], ["m0"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["m0", "w1", "b0"], ["c3"]),
        helper.make_node("Sigmoid", ["c3"], ["s0"]),
        helper.make_node("Concat", ["s0", "s0"], ["k0"], axis=1),
        helper.make_node("GlobalAveragePool", ["k0"], ["g0"]),
        helper.make_node("Flatten", ["g0"], ["f0"]),
        helper.make_node("Gemm", ["f0", "w2", "b2"], ["h0"], transB=1),
        helper.make_node("Relu", ["h0"], ["h1"]),
        helper.make_node("Gemm", ["h1", "w3", "b3"], ["h2"], transB=1),
        helper.make_node("Softmax", ["h2"], ["y"], axis=-1),
    ]
    weights = {
        "w0": values(8, 3, 3, 3, scale=0.3),
        "w1": values(8, 8, 3, 3, seed=1, scale=0.15),
        "b0": values(8, seed=2),
        "w2": values(12, 16, seed=3, scale=0.3),
        "b2": values(12, seed=4),
        "w3": values(5, 12, seed=5),
        "b3": values(5, seed=6),
    }
    return model_of(nodes, [("x", 1, (2, 3, 8, 8))], [("y", 1, (2, 5))], weights, opset=13)


def transformer(opset: int = 17, width: int = 16, length: int = 6) -> onnx.ModelProto:
    """Return a layer of a transformer: attention, residuals, layer normalisation, GELU written with Erf."""
    nodes, weights = (
        [],
        {
            "half": np.float32(0.5),
            "one": np.float32(1),
            "root": np.float32(np.sqrt(2)),
            "to": np.array([2, length, 4, width // 4]),
            "back": np.array([2, length, width]),
            "scale": np.float32(np.sqrt(width // 4)),
            "two": np.float32(2),
            "eps": np.float32(1e-5),
        },
    )

    def node(op: str, inputs: str, output: str, **attributes: object) -> None:
        nodes.append(helper.make_node(op, inputs.split(), [output], **attributes))

    def dense(x: str, name: str, rows: int, columns: int) -> str:
        weights[f"{name}_w"], weights[f"{name}_b"] = (
            values(rows, columns, seed=len(weights), scale=0.25),
            values(columns, seed=len(weights)),
        )
        node("MatMul", f"{x} {name}_w", f"{name}_p")
        node("Add", f"{name}_p {name}_b", f"{name}_o")
        return f"{name}_o"

    def norm(x: str, name: str) -> str:
        weights[f"{name}_g"], weights[f"{name}_c"] = values(width, seed=len(weights)), values(width, seed=len(weights))
        node("ReduceMean", x, f"{name}_m", axes=[-1])
        node("Sub", f"{x} {name}_m", f"{name}_d")
        node("Pow", f"{name}_d two", f"{name}_q")
        node("ReduceMean", f"{name}_q", f"{name}_v", axes=[-1])
        node("Add", f"{name}_v eps", f"{name}_e")
        node("Sqrt", f"{name}_e", f"{name}_s")
        node("Div", f"{name}_d {name}_s", f"{name}_n")
        node("Mul", f"{name}_n {name}_g", f"{name}_x")
        node("Add", f"{name}_x {name}_c", f"{name}_o")
        return f"{name}_o"

    for part, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        node("Reshape", f"{dense('x', part, width, width)} to", f"{part}_r")
        node("Transpose", f"{part}_r", f"{part}_t", perm=perm)
    node("MatMul", "q_t k_t", "qk")
    node("Div", "qk scale", "qs")
    node("Softmax", "qs", "qp", axis=-1)
    node("MatMul", "qp v_t", "av")
    node("Transpose", "av", "at", perm=[0, 2, 1, 3])
    node("Reshape", "at back", "ar")
    node("Add", f"{dense('ar', 'o', width, width)} x", "res")
    first = norm("res", "n0")
    up = dense(first, "u", width, 2 * width)
    node("Div", f"{up} root", "gd")
    node("Erf", "gd", "ge")
    node("Add", "ge one", "ga")
    node("Mul", f"{up} ga", "gm")
    node("Mul", "gm half", "gelu")
    node("Add", f"{dense('gelu', 'd', 2 * width, width)} {first}", "res2")
    node("Identity", norm("res2", "n1"), "y")
    return model_of(nodes, [("x", 1, (2, length, width))], [("y", 1, (2, length, width))], weights, opset=opset)
