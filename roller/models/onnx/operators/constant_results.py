"""Lowers operators whose results depend only on shapes, attributes and constants to constants."""

from __future__ import annotations

import numpy as np

from roller.models.onnx.lowering_registry import Lowered, SimplerNodes, Site, Unsupported, lowers
from roller.models.onnx.node_rewriter import NodeRewriter
from roller_runtime.core.dtypes import numpy_dtype

#: Maximum size of such a constant in bytes; larger ones are refused.
_MOST_BYTES = 1 << 26


def rewrite_to_constant(site: Site, array: np.ndarray) -> SimplerNodes:
    """Return nodes that write the constant ``array`` to the first output."""
    steps = NodeRewriter(site)
    steps.add("Identity", (steps.constant(array),), array.shape, out=site.output)
    return steps.finish()


def _dtype_or_refuse_large_constant(site: Site) -> np.dtype[np.generic]:
    if site.output.nbytes > _MOST_BYTES:
        raise Unsupported(f"{site.node.op} makes a constant of {site.output.nbytes} bytes (at most {_MOST_BYTES})")
    return numpy_dtype(site.output.dtype)


@lowers("EyeLike")
def lower_eye_like(site: Site) -> Lowered:
    """Lower ``EyeLike``: a matrix with ones along a diagonal and zeros elsewhere."""
    dtype = _dtype_or_refuse_large_constant(site)
    rows, columns = site.output.shape
    return rewrite_to_constant(site, np.eye(rows, columns, int(site.attribute("k", 0)), dtype))


@lowers("Shape")
def lower_shape(site: Site) -> Lowered:
    """Lower ``Shape``: the shape of a tensor, or a part of that shape."""
    whole = site.required(0).shape
    start, end = site.attribute("start", 0), site.attribute("end")
    return rewrite_to_constant(site, np.asarray(whole[slice(start, end)], np.int64))


@lowers("Size")
def lower_size(site: Site) -> Lowered:
    """Lower ``Size``: the number of elements in a tensor."""
    return rewrite_to_constant(site, np.asarray(site.required(0).elements, np.int64))


@lowers("ConstantOfShape")
def lower_constant_of_shape(site: Site) -> Lowered:
    """Lower ``ConstantOfShape``: a tensor of known shape whose elements all have one value."""
    dtype = _dtype_or_refuse_large_constant(site)
    value = site.attribute("value")
    return rewrite_to_constant(site, np.full(site.output.shape, 0 if value is None else np.ravel(value)[0], dtype))


@lowers("Range")
def lower_range(site: Site) -> Lowered:
    """Lower ``Range``: an arithmetic sequence with constant bounds."""
    dtype = _dtype_or_refuse_large_constant(site)
    bounds = [site.known(i, f"Range's {name}") for i, name in enumerate(("start", "limit", "delta"))]
    start, _, delta = (np.ravel(b)[0] for b in bounds if b is not None)
    return rewrite_to_constant(site, (start + np.arange(site.output.shape[0]) * delta).astype(dtype))
