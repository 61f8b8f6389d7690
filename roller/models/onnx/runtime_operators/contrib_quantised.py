"""Rewrites integer products, and operators on quantized tensors (to dequantization, computation and quantization)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from roller.models.onnx.lowering_registry import Unsupported
from roller.models.onnx.runtime_operators.rewrites import DOMAIN, NodeRewrite, attributes_without, register_rewrite


def _dequantise(s: NodeRewrite, x: str, scale: str, zero: str, **details: int) -> str:
    return s.add(
        "DequantizeLinear",
        x,
        _scalar_if_one_element(s, scale),
        *([_scalar_if_one_element(s, zero)] if zero else []),
        **details,
    )


def _scalar_if_one_element(s: NodeRewrite, name: str) -> str:
    """Return a one-element parameter as a scalar; return others unchanged."""
    return s.reshape(name, ()) if np.prod(s.shape(name)) == 1 else name


def _quantise(s: NodeRewrite, x: str, scale: str, zero: str, like: str) -> str:
    """Return ``x`` quantized; without a zero point, the result has the dtype of ``like``."""
    if not zero:
        zero = s.number(0, like)
    return s.add("QuantizeLinear", x, _scalar_if_one_element(s, scale), _scalar_if_one_element(s, zero))


def _apply_to_quantised(s: NodeRewrite, compute: Callable[[str], str]) -> Sequence[str]:
    """Return the quantized result of a function applied to one quantized tensor."""
    x, scale, zero, to_scale, to_zero = (s.input(n) for n in range(5))
    return [_quantise(s, compute(_dequantise(s, x, scale, zero)), to_scale, to_zero, x)]


@register_rewrite("QLinearAdd", "QLinearMul")
def rewrite_qlinear_arithmetic(s: NodeRewrite) -> Sequence[str]:
    """Rewrite a sum or a product of two quantized tensors."""
    a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = (s.input(n) for n in range(8))
    y = s.add(s.node.op.removeprefix("QLinear"), _dequantise(s, a, a_scale, a_zero), _dequantise(s, b, b_scale, b_zero))
    return [_quantise(s, y, scale, zero, a)]


@register_rewrite("QLinearSigmoid")
def rewrite_qlinear_sigmoid(s: NodeRewrite) -> Sequence[str]:
    """Rewrite the logistic function of a quantized tensor."""
    return _apply_to_quantised(s, lambda x: s.add("Sigmoid", x))


@register_rewrite("QLinearLeakyRelu")
def rewrite_qlinear_leaky_relu(s: NodeRewrite) -> Sequence[str]:
    """Rewrite a leaky rectifier applied to a quantized tensor."""
    return _apply_to_quantised(s, lambda x: s.add("LeakyRelu", x, alpha=float(s.attribute("alpha", 0.01))))


@register_rewrite("QLinearSoftmax")
def rewrite_qlinear_softmax(s: NodeRewrite) -> Sequence[str]:
    """Rewrite the softmax of a quantized tensor; before operator set 13, it covers all dimensions from an axis on."""
    x, axis = s.required(0), int(s.attribute("axis", -1))
    shape = s.shape(x)
    if int(s.attribute("opset", 13)) >= 13:
        return _apply_to_quantised(s, lambda v: s.add("Softmax", v, axis=axis))
    rows = int(np.prod(shape[: axis % len(shape)]))
    return _apply_to_quantised(s, lambda v: s.reshape(s.add("Softmax", s.reshape(v, (rows, -1)), axis=1), shape))


def _channels_to_front(s: NodeRewrite, x: str) -> str:
    rank = len(s.shape(x))
    return s.add("Transpose", x, perm=[0, rank - 1, *range(1, rank - 1)])


def _channels_to_back(s: NodeRewrite, x: str) -> str:
    rank = len(s.shape(x))
    return s.add("Transpose", x, perm=[0, *range(2, rank), 1])


def _add_pool_with_channel_order(s: NodeRewrite, x: str, op: str) -> str:
    """Return the pooling of a value whose channels may be last."""
    details = attributes_without(s.node.attributes, "channels_last")
    if not s.attribute("channels_last", 0):
        return s.add(op, x, **details)
    return _channels_to_back(s, s.add(op, _channels_to_front(s, x), **details))


@register_rewrite("QLinearGlobalAveragePool", "QLinearAveragePool")
def rewrite_qlinear_average_pool(s: NodeRewrite) -> Sequence[str]:
    """Rewrite the average pooling of a quantized tensor, over windows or globally."""
    return _apply_to_quantised(s, lambda x: _add_pool_with_channel_order(s, x, s.node.op.removeprefix("QLinear")))


@register_rewrite("NhwcMaxPool")
def rewrite_nhwc_max_pool(s: NodeRewrite) -> Sequence[str]:
    """Rewrite a max pooling with channels last."""
    return [_channels_to_back(s, s.add("MaxPool", _channels_to_front(s, s.required(0)), **s.node.attributes))]


@register_rewrite("QLinearReduceMean")
def rewrite_qlinear_reduce_mean(s: NodeRewrite) -> Sequence[str]:
    """Rewrite the mean of a quantized tensor along axes."""
    axes = s.constant(np.array(s.attribute("axes", range(len(s.shape(s.required(0))))), np.int64))
    return _apply_to_quantised(s, lambda x: s.add("ReduceMean", x, axes, keepdims=int(s.attribute("keepdims", 1))))


@register_rewrite("QLinearConcat")
def rewrite_qlinear_concat(s: NodeRewrite) -> Sequence[str]:
    """Rewrite a concatenation that requantizes its inputs to one scale."""
    given = s.node.inputs[2:]
    parts = [_dequantise(s, *given[n : n + 3]) for n in range(0, len(given), 3)]
    y = s.add("Concat", *parts, axis=int(s.attribute("axis", 0)))
    return [_quantise(s, y, s.required(0), s.required(1), given[0])]


@register_rewrite("QLinearWhere")
def rewrite_qlinear_where(s: NodeRewrite) -> Sequence[str]:
    """Rewrite the choice between two quantized tensors."""
    condition, a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = (s.required(n) for n in range(9))
    y = s.add("Where", condition, _dequantise(s, a, a_scale, a_zero), _dequantise(s, b, b_scale, b_zero))
    return [_quantise(s, y, scale, zero, a)]


@register_rewrite("QuantizeLinear", "DequantizeLinear")
def rewrite_quantise_dequantise(s: NodeRewrite) -> Sequence[str]:
    """Rewrite to ONNX's operator with the same name and meaning."""
    inputs = [s.required(0), *(_scalar_if_one_element(s, n) for n in s.node.inputs[1:] if n)]
    return [s.add(s.node.op, *inputs, axis=s.attribute("axis"), block_size=s.attribute("block_size"))]


