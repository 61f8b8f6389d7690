"""Lowerings of dtype conversions and of linear quantization."""

from __future__ import annotations

import numpy as np

from roller.expr import Axis, Cast, Index, Load, Scalar, axis_index
from roller.models.onnx.build_elementwise_stages import (
    broadcast_load,
    computation_dtype,
    convert_scalar,
    kernel_tensor_of_value,
    literal,
    pointwise_stage,
    require_dtype,
    result_axes,
    scalar_call,
)
from roller.models.onnx.lowering_registry import InputView, Lowered, Site, Unsupported, lowers
from roller.models.onnx.operators.movement import normalise_axis
from roller.ops.operator_argument_checks import identity_indices
from roller_runtime.core.dtypes import BYTE_FLOATS, DTYPE_BYTES, DTYPES, FLOATS
from roller_runtime.plan.program_steps import Value


@lowers("Cast", "CastLike")
def lower_cast(site: Site) -> Lowered:
    """Lower ``Cast``: floats are truncated, non-zero values become true, and overflow wraps or is undefined."""
    x, y = site.required(0), site.output
    if x.dtype == y.dtype:
        return InputView()
    for each in (x, y):
        require_dtype(each, tuple(DTYPE_BYTES), site.node.op)
    axes = result_axes(y.shape)
    read = broadcast_load(x, y.shape, axes)
    if x.dtype in FLOATS and y.dtype in ("int8", "uint8", "int16"):
        # Convert through int32, so that negative numbers wrap to unsigned ones, as everywhere else.
        return pointwise_stage(site, axes, Cast(y.dtype, Cast("int32", read)), dtype=y.dtype)
    value: Scalar = convert_scalar(read, x.dtype, y.dtype)
    if y.dtype in BYTE_FLOATS and int(site.attribute("saturate", 1)):
        value = Cast(y.dtype, _saturate(convert_scalar(read, x.dtype, computation_dtype(x.dtype)), y.dtype))
    return pointwise_stage(site, axes, value, dtype=y.dtype)


def _saturate(value: Scalar, dtype: str) -> Scalar:
    """Clamp a number to the range of ``dtype``; NaN stays, because comparisons with it are false."""
    most = DTYPES[dtype].largest
    value, high, low = Cast("float32", value), literal(most, "float32"), literal(-most, "float32")
    below = scalar_call("select", scalar_call("lt", value, low), low, value)
    return scalar_call("select", scalar_call("lt", high, value), high, below)


def _load_scale_or_zero(site: Site, value: Value, axes: tuple[Axis, ...]) -> Load:
    """Return a load of a scale or zero point, which is that of the whole tensor or of one channel."""
    shape = site.required(0).shape
    if value.elements == 1:
        return Load(kernel_tensor_of_value(value).name, (Index(),) * len(value.shape))
    d = normalise_axis(int(site.attribute("axis", 1)), len(shape))
    if int(site.attribute("block_size", 0)):
        raise Unsupported(f"{site.node.op} with a scale per block")
    if value.shape != (shape[d],):
        raise Unsupported(f"{site.node.op} with a scale of shape {list(value.shape)} for axis {d} of {list(shape)}")
    return Load(kernel_tensor_of_value(value).name, (axis_index(axes[d].name),))


@lowers("QuantizeLinear")
def lower_quantize_linear(site: Site) -> Lowered:
    """Lower ``QuantizeLinear``: ``round(x / scale) + zero``, with ties rounded to even and the result saturated."""
    x, scale, zero = site.required(0), site.required(1), site.input(2)
    require_dtype(x, ("float32", "float16", "bfloat16", "int32"), "QuantizeLinear")
    require_dtype(site.output, ("int8", "uint8", "int16"), "QuantizeLinear to")
    axes = result_axes(x.shape)
    read: Scalar = convert_scalar(Load(kernel_tensor_of_value(x).name, identity_indices(axes)), x.dtype, "float32")
    by = convert_scalar(_load_scale_or_zero(site, scale, axes), scale.dtype, computation_dtype(scale.dtype))
    known = site.constant(1)
    if known is None or not (known == 1).all():
        read = Cast("float32", scalar_call("div", read, by))  # ties are those of float32
    value = scalar_call("round", read)
    if zero is not None:
        value = scalar_call("add", value, convert_scalar(_load_scale_or_zero(site, zero, axes), zero.dtype, "float32"))
    limits = np.iinfo(site.output.dtype)
    low, high = literal(limits.min, "float32"), literal(limits.max, "float32")
    # The comparison maps NaN, whose conversion is undefined, to the smallest integer.
    value = scalar_call("min", scalar_call("select", scalar_call("lt", low, value), value, low), high)
    return pointwise_stage(site, axes, Cast(site.output.dtype, Cast("int32", value)), dtype="float32")


@lowers("DequantizeLinear")
def lower_dequantize_linear(site: Site) -> Lowered:
    """Lower ``DequantizeLinear``: ``(x - zero) * scale``."""
    x, scale, zero = site.required(0), site.required(1), site.input(2)
    require_dtype(x, ("int8", "uint8", "int16", "int32"), "DequantizeLinear")
    require_dtype(site.output, ("float32", "float16", "bfloat16"), "DequantizeLinear to")
    axes = result_axes(x.shape)
    value: Scalar = convert_scalar(Load(kernel_tensor_of_value(x).name, identity_indices(axes)), x.dtype, "int32")
    if zero is not None:
        value = scalar_call("sub", value, convert_scalar(_load_scale_or_zero(site, zero, axes), zero.dtype, "int32"))
    by = convert_scalar(_load_scale_or_zero(site, scale, axes), scale.dtype, "float32")
    return pointwise_stage(site, axes, scalar_call("mul", Cast("float32", value), by))
