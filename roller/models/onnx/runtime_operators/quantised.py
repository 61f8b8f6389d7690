"""Operators on quantized tensors (dequantize, compute, quantize), and integer products."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from roller.models.onnx.lowering import Unsupported
from roller.models.onnx.runtime_operators.rewrites import DOMAIN, Rewrite, plain, rewrites


def _real(s: Rewrite, x: str, scale: str, zero: str, **told: int) -> str:
    """Return a dequantized value."""
    return s.add("DequantizeLinear", x, _single(s, scale), *([_single(s, zero)] if zero else []), **told)


def _single(s: Rewrite, name: str) -> str:
    """Return a one-element parameter as a scalar; return others unchanged."""
    return s.reshape(name, ()) if np.prod(s.shape(name)) == 1 else name


def _quantised(s: Rewrite, x: str, scale: str, zero: str, like: str) -> str:
    """Return a quantized value; without a zero point, in the dtype of ``like``."""
    if not zero:
        zero = s.number(0, like)
    return s.add("QuantizeLinear", x, _single(s, scale), _single(s, zero))


def _of_one(s: Rewrite, compute: Callable[[str], str]) -> Sequence[str]:
    """Return the quantized result of a function applied to one quantized tensor."""
    x, scale, zero, to_scale, to_zero = (s.input(n) for n in range(5))
    return [_quantised(s, compute(_real(s, x, scale, zero)), to_scale, to_zero, x)]


@rewrites("QLinearAdd", "QLinearMul")
def arithmetic(s: Rewrite) -> Sequence[str]:
    """Rewrite a sum or a product of two quantized tensors."""
    a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = (s.input(n) for n in range(8))
    y = s.add(s.node.op.removeprefix("QLinear"), _real(s, a, a_scale, a_zero), _real(s, b, b_scale, b_zero))
    return [_quantised(s, y, scale, zero, a)]


@rewrites("QLinearSigmoid")
def sigmoid(s: Rewrite) -> Sequence[str]:
    """Rewrite the logistic function of a quantized tensor."""
    return _of_one(s, lambda x: s.add("Sigmoid", x))


@rewrites("QLinearLeakyRelu")
def leaky_relu(s: Rewrite) -> Sequence[str]:
    """Rewrite a leaky rectifier applied to a quantized tensor."""
    return _of_one(s, lambda x: s.add("LeakyRelu", x, alpha=float(s.attribute("alpha", 0.01))))


@rewrites("QLinearSoftmax")
def softmax(s: Rewrite) -> Sequence[str]:
    """Rewrite the softmax of a quantized tensor; before operator set 13, over all dimensions starting at an axis."""
    x, axis = s.required(0), int(s.attribute("axis", -1))
    shape = s.shape(x)
    if int(s.attribute("opset", 13)) >= 13:
        return _of_one(s, lambda v: s.add("Softmax", v, axis=axis))
    rows = int(np.prod(shape[: axis % len(shape)]))
    return _of_one(s, lambda v: s.reshape(s.add("Softmax", s.reshape(v, (rows, -1)), axis=1), shape))


def _to_front(s: Rewrite, x: str) -> str:
    rank = len(s.shape(x))
    return s.add("Transpose", x, perm=[0, rank - 1, *range(1, rank - 1)])


def _to_back(s: Rewrite, x: str) -> str:
    rank = len(s.shape(x))
    return s.add("Transpose", x, perm=[0, *range(2, rank), 1])


def _pooled(s: Rewrite, x: str, op: str) -> str:
    """Return the pooling of a value whose channels may be last."""
    told = plain(s.node.attributes, "channels_last")
    if not s.attribute("channels_last", 0):
        return s.add(op, x, **told)
    return _to_back(s, s.add(op, _to_front(s, x), **told))


@rewrites("QLinearGlobalAveragePool", "QLinearAveragePool")
def average(s: Rewrite) -> Sequence[str]:
    """Rewrite the average pooling of a quantized tensor, over windows or globally."""
    return _of_one(s, lambda x: _pooled(s, x, s.node.op.removeprefix("QLinear")))


@rewrites("NhwcMaxPool")
def largest(s: Rewrite) -> Sequence[str]:
    """Rewrite a max pooling with channels last."""
    return [_to_back(s, s.add("MaxPool", _to_front(s, s.required(0)), **s.node.attributes))]


@rewrites("QLinearReduceMean")
def mean(s: Rewrite) -> Sequence[str]:
    """Rewrite the mean of a quantized tensor along axes."""
    axes = s.constant(np.array(s.attribute("axes", range(len(s.shape(s.required(0))))), np.int64))
    return _of_one(s, lambda x: s.add("ReduceMean", x, axes, keepdims=int(s.attribute("keepdims", 1))))


@rewrites("QLinearConcat")
def concat(s: Rewrite) -> Sequence[str]:
    """Rewrite a concatenation of quantized tensors into one scale."""
    given = s.node.inputs[2:]
    parts = [_real(s, *given[n : n + 3]) for n in range(0, len(given), 3)]
    y = s.add("Concat", *parts, axis=int(s.attribute("axis", 0)))
    return [_quantised(s, y, s.required(0), s.required(1), given[0])]


@rewrites("QLinearWhere")
def where(s: Rewrite) -> Sequence[str]:
    """Rewrite the choice between two quantized tensors."""
    condition, a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = (s.required(n) for n in range(9))
    y = s.add("Where", condition, _real(s, a, a_scale, a_zero), _real(s, b, b_scale, b_zero))
    return [_quantised(s, y, scale, zero, a)]


@rewrites("QuantizeLinear", "DequantizeLinear")
def conversion(s: Rewrite) -> Sequence[str]:
    """Rewrite to ONNX's operator of the same name and meaning."""
    inputs = [s.required(0), *(_single(s, n) for n in s.node.inputs[1:] if n)]
    return [s.add(s.node.op, *inputs, axis=s.attribute("axis"), block_size=s.attribute("block_size"))]


