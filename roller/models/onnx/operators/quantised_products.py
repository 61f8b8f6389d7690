"""Lowerings of quantized products: integers minus zero points, scaled and rounded once at the end."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from roller.models.onnx.lowering_registry import Lowered, Site, lowers
from roller.models.onnx.node_rewriter import NodeRewriter
from roller_runtime.plan.program_steps import Value


@lowers("QLinearMatMul")
def lower_qlinear_matmul(site: Site) -> Lowered:
    """Rewrite ``QLinearMatMul`` into a product of integers, a scaling and one rounding."""
    steps, y = NodeRewriter(site), site.output
    a, a_scale, a_zero, b, b_scale, b_zero = (site.required(i) for i in range(6))
    total = steps.add("MatMulInteger", (a, b, a_zero, b_zero), y.shape, "int32")
    scale = steps.add("Mul", (_row_scale_as_column(steps, a_scale), b_scale), _scale_shape(a_scale, b_scale))
    return _append_scaling_and_rounding(steps, site, total, scale, 6)


def _row_scale_as_column(steps: NodeRewriter, scale: Value) -> Value:
    """Return per-row scales as a column."""
    if scale.elements > 1 and len(scale.shape) == 1:
        return steps.reshape(scale, (scale.shape[0], 1))
    return scale


def _scale_shape(left: Value, right: Value) -> tuple[int, ...]:
    rows = (left.shape[0], 1) if left.elements > 1 and len(left.shape) == 1 else left.shape
    return tuple(np.broadcast_shapes(rows, right.shape))


@lowers("QLinearConv")
def lower_qlinear_conv(site: Site) -> Lowered:
    """Rewrite ``QLinearConv`` into a convolution of integers, the addition of a bias, a scaling and one rounding."""
    steps, y = NodeRewriter(site), site.output
    x, x_scale, x_zero, w, w_scale, w_zero = (site.required(i) for i in range(6))
    total = steps.add("ConvInteger", (x, w, x_zero, w_zero), y.shape, "int32", **dict(site.node.attributes))
    behind = (1,) * (len(y.shape) - 2)
    bias = site.input(8)
    if bias is not None:
        total = steps.add("Add", (total, steps.reshape(bias, (bias.shape[0], *behind))), y.shape)
    if w_scale.elements > 1:
        w_scale = steps.reshape(w_scale, (w_scale.elements, *behind))
    if x_scale.shape:
        x_scale = steps.reshape(x_scale, ())
    return _append_scaling_and_rounding(steps, site, total, steps.add("Mul", (w_scale, x_scale), w_scale.shape), 6)


def _append_scaling_and_rounding(steps: NodeRewriter, site: Site, total: Value, scale: Value, position: int) -> Lowered:
    """Append the scaling and rounding of a sum; input ``position`` is the output's scale, the next its zero point."""
    y = site.output
    y_scale, y_zero = site.required(position), site.required(position + 1)
    real = steps.add("Cast", (total,), y.shape, "float32", to=TensorProto.FLOAT)
    if scale.dtype != "float32":
        scale = steps.add("Cast", (scale,), scale.shape, "float32", to=TensorProto.FLOAT)
        y_scale = steps.add("Cast", (y_scale,), y_scale.shape, "float32", to=TensorProto.FLOAT)
    scaled = steps.add("Mul", (real, scale), y.shape)
    if len(y_scale.shape) == 1 and y_scale.elements == 1:
        y_scale, y_zero = steps.reshape(y_scale, ()), steps.reshape(y_zero, ())
    steps.add("QuantizeLinear", (scaled, y_scale, y_zero), y.shape, out=y, version=13, axis=-2)
    return steps.finish()