def _add_bias(s: NodeRewrite, y: str, bias: str) -> Sequence[str]:
    return [s.add("Add", y, bias) if bias else y]


def _scaled_integer_product(
    s: NodeRewrite, a: str, b: str, a_zero: str, b_zero: str, scale: str, bias: str
) -> Sequence[str]:
    """Return a scaled product of integers, with an optional bias."""
    total = s.add(
        "MatMulInteger", a, b, a_zero or s.number(0, a), *([_scale_as_scalar_or_row(s, b_zero)] if b_zero else [])
    )
    return _add_bias(s, s.add("Mul", s.cast(total, s.type(scale).dtype), scale), bias)


def _scale_as_scalar_or_row(s: NodeRewrite, name: str) -> str:
    return _scalar_if_one_element(s, name)


@register_rewrite("MatMulIntegerToFloat")
def rewrite_matmul_integer_to_float(s: NodeRewrite) -> Sequence[str]:
    """Rewrite a product of integers with a float result."""
    a, b, a_scale, b_scale, a_zero, b_zero, bias = (s.input(n) for n in range(7))
    scale = s.add("Mul", _scalar_if_one_element(s, a_scale), _scalar_if_one_element(s, b_scale))
    return _scaled_integer_product(s, a, b, _scalar_if_one_element(s, a_zero) if a_zero else "", b_zero, scale, bias)


@register_rewrite("DynamicQuantizeMatMul")
def rewrite_dynamic_quantize_matmul(s: NodeRewrite) -> Sequence[str]:
    """Rewrite a product whose first operand is quantized dynamically."""
    a, b, b_scale, b_zero, bias = (s.input(n) for n in range(5))
    quantised, a_scale, a_zero = s.add_with_results("DynamicQuantizeLinear", [a], 3)
    return _scaled_integer_product(
        s, quantised, b, a_zero, b_zero, s.add("Mul", a_scale, _scalar_if_one_element(s, b_scale)), bias
    )


@register_rewrite("QGemm")
def rewrite_qgemm(s: NodeRewrite) -> Sequence[str]:
    """Rewrite a Gemm of quantized matrices; without a result scale, the result is float."""
    a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero = (s.input(n) for n in range(9))
    if s.attribute("transA", 0):
        a = s.add("Transpose", a, perm=[1, 0])
    if s.attribute("transB", 0):
        b = s.add("Transpose", b, perm=[1, 0])
    total = s.add("MatMulInteger", a, b, _scalar_if_one_element(s, a_zero) if a_zero else s.number(0, a),
                  _scalar_if_one_element(s, b_zero) if b_zero else s.number(0, b))  # fmt: skip
    if c:
        total = s.add("Add", total, c)
    scale = s.add("Mul", _scalar_if_one_element(s, a_scale), _scalar_if_one_element(s, b_scale))
    alpha = float(s.attribute("alpha", 1.0))
    if alpha != 1:
        scale = s.add("Mul", scale, s.number(alpha, scale))
    y = s.add("Mul", s.cast(total, s.type(scale).dtype), scale)
    return [_quantise(s, y, y_scale, y_zero, s.input(0)) if y_scale else y]


@register_rewrite("QLinearConv", "NhwcFusedConv")
def rewrite_qlinear_conv(s: NodeRewrite) -> Sequence[str]:
    """Rewrite a quantized convolution whose channels may be last."""
    if s.node.op != "QLinearConv" or s.node.domain != DOMAIN:
        raise Unsupported(f"{s.node.op} is laid out for one processor")
    details = attributes_without(s.node.attributes, "channels_last")
    if not s.attribute("channels_last", 0):
        return [s.add("QLinearConv", *s.node.inputs, **details)]
    return [
        _channels_to_back(s, s.add("QLinearConv", _channels_to_front(s, s.required(0)), *s.node.inputs[1:], **details))
    ]