def _added(s: Rewrite, y: str, bias: str) -> Sequence[str]:
    return [s.add("Add", y, bias) if bias else y]


def _integers(s: Rewrite, a: str, b: str, a_zero: str, b_zero: str, scale: str, bias: str) -> Sequence[str]:
    """Return a scaled product of integers, with an optional bias."""
    total = s.add("MatMulInteger", a, b, a_zero or s.number(0, a), *([_row(s, b_zero)] if b_zero else []))
    return _added(s, s.add("Mul", s.cast(total, s.type(scale).dtype), scale), bias)


def _row(s: Rewrite, name: str) -> str:
    return _single(s, name)


@rewrites("MatMulIntegerToFloat")
def product(s: Rewrite) -> Sequence[str]:
    """Rewrite a product of integers with a float result."""
    a, b, a_scale, b_scale, a_zero, b_zero, bias = (s.input(n) for n in range(7))
    scale = s.add("Mul", _single(s, a_scale), _single(s, b_scale))
    return _integers(s, a, b, _single(s, a_zero) if a_zero else "", b_zero, scale, bias)


@rewrites("DynamicQuantizeMatMul")
def dynamic_product(s: Rewrite) -> Sequence[str]:
    """Rewrite a product whose first operand is quantized dynamically."""
    a, b, b_scale, b_zero, bias = (s.input(n) for n in range(5))
    quantised, a_scale, a_zero = s.several("DynamicQuantizeLinear", [a], 3)
    return _integers(s, quantised, b, a_zero, b_zero, s.add("Mul", a_scale, _single(s, b_scale)), bias)


@rewrites("QGemm")
def gemm(s: Rewrite) -> Sequence[str]:
    """Rewrite a Gemm of quantized matrices; without a result scale, the result is float."""
    a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero = (s.input(n) for n in range(9))
    if s.attribute("transA", 0):
        a = s.add("Transpose", a, perm=[1, 0])
    if s.attribute("transB", 0):
        b = s.add("Transpose", b, perm=[1, 0])
    total = s.add("MatMulInteger", a, b, _single(s, a_zero) if a_zero else s.number(0, a),
                  _single(s, b_zero) if b_zero else s.number(0, b))  # fmt: skip
    if c:
        total = s.add("Add", total, c)
    scale = s.add("Mul", _single(s, a_scale), _single(s, b_scale))
    alpha = float(s.attribute("alpha", 1.0))
    if alpha != 1:
        scale = s.add("Mul", scale, s.number(alpha, scale))
    y = s.add("Mul", s.cast(total, s.type(scale).dtype), scale)
    return [_quantised(s, y, y_scale, y_zero, s.input(0)) if y_scale else y]


@rewrites("QLinearConv", "NhwcFusedConv")
def convolution(s: Rewrite) -> Sequence[str]:
    """Rewrite a quantized convolution whose channels may be last."""
    if s.node.op != "QLinearConv" or s.node.domain != DOMAIN:
        raise Unsupported(f"{s.node.op} is laid out for one processor")
    told = plain(s.node.attributes, "channels_last")
    if not s.attribute("channels_last", 0):
        return [s.add("QLinearConv", *s.node.inputs, **told)]
    return [_to_back(s, s.add("QLinearConv", _to_front(s, s.required(0)), *s.node.inputs[1:], **told))]
