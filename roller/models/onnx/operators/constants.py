"""Lowerings to constants of operators that depend only on shapes and attributes."""

from __future__ import annotations

import numpy as np

from roller.core.dtypes import numpy_dtype
from roller.models.onnx.lowering import Lowered, Rewritten, Site, Unsupported, lowers
from roller.models.onnx.rewriting import Steps

#: Maximum number of bytes of such a constant; larger ones are refused.
_MOST_BYTES = 1 << 26


def constant(site: Site, array: np.ndarray) -> Rewritten:
    """Return the node's value as a constant."""
    steps = Steps(site)
    steps.add("Identity", (steps.constant(array),), array.shape, out=site.output)
    return steps.done()


def _bounded(site: Site) -> np.dtype[np.generic]:
    if site.output.nbytes > _MOST_BYTES:
        raise Unsupported(f"{site.node.op} makes a constant of {site.output.nbytes} bytes (at most {_MOST_BYTES})")
    return numpy_dtype(site.output.dtype)


@lowers("EyeLike")
def eye_like(site: Site) -> Lowered:
    """Lower a matrix with ones along a diagonal."""
    dtype = _bounded(site)
    rows, columns = site.output.shape
    return constant(site, np.eye(rows, columns, int(site.attribute("k", 0)), dtype))


@lowers("Shape")
def shape(site: Site) -> Lowered:
    """Lower a shape, or a part of it."""
    whole = site.required(0).shape
    start, end = site.attribute("start", 0), site.attribute("end")
    return constant(site, np.asarray(whole[slice(start, end)], np.int64))


@lowers("Size")
def size(site: Site) -> Lowered:
    """Lower the number of elements."""
    return constant(site, np.asarray(site.required(0).elements, np.int64))


@lowers("ConstantOfShape")
def constant_of_shape(site: Site) -> Lowered:
    """Lower a constant of a known shape."""
    dtype = _bounded(site)
    value = site.attribute("value")
    return constant(site, np.full(site.output.shape, 0 if value is None else np.ravel(value)[0], dtype))


@lowers("Range")
def range_(site: Site) -> Lowered:
    """Lower an arithmetic sequence with constant bounds."""
    dtype = _bounded(site)
    bounds = [site.known(i, f"Range's {name}") for i, name in enumerate(("start", "limit", "delta"))]
    start, _, delta = (np.ravel(b)[0] for b in bounds if b is not None)
    return constant(site, (start + np.arange(site.output.shape[0]) * delta).astype(dtype))
