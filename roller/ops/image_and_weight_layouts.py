"""Plain layouts of convolutions and pooling: images as NCHW or NHWC, weights as OIHW, OHWI or HWIO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roller.expr import Axis, Call, Index, Stage, Tensor, TensorExpr
from roller.ops.operator_argument_checks import (
    OperatorDtypes,
    check_choice,
    compose_epilogue,
    identity_indices,
    normalize_padding,
    normalize_pair,
)
from roller.ops.sliding_windows_and_convolutions import ConvolutionAxes, Windows, make_windows

#: Plain layouts of images; all others have blocked channels.
IMAGES = ("NCHW", "NHWC")
#: Layouts of weights: the order of output channel (O), input channel (I), height (H) and width (W).
KERNELS = ("OIHW", "OHWI", "HWIO")


def order_dims_by_layout(layout: str, dims: tuple[int, ...]) -> tuple[int, ...]:
    """Return the dimensions of an NCHW image in the order of ``layout``."""
    return (dims[0], *dims[2:], dims[1]) if layout == "NHWC" else dims


def channel_dimension(layout: str) -> int:
    """Return the position of the channel dimension of an image in ``layout``."""
    return 3 if layout == "NHWC" else 1


def image_windows(
    where: str, size: tuple[int, int], kernel: tuple[int, int], stride: Any, dilation: Any, padding: Any
) -> Windows:
    """Return the windows of a two-dimensional operator."""
    top, bottom, left, right = normalize_padding(where, padding)
    strides, dilations = normalize_pair(where, "stride", stride), normalize_pair(where, "dilation", dilation)
    return make_windows(where, size, kernel, strides, dilations, ((top, bottom), (left, right)))


def image_indices_in_layout(layout: str, index: tuple[Index, ...]) -> tuple[Index, ...]:
    """Return the indices of an NCHW image in the order of ``layout``."""
    return (index[0], *index[2:], index[1]) if layout == "NHWC" else index


def image_axes_in_layout(layout: str, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Return spatial axes ``n c h w`` in the output order of ``layout``."""
    return (axes[0], *axes[2:], axes[1]) if layout == "NHWC" else axes


def weights_in_layout(
    where: str, kernel_layout: str, shape: tuple[int, ...], index: tuple[Index, ...]
) -> tuple[tuple[int, ...], tuple[Index, ...]]:
    """Return the shape and the indices of OIHW weights in the order of ``kernel_layout``."""
    check_choice(where, "kernel_layout", kernel_layout, KERNELS, "layout")
    order = ["OIHW".index(letter) for letter in kernel_layout]
    return tuple(shape[d] for d in order), tuple(index[d] for d in order)


def reduction_axes_in_weight_order(kernel_layout: str, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Return reduction axes ``(c) kh kw`` in the order of ``kernel_layout``."""
    return axes if kernel_layout == "OIHW" else (*axes[-2:], *axes[:-2])


def plain_convolution(
    where: str, form: ConvolutionAxes, x: Tensor, kernel: tuple[int, ...], t: OperatorDtypes, layout: str,
    kernel_layout: str,
    epilogue: Sequence[str] | str,
) -> TensorExpr:  # fmt: skip
    """Return a convolution in plain layouts."""
    kernel, kernel_at = weights_in_layout(where, kernel_layout, kernel, form.weight)
    axes, reduced = (
        image_axes_in_layout(layout, form.points),
        reduction_axes_in_weight_order(kernel_layout, form.reduced),
    )
    body = Call("mul", (t.load("X", image_indices_in_layout(layout, form.image), form.guard), t.load("W", kernel_at)))
    out = Tensor("Y", tuple(a.extent for a in axes), t.out)
    stage = Stage(out, (*axes, *reduced), identity_indices(axes), body, "sum", t.acc)
    inputs = Tensor("X", order_dims_by_layout(layout, x.shape), t.storage), Tensor("W", kernel, t.storage)
    return compose_epilogue(where, inputs, (stage,), t, epilogue=epilogue, channel=channel_dimension(layout))
