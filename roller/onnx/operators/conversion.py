"""Conversions between dtypes, and the linear ones of quantised tensors."""

from __future__ import annotations

from roller.expr import DTYPE_BYTES, Cast
from roller.onnx.elementwise import (
    FLOATS,
    axes_of,
    broadcast,
    converted,
    pointwise,
    require,
)
from roller.onnx.lowering import Lowered, Reshaped, Site, lowers


@lowers("Cast", "CastLike")
def cast(site: Site) -> Lowered:
    """Lower a conversion: towards zero to integers, non-zero is true; what does not fit wraps or is undefined."""
    x, y = site.required(0), site.output
    if x.dtype == y.dtype:
        return Reshaped()
    for value in (x, y):
        require(value, tuple(DTYPE_BYTES), site.node.op)
    axes = axes_of(y.shape)
    read = broadcast(x, y.shape, axes)
    if x.dtype in FLOATS and y.dtype in ("int8", "uint8", "int16"):
        # Negative numbers to unsigned ones wrap by way of int32, as they do everywhere else.
        return pointwise(site, axes, Cast(y.dtype, Cast("int32", read)), dtype=y.dtype)
    return pointwise(site, axes, converted(read, x.dtype, y.dtype), dtype=y.dtype)
