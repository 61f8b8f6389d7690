"""Lowerings of convolutions of any rank, on floats and on quantized integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from roller.expr import Call, Cast, Load, Scalar, axis_index
from roller.models.onnx.integer_products import (
    integer_sum_ending,
    integer_sum_stages,
    minus_zero_point,
    weights_minus_zero_points,
)
from roller.models.onnx.lowering_helpers import (
    accumulation_types,
    bias_ending,
    refuse_empty_tensors,
    require_shape,
    site_windows,
)
from roller.models.onnx.lowering_helpers import reduction_with_ending as reduced
from roller.models.onnx.lowering_registry import Compute, Lowered, Site, Unsupported, lowers
from roller.models.onnx.node_rewriter import NodeRewriter
from roller.ops.operator_argument_checks import OperatorDtypes, identity_indices
from roller.ops.sliding_windows_and_convolutions import ConvolutionAxes, make_convolution_axes
from roller_runtime.plan.program_steps import Value


@lowers("Conv")
def lower_conv(site: Site) -> Lowered:
    """Lower ``Conv`` to the form of :func:`roller.ops.conv2d` or of its depthwise variant, plus the bias."""
    x, w, bias, y = site.required(0), site.required(1), site.input(2), site.output
    t, form = accumulation_types(x, y), _convolution_indices(site, x, w, y)
    image, weight = t.load(x.name, form.image, form.guard), t.load(w.name, form.weight)
    return _sum_of_products(form, y, t, image, weight, bias_ending(bias, t))


@lowers("ConvInteger")
@lowers("ConvInteger", domain="roller")
def lower_conv_integer(site: Site) -> Lowered:
    """Lower ``ConvInteger``: 8-bit integers minus zero points, in 32 bits; the padding equals the zero point."""
    x, w, y = site.required(0), site.required(1), site.output
    known, minus, held = site.constant(2), site.input(3), site.constant(1)
    form = _convolution_indices(site, x, w, y)
    fixed = minus is None or site.constant(3) is not None
    weights = weights_minus_zero_points(held, site.constant(3), 0) if held is not None and fixed else None
    if known is None and site.input(2) is not None and (weights is None or form.guard):
        return _rewrite_minus_zero_point_first(site)
    outside = float(known.ravel()[0]) if known is not None and form.guard else 0.0
    read = Load(x.name, form.image, form.guard, outside)
    if weights is not None:
        end = integer_sum_ending(site, axis_index("f"), weights.astype(np.int64).reshape(weights.shape[0], -1).sum(1))
        name = w.name if weights is held else f"{y.name}/weights"
        if weights is not held:
            end.constants[name] = weights
        body = Call("mul", (Cast("int32", read), Cast("int32", Load(name, form.weight))))
        return integer_sum_stages(y, (*form.points, *form.reduced), identity_indices(form.points), body, end)
    image = minus_zero_point(site, read, 2, ())
    weight = minus_zero_point(site, Load(w.name, form.weight), 3, form.weight[:1])
    return _sum_of_products(form, y, accumulation_types(x, y), image, weight)


def _rewrite_minus_zero_point_first(site: Site) -> Lowered:
    """Return nodes that subtract the run-time zero point from the image and convolve it with zero padding."""
    steps, x, zero = NodeRewriter(site), site.required(0), site.required(2)
    wide = steps.add("Cast", (x,), x.shape, "int32", to=TensorProto.INT32)
    shift = steps.reshape(steps.add("Cast", (zero,), zero.shape, "int32", to=TensorProto.INT32), ())
    image = steps.add("Sub", (wide, shift), x.shape)
    kept = dict(site.node.attributes)
    steps.append("ConvInteger", (image, site.input(1), None, site.input(3)), (site.output,), **kept)
    return steps.finish()


def _convolution_indices(site: Site, x: Value, w: Value, y: Value) -> ConvolutionAxes:
    """Return a convolution's axes and indices; for groups of a single channel, only the window is reduced."""
    refuse_empty_tensors(site)
    groups = int(site.attribute("group", 1))
    if len(x.shape) < 3 or len(w.shape) != len(x.shape):
        raise Unsupported(f"expected an image and weights of equal rank, at least 3, got {x.shape} and {w.shape}")
    if groups < 1 or x.shape[1] != groups * w.shape[1] or w.shape[0] % groups:
        raise Unsupported(f"{groups} groups do not divide {x.shape[1]} channels by weights of shape {w.shape}")
    given = tuple(site.attribute("kernel_shape", ()) or w.shape[2:])
    if given != w.shape[2:]:
        raise Unsupported(f"kernel_shape {list(given)} is not that of the weights, {list(w.shape[2:])}")
    over = site_windows(site, x.shape[2:], w.shape[2:])
    require_shape(y, (x.shape[0], w.shape[0], *(a.extent for a in over.outs)))
    filters, channels = w.shape[:2]
    return make_convolution_axes(x.shape[0], filters, channels, groups, over, depthwise=groups > 1 and channels == 1)


def _sum_of_products(
    form: ConvolutionAxes, y: Value, t: OperatorDtypes, image: Scalar, weight: Scalar,
    ending: Callable[[Scalar], Scalar] | None = None,
) -> Compute:  # fmt: skip
    """Return the sums of the products of ``image`` and ``weight``, which are loads at the indices of ``form``."""
    axes, store = (*form.points, *form.reduced), identity_indices(form.points)
    return Compute(reduced(y, axes, store, Call("mul", (image, weight)), "sum", t, ending))
