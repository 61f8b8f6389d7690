"""Lowerings to library calls: sampling at data-dependent positions, and other operators."""

from __future__ import annotations

import math
from typing import Any

from roller.models.onnx.build_elementwise_stages import require_dtype
from roller.models.onnx.interpolation import simplest_fraction
from roller.models.onnx.lowering_registry import InputView, LibraryCall, Lowered, Site, Unsupported, lowers
from roller.models.onnx.operators.movement import normalise_axis
from roller_runtime.core.dtypes import DTYPE_BYTES, FLOATS
from roller_runtime.plan.program_steps import Value


def _choice_attribute(site: Site, name: str, choices: dict[str, str], default: str) -> str:
    """Return what ``choices`` maps an attribute's value to; refuse other values."""
    value = str(site.attribute(name, default))
    if value not in choices:
        raise Unsupported(f"{site.node.op} {name}='{value}' is none of {', '.join(choices)}")
    return choices[value]


@lowers("GridSample")
def lower_grid_sample(site: Site) -> Lowered:
    """Lower ``GridSample``: samples of an image at the positions in a grid."""
    require_dtype(site.required(0), FLOATS, "GridSample")
    modes = {"linear": "linear", "bilinear": "linear", "nearest": "nearest", "cubic": "cubic", "bicubic": "cubic"}
    paddings = {n: n for n in ("zeros", "border", "reflection")}
    return LibraryCall(
        "grid_sample",
        {
            "mode": _choice_attribute(site, "mode", modes, "linear"),
            "padding": _choice_attribute(site, "padding_mode", paddings, "zeros"),
            "align_corners": int(site.attribute("align_corners", 0)),
        },
    )


@lowers("Col2Im")
def lower_col2im(site: Site) -> Lowered:
    """Lower ``Col2Im``: an image as the sum of overlapping windows."""
    image, block = site.known(1, "Col2Im's image shape"), site.known(2, "Col2Im's block shape")
    if image is None or block is None:
        raise Unsupported("Col2Im without the shapes of image and block")
    rank = image.size
    pads = tuple(site.attribute("pads", (0,) * (2 * rank)))
    columns, kernel = site.required(0).shape, math.prod(int(n) for n in block)
    attributes: dict[str, Any] = {
        "image": tuple(int(n) for n in image), "block": tuple(int(n) for n in block),
        "strides": tuple(site.attribute("strides", (1,) * rank)),
        "dilations": tuple(site.attribute("dilations", (1,) * rank)),
        "begins": pads[:rank], "ends": pads[rank:],
    }  # fmt: skip
    sides = zip(attributes["image"], attributes["block"], attributes["strides"], attributes["dilations"],
                attributes["begins"], attributes["ends"], strict=True)  # fmt: skip
    blocks = [(n + b + e - d * (k - 1) - 1) // s + 1 for n, k, s, d, b, e in sides]
    if len(columns) != 3 or columns[1] % kernel or columns[2] != math.prod(blocks):
        raise Unsupported(f"{list(columns)} columns are not the {blocks} blocks of {kernel} that its attributes make")
    return LibraryCall("col2im", attributes, (site.required(0).name,))


@lowers("MaxUnpool")
def lower_max_unpool(site: Site) -> Lowered:
    """Lower ``MaxUnpool``: values written to the positions of their maxima, zeros elsewhere."""
    x, y = site.required(0), site.output
    kernel = tuple(site.attribute("kernel_shape"))
    rank = len(kernel)
    strides, pads = site.attribute("strides", (1,) * rank), site.attribute("pads", (0,) * (2 * rank))
    spatial = (
        (n - 1) * s - pads[i] - pads[i + rank] + k
        for i, (n, s, k) in enumerate(zip(x.shape[2:], strides, kernel, strict=True))
    )
    natural = (*x.shape[:2], *spatial)
    if site.required(1).shape != x.shape:
        raise Unsupported(f"{list(site.required(1).shape)} positions of {list(x.shape)} elements")
    if any(n > m for n, m in zip(natural, y.shape, strict=True)):
        raise Unsupported(f"MaxUnpool of {list(natural)} elements into {list(y.shape)}")
    names = (x.name, site.required(1).name)
    return LibraryCall("max_unpool", {"natural": natural, "shape": y.shape}, names)


@lowers("TensorScatter")
def lower_tensor_scatter(site: Site) -> Lowered:
    """Lower ``TensorScatter``: a cache of keys or values with an update written into it."""
    x = site.required(0)
    axis = normalise_axis(int(site.attribute("axis", -2)), len(x.shape))
    if axis == 0:
        raise Unsupported("TensorScatter along the batch")
    mode = _choice_attribute(site, "mode", {"linear": "linear", "circular": "circular"}, "linear")
    return LibraryCall("tensor_scatter", {"axis": axis, "circular": int(mode == "circular")})


@lowers("Det")
def lower_det(site: Site) -> Lowered:
    """Lower ``Det``: the determinants of matrices."""
    require_dtype(site.required(0), ("float32", "float64"), "Det")
    return LibraryCall("determinant")


@lowers("BitCast")
def lower_bit_cast(site: Site) -> Lowered:
    """Lower ``BitCast``: the same bits read as a different dtype of the same width."""
    x, y = site.required(0), site.output
    if x.dtype == y.dtype:
        return InputView()
    if _dtype_bytes(x) != _dtype_bytes(y):
        raise Unsupported(f"BitCast of {x.dtype} to {y.dtype}, which has another width")
    return LibraryCall("bit_cast", {"dtype": y.dtype})


def _dtype_bytes(value: Value) -> int:
    if value.dtype not in DTYPE_BYTES:
        raise Unsupported(f"{value.dtype} is no dtype of kernels")
    return DTYPE_BYTES[value.dtype]


@lowers("RoiAlign")
def lower_roi_align(site: Site) -> Lowered:
    """Lower ``RoiAlign``: regions of interest, pooled to a fixed size."""
    require_dtype(site.required(0), FLOATS, "RoiAlign")
    halves = {"half_pixel": "half", "output_half_pixel": "whole"}
    # Before version 16, coordinates had no half-pixel offset.
    default = "half_pixel" if site.node.version >= 16 else "output_half_pixel"
    return LibraryCall(
        "roi_align",
        {
            "mode": _choice_attribute(site, "mode", {"avg": "avg", "max": "max"}, "avg"),
            "size": (int(site.attribute("output_height", 1)), int(site.attribute("output_width", 1))),
            "samples": int(site.attribute("sampling_ratio", 0)),
            "scale": float(simplest_fraction(site.attribute("spatial_scale", 1.0))),
            "shift": 0.5
            if _choice_attribute(site, "coordinate_transformation_mode", halves, default) == "half"
            else 0.0,
        },
    )
