"""Plain layouts of convolutions and pooling: images as NCHW or NHWC, weights as OIHW, OHWI or HWIO."""

from __future__ import annotations

from roller.expr import Axis, Index
from roller.ops.build import one_of, reduction

#: Layouts of images, channels in front of or behind the pixels (others hold channels in blocks).
IMAGES = ("NCHW", "NHWC")
#: Order of output channel, input channel, height and width in weights.
KERNELS = ("OIHW", "OHWI", "HWIO")


def channels_last(layout: str, dims: tuple[int, ...]) -> tuple[int, ...]:
    """Return the dimensions of an NCHW image in the order of ``layout``."""
    return (dims[0], *dims[2:], dims[1]) if layout == "NHWC" else dims


def image_index(layout: str, index: tuple[Index, ...]) -> tuple[Index, ...]:
    """Return the indices of an NCHW image in the order of ``layout``."""
    return (index[0], *index[2:], index[1]) if layout == "NHWC" else index


def image_axes(layout: str, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Return spatial axes ``n c h w`` in the order of the output of ``layout``."""
    return (axes[0], *axes[2:], axes[1]) if layout == "NHWC" else axes


def weights(
    where: str, kernel_layout: str, shape: tuple[int, ...], index: tuple[Index, ...]
) -> tuple[tuple[int, ...], tuple[Index, ...]]:
    """Return shape and indices of weights, both given as OIHW, in the order of ``kernel_layout``.

    Raises
    ------
    ExprError
        Where the layout is unknown.
    """
    one_of(where, "kernel_layout", kernel_layout, KERNELS, "layout")
    order = ["OIHW".index(letter) for letter in kernel_layout]
    return tuple(shape[d] for d in order), tuple(index[d] for d in order)


def reduced_axes(kernel_layout: str, channels: int, kh: int, kw: int) -> tuple[Axis, ...]:
    """Return the reduction axes in the order of the weights, so that a group of them is a run of the weights."""
    taps = (("kh", kh), ("kw", kw))
    return reduction(("c", channels), *taps) if kernel_layout == "OIHW" else reduction(*taps, ("c", channels))
