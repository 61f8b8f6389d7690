"""Elements chosen by indices: an access map where the indices are known and regular, else a call of the library."""

from __future__ import annotations

import numpy as np

from roller.expr import Index, Load, Term, axis_index
from roller.onnx.elementwise import axes_of, pointwise, tensor
from roller.onnx.lowering import Called, Lowered, Site, Unsupported, lowers
from roller.onnx.operators.movement import axis_of


@lowers("Gather")
def gather(site: Site) -> Lowered:
    """Lower slices along an axis, by an access map where the constant indices are one regular sequence."""
    x, rank = site.required(0), len(site.required(0).shape)
    axis = axis_of(int(site.attribute("axis", 0)), rank)
    indices = site.constant(1)
    regular = None if indices is None else _regular(indices, x.shape[axis])
    if regular is None:
        return Called("gather", {"axis": axis})
    start, strides = regular
    axes = axes_of(site.output.shape)
    chosen = axes[axis : axis + len(strides)]
    along = Index(tuple(Term(a.name, s) for a, s in zip(chosen, strides, strict=True) if a.extent > 1 and s), start)
    outer = [axis_index(a.name) for a in (*axes[:axis], *axes[axis + len(strides) :])]
    body = Load(tensor(x).name, (*outer[:axis], along, *outer[axis:]))
    return pointwise(site, axes, body, dtype=x.dtype)


def _regular(indices: np.ndarray, size: int) -> tuple[int, tuple[int, ...]] | None:
    """Return the first index and the step along every dimension of ``indices``, where steps describe all of them."""
    values = np.where(indices < 0, indices + size, indices).astype(np.int64)
    if values.size == 0:
        return None
    if values.min() < 0 or values.max() >= size:
        raise Unsupported(f"Gather of index {int(indices.max())} of an axis of {size}")
    start = int(values.ravel()[0])
    first = (0,) * values.ndim
    steps = tuple(
        int(values[(*first[:d], 1, *first[d + 1 :])]) - start if values.shape[d] > 1 else 0 for d in range(values.ndim)
    )
    grid = sum((s * i for s, i in zip(steps, np.indices(values.shape), strict=True)), np.full(values.shape, start))
    return (start, steps) if bool((grid == values).all()) else None
