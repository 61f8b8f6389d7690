"""Lowerings of dtype conversions and of linear quantization."""

from __future__ import annotations

import numpy as np

from roller.core.dtypes import BYTE_FLOATS, DTYPE_BYTES, DTYPES, FLOATS
from roller.expr import Axis, Cast, Index, Load, Scalar, axis_index
from roller.models.graph.steps import Value
from roller.models.onnx.elementwise import (
    axes_of,
    broadcast,
    call,
    computed,
    converted,
    literal,
    pointwise,
    require,
    tensor,
)
from roller.models.onnx.lowering import Lowered, Reshaped, Site, Unsupported, lowers
from roller.models.onnx.operators.movement import axis_of
from roller.ops.build import indices


@lowers("Cast", "CastLike")
def cast(site: Site) -> Lowered:
    """Lower a conversion: truncate floats; non-zero values become true; out-of-range values wrap or are undefined."""
    x, y = site.required(0), site.output
    if x.dtype == y.dtype:
        return Reshaped()
    for each in (x, y):
        require(each, tuple(DTYPE_BYTES), site.node.op)
    axes = axes_of(y.shape)
    read = broadcast(x, y.shape, axes)
    if x.dtype in FLOATS and y.dtype in ("int8", "uint8", "int16"):
        # Through int32, so that negative numbers wrap to unsigned ones, as everywhere else.
        return pointwise(site, axes, Cast(y.dtype, Cast("int32", read)), dtype=y.dtype)
    value: Scalar = converted(read, x.dtype, y.dtype)
    if y.dtype in BYTE_FLOATS and int(site.attribute("saturate", 1)):
        value = Cast(y.dtype, _saturated(converted(read, x.dtype, computed(x.dtype)), y.dtype))
    return pointwise(site, axes, value, dtype=y.dtype)


def _saturated(value: Scalar, dtype: str) -> Scalar:
    """Return a number clamped to the range of ``dtype``; NaN is kept because comparisons with it are false."""
    most = DTYPES[dtype].largest
    value, high, low = Cast("float32", value), literal(most, "float32"), literal(-most, "float32")
    below = call("select", call("lt", value, low), low, value)
    return call("select", call("lt", high, value), high, below)


def _parameter(site: Site, value: Value, axes: tuple[Axis, ...]) -> Load:
    """Return the load of a scale or zero point: for the whole tensor or for a channel."""
    shape = site.required(0).shape
    if value.elements == 1:
        return Load(tensor(value).name, (Index(),) * len(value.shape))
    d = axis_of(int(site.attribute("axis", 1)), len(shape))
    if int(site.attribute("block_size", 0)):
        raise Unsupported(f"{site.node.op} with a scale per block")
    if value.shape != (shape[d],):
        raise Unsupported(f"{site.node.op} with a scale of shape {list(value.shape)} for axis {d} of {list(shape)}")
    return Load(tensor(value).name, (axis_index(axes[d].name),))


@lowers("QuantizeLinear")
def quantize(site: Site) -> Lowered:
    """Lower ``round(x / scale) + zero``, saturated, with ties to even."""
    x, scale, zero = site.required(0), site.required(1), site.input(2)
    require(x, ("float32", "float16", "bfloat16", "int32"), "QuantizeLinear")
    require(site.output, ("int8", "uint8", "int16"), "QuantizeLinear to")
    axes = axes_of(x.shape)
    read: Scalar = converted(Load(tensor(x).name, indices(axes)), x.dtype, "float32")
    by = converted(_parameter(site, scale, axes), scale.dtype, computed(scale.dtype))
    known = site.constant(1)
    if known is None or not (known == 1).all():
        read = Cast("float32", call("div", read, by))  # ties are those of float32
    value = call("round", read)
    if zero is not None:
        value = call("add", value, converted(_parameter(site, zero, axes), zero.dtype, "float32"))
    limits = np.iinfo(site.output.dtype)
    low, high = literal(limits.min, "float32"), literal(limits.max, "float32")
    # The comparison maps NaN, whose conversion is undefined, to the smallest integer.
    value = call("min", call("select", call("lt", low, value), value, low), high)
    return pointwise(site, axes, Cast(site.output.dtype, Cast("int32", value)), dtype="float32")


@lowers("DequantizeLinear")
def dequantize(site: Site) -> Lowered:
    """Lower ``(x - zero) * scale``."""
    x, scale, zero = site.required(0), site.required(1), site.input(2)
    require(x, ("int8", "uint8", "int16", "int32"), "DequantizeLinear")
    require(site.output, ("float32", "float16", "bfloat16"), "DequantizeLinear to")
    axes = axes_of(x.shape)
    value: Scalar = converted(Load(tensor(x).name, indices(axes)), x.dtype, "int32")
    if zero is not None:
        value = call("sub", value, converted(_parameter(site, zero, axes), zero.dtype, "int32"))
    by = converted(_parameter(site, scale, axes), scale.dtype, "float32")
    return pointwise(site, axes, call("mul", Cast("float32", value), by))
