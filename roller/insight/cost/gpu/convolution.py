"""Convolutions and their gradients, of one to three dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from roller import ops
from roller.expr import TensorExpr
from roller.insight.cost.gpu.operator_view import View, element_count, total_bytes
from roller.insight.cost.gpu.pointwise import elementwise_kernel
from roller.insight.cost.launches import Fused, Kernel, Launch, Stream
from roller.insight.trace.trace import TensorRecord


def convolution(view: View) -> tuple[Launch, ...]:
    """Return the kernel of a convolution, and the one that adds the bias after it."""
    x, weight = view.tensor("self") or view.required_tensor("input", 0), view.required_tensor("weight", 1)
    kernel, bias = _convolution_kernel(view, x, weight, view.out), view.tensor("bias")
    return (kernel,) if bias is None else (kernel, *_add_bias(view.out, bias))


def _add_bias(out: TensorRecord, bias: TensorRecord) -> tuple[Launch, ...]:
    if len(out.shape) < 3:  # no batch and no points
        return (Stream(total_bytes((out, bias)), total_bytes((out,))),)
    along = TensorRecord((out.shape[1], *(1,) * (len(out.shape) - 2)), (1,) * (len(out.shape) - 1), bias.dtype, -1)
    return elementwise_kernel(("add",), out, (out, along))


def convolution_backward(view: View) -> tuple[Launch, ...]:
    """Return up to three kernels: the gradients of the image, of the weights, and of the bias."""
    gradient, x = view.required_tensor("grad_output", 0), view.required_tensor("input", 1)
    weight = view.required_tensor("weight", 2)
    wanted: Sequence[bool] = view.argument("output_mask", (True, True, False))
    found: list[Launch] = []
    if wanted[0]:
        found += _image_gradient(view, gradient, x, weight)
    if wanted[1]:
        product = _weight_gradient(gradient, x, weight, int(view.argument("groups", 1)), view)
        found.append(_implicit_product(product, (gradient, x), weight))
    if wanted[2]:
        found.append(Stream(total_bytes((gradient,)), total_bytes(view.outputs[-1:])))
    return tuple(found)


def _implicit_product(product: TensorExpr, read: Sequence[TensorRecord], written: TensorRecord) -> Launch:
    """Return the kernel of an implicit product: its operand is gathered from windows of an image as it runs.

    The product names an element once for each window it lies in; memory gives the tensors themselves. Where every
    window is a point, the product's operands are these tensors.
    """
    moved = total_bytes(read), total_bytes((written,))
    named = (sum(t.nbytes for t in product.inputs), sum(t.nbytes for t in product.output_tensors))
    return Kernel(product) if moved == named else Fused((product,), 0.0, *moved)


def _per_dimension(values: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return one value for each of ``rank`` dimensions; a single value applies to all."""
    listed = tuple(values)
    return listed * rank if len(listed) == 1 and rank > 1 else listed


def _geometry(view: View, rank: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
    ones = (1,) * rank
    stride, padding = view.argument("stride", ones), view.argument("padding", (0,) * rank)
    dilation = view.argument("dilation", ones)
    return (
        _per_dimension(stride, rank),
        _per_dimension(padding, rank),
        _per_dimension(dilation, rank),
        int(view.argument("groups", 1)),
    )


def _merge_to_two_dimensions(sizes: Sequence[int]) -> tuple[int, int]:
    """Return two dimensions for any number: a row, or all outer ones merged."""
    return (1, sizes[0]) if len(sizes) == 1 else (math.prod(sizes[:-1]), sizes[-1])


def _convolution_kernel(view: View, x: TensorRecord, weight: TensorRecord, out: TensorRecord) -> Launch:
    rank = len(x.shape) - 2
    stride, padding, dilation, groups = _geometry(view, rank)
    if view.argument("transposed", False):
        return _implicit_product(_as_product(x, weight, out, groups), (x, weight), out)
    if rank > 2:
        return _implicit_product(_as_product(out, weight, out, groups), (x, weight), out)
    (h, w), (kh, kw) = _merge_to_two_dimensions(x.shape[2:]), _merge_to_two_dimensions(weight.shape[2:])
    strides, pads, dilations = _as_pair(stride, 1), _as_pair(padding, 0), _as_pair(dilation, 1)
    return Kernel(
        ops.conv2d(
            x.shape[0], x.shape[1], h, w, weight.shape[0], kh, kw, strides, pads, dilations, groups, dtype=x.dtype
        )
    )


def _as_pair(values: Sequence[int], one: int) -> tuple[int, int]:
    """Return two values for a window of one or two dimensions."""
    return (values[0], values[1]) if len(values) == 2 else (one, values[0])


def _as_product(points: TensorRecord, weight: TensorRecord, out: TensorRecord, groups: int) -> TensorExpr:
    """Return the product of matrices that has a convolution's multiplications: points of a result by its filters.

    ``points`` are those at which the whole window is multiplied: of the result; of a transposed one, of the image.
    """
    m = points.shape[0] * math.prod(points.shape[2:])
    window = math.prod(weight.shape[2:])
    per_group = weight.shape[0] // groups
    return ops.matmul(
        m, per_group, weight.shape[1] * window, None if groups == 1 else groups, dtype=out.dtype
    )  # fmt: skip


def _image_gradient(view: View, gradient: TensorRecord, x: TensorRecord, weight: TensorRecord) -> tuple[Launch, ...]:
    """Return the kernel of the image's gradient: every gradient spreads over a window, whose points add up.

    At stride 1 that is a convolution of the gradient; at a larger one it has as many multiplications as the
    convolution had, and writes the larger image.
    """
    rank = len(x.shape) - 2
    _, _, dilation, groups = _geometry(view, rank)
    if rank > 2 or groups > 1 or view.argument("transposed", False):
        points = x if view.argument("transposed", False) else gradient
        return (_implicit_product(_as_product(points, weight, x, groups), (gradient, weight), x),)
    (h, w), (kh, kw) = _merge_to_two_dimensions(gradient.shape[2:]), _merge_to_two_dimensions(weight.shape[2:])
    reach = tuple((k - 1) * d for k, d in zip((kh, kw), _as_pair(dilation, 1), strict=True))
    pads = tuple(side for r in reach for side in (r // 2, r - r // 2))  # before and after, of each dimension
    along = ops.conv2d(
        x.shape[0], gradient.shape[1], h, w, x.shape[1], kh, kw, 1, pads, _as_pair(dilation, 1),
        dtype=x.dtype,
    )  # fmt: skip
    more = total_bytes((x,)) - math.prod((x.shape[0], x.shape[1], h, w)) * total_bytes((x,)) // element_count(x)
    if more < 0:  # padding that leaves of the windows' sums only the middle
        return (Fused((along,), 0.0, total_bytes((gradient, weight)), total_bytes((x,))),)
    return (Kernel(along), Stream(0.0, float(more), 0)) if more else (Kernel(along),)


def _weight_gradient(
    gradient: TensorRecord, x: TensorRecord, weight: TensorRecord, groups: int, view: View
) -> TensorExpr:
    """Return the product of the weights' gradient: filters by windows, summed over all points of the result."""
    points = x if view.argument("transposed", False) else gradient
    k = points.shape[0] * math.prod(points.shape[2:])
    n = weight.shape[1] * math.prod(weight.shape[2:])
    batch = None if groups == 1 else groups
    return ops.matmul(weight.shape[0] // groups, n, k, batch, False, True, dtype=x.dtype)
