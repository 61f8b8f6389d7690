"""Rewrites contrib operators: fused products and convolutions, activations, BiasSoftmax and Pad."""

from __future__ import annotations

from collections.abc import Sequence

from roller.models.onnx.lowering_registry import Unsupported
from roller.models.onnx.runtime_operators.rewrites import NodeRewrite, attributes_without, register_rewrite

#: Attributes of an activation in the order of its parameters.
_PARAMETERS = {"Relu": (), "Tanh": (), "Sigmoid": (), "Softplus": (), "Softsign": (), "LeakyRelu": ("alpha",),
               "HardSigmoid": ("alpha", "beta"), "Elu": ("alpha",), "ThresholdedRelu": ("alpha",)}  # fmt: skip


def _apply_activation(s: NodeRewrite, x: str, parameters: Sequence[float]) -> str:
    """Return the node's activation applied to a value."""
    name = s.attribute("activation", "")
    if not name:
        return x
    if name == "Clip":
        low, high = parameters
        return s.add("Clip", x, s.number(low, x), s.number(high, x))
    if name not in _PARAMETERS:
        raise Unsupported(f"activation {name}")
    return s.add(name, x, **dict(zip(_PARAMETERS[name], parameters, strict=False)))


@register_rewrite("FusedConv")
def rewrite_fused_conv(s: NodeRewrite) -> Sequence[str]:
    """Rewrite a fused convolution, addition of the fourth input, and activation."""
    attributes = attributes_without(s.node.attributes, "activation", "activation_params")
    y = s.add("Conv", *(n for n in s.node.inputs[:3] if n), **attributes)
    if s.input(3):
        y = s.add("Add", y, s.input(3))
    return [_apply_activation(s, y, s.attribute("activation_params", ()))]


@register_rewrite("FusedGemm")
def rewrite_fused_gemm(s: NodeRewrite) -> Sequence[str]:
    """Rewrite a Gemm fused with an activation."""
    details = ("activation", "activation_alpha", "activation_beta", "activation_gamma")
    y = s.add("Gemm", *s.node.inputs, **attributes_without(s.node.attributes, *details))
    given = [s.attribute(t) for t in details[1:]]
    return [_apply_activation(s, y, [g for g in given if g is not None])]


@register_rewrite("FusedMatMul", "TransposeMatMul")
def rewrite_fused_matmul(s: NodeRewrite) -> Sequence[str]:
    """Rewrite a scaled matrix product with optional transpositions."""
    a = _transpose_operand(s, s.required(0), bool(s.attribute("transA", 0)), bool(s.attribute("transBatchA", 0)))
    b = _transpose_operand(s, s.required(1), bool(s.attribute("transB", 0)), bool(s.attribute("transBatchB", 0)))
    y, alpha = s.add("MatMul", a, b), s.attribute("alpha", 1.0)
    return [y if alpha == 1 else s.add("Mul", y, s.number(alpha, y))]


def _transpose_operand(s: NodeRewrite, x: str, matrix: bool, batch: bool) -> str:
    """Return ``x``, transposed if ``matrix`` is set; ``batch`` first moves dimension 0 behind the batch dimensions."""
    order = list(range(len(s.shape(x))))
    if len(order) < 2:
        return x
    if batch:
        order = [*order[1:-1], 0, order[-1]]
    if matrix:
        order[-2:] = order[-1], order[-2]
    return x if order == sorted(order) else s.add("Transpose", x, perm=order)


@register_rewrite("Gelu")
def rewrite_gelu(s: NodeRewrite) -> Sequence[str]:
    """Rewrite the Gaussian error linear unit."""
    return [s.add("Gelu", s.required(0))]


@register_rewrite("BiasGelu")
def rewrite_bias_gelu(s: NodeRewrite) -> Sequence[str]:
    """Rewrite the Gelu of a sum."""
    return [s.add("Gelu", s.add("Add", s.required(0), s.required(1)))]


@register_rewrite("FastGelu")
def rewrite_fast_gelu(s: NodeRewrite) -> Sequence[str]:
    """Rewrite the tanh approximation of Gelu, with an optional bias."""
    x = s.required(0)
    return [s.add("Gelu", s.add("Add", x, s.input(1)) if s.input(1) else x, approximate="tanh")]


@register_rewrite("QuickGelu")
def rewrite_quick_gelu(s: NodeRewrite) -> Sequence[str]:
    """Rewrite ``x * sigmoid(alpha * x)``."""
    x = s.required(0)
    return [s.add("Mul", x, s.add("Sigmoid", s.add("Mul", x, s.number(s.attribute("alpha", 1.702), x))))]


@register_rewrite("BiasSoftmax")
def rewrite_bias_softmax(s: NodeRewrite) -> Sequence[str]:
    """Rewrite the softmax, along the last dimension, of a sum."""
    x, axis = s.required(0), int(s.attribute("axis", 1))
    if axis % len(s.shape(x)) != len(s.shape(x)) - 1:
        raise Unsupported(f"BiasSoftmax along axis {axis}")
    return [s.add("Softmax", s.add("Add", x, s.required(1)), axis=-1)]


@register_rewrite("Pad")
def rewrite_pad(s: NodeRewrite) -> Sequence[str]:
    """Rewrite a Pad to ONNX's Pad, which takes the amounts as an input."""
    return [s.add("Pad", *s.node.inputs, **s.node.attributes)]
