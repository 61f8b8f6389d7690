"""Lowerings of indexing: an access map for constant regular indices, otherwise a library call."""

from __future__ import annotations

import numpy as np

from roller.expr import Index, IndexValue, Load, Term, axis_index
from roller.models.onnx.elementwise import axes_of, broadcast, call, computed, converted, literal, pointwise, tensor
from roller.models.onnx.lowering import Called, Lowered, Site, Unsupported, lowers
from roller.models.onnx.operators.blocks import gathered
from roller.models.onnx.operators.movement import axis_of
from roller.models.onnx.rewriting import Steps


@lowers("Gather")
def gather(site: Site) -> Lowered:
    """Lower slices along an axis, by an access map if the indices are constant and regular."""
    x, rank = site.required(0), len(site.required(0).shape)
    axis = axis_of(int(site.attribute("axis", 0)), rank)
    indices = site.constant(1)
    regular = None if indices is None else _regular(indices, x.shape[axis])
    if regular is None:
        return Called("gather", {"axis": axis})
    assert indices is not None
    axes = axes_of(site.output.shape)
    chosen = axes[axis : axis + indices.ndim]
    start, steps = regular
    along = Index(tuple(Term(a.name, *s) for a, s in zip(chosen, steps, strict=True) if a.extent > 1 and s[0]), start)
    outer = [axis_index(a.name) for a in (*axes[:axis], *axes[axis + indices.ndim :])]
    body = Load(tensor(x).name, (*outer[:axis], along, *outer[axis:]))
    return pointwise(site, axes, body, dtype=x.dtype)


def _regular(indices: np.ndarray, size: int) -> tuple[int, tuple[tuple[int, int, int], ...]] | None:
    """Return indices as an access map: start, and (coefficient, divisor, modulus) per dimension; otherwise ``None``."""
    values = np.where(indices < 0, indices + size, indices).astype(np.int64)
    if values.size == 0:
        return None
    if values.min() < 0 or values.max() >= size:
        raise Unsupported(f"Gather of index {int(indices.max())} of an axis of {size}")
    start = int(values.ravel()[0])
    steps = []
    for d in range(values.ndim):
        line = np.moveaxis(values, d, -1).reshape(-1, values.shape[d])[0] - start
        found = _term(line)
        if found is None:
            return None
        steps.append(found)
    grid = np.full(values.shape, start)
    for (coefficient, divisor, modulus), i in zip(steps, np.indices(values.shape), strict=True):
        digit = i // divisor
        grid = grid + coefficient * (digit % modulus if modulus else digit)
    return (start, tuple(steps)) if bool((grid == values).all()) else None


def _term(line: np.ndarray) -> tuple[int, int, int] | None:
    """Return coefficient, divisor and modulus of a sequence that starts at 0; ``None`` for irregular ones."""
    n = len(line)
    changes = np.flatnonzero(line)
    if not len(changes):
        return 0, 1, 0
    divisor = int(changes[0])
    coefficient = int(line[divisor])
    i = np.arange(n)
    if (line == coefficient * (i // divisor)).all():
        return coefficient, divisor, 0
    again = np.flatnonzero((line == 0) & (i > divisor))
    if not len(again) or again[0] % divisor:
        return None
    modulus = int(again[0]) // divisor
    return (coefficient, divisor, modulus) if (line == coefficient * (i // divisor % modulus)).all() else None


@lowers("GatherElements")
def gather_elements(site: Site) -> Lowered:
    """Lower single elements chosen along an axis."""
    return Called("gather_elements", {"axis": axis_of(int(site.attribute("axis", 0)), len(site.required(0).shape))})


@lowers("GatherND")
def gather_nd(site: Site) -> Lowered:
    """Lower slices chosen by index tuples."""
    return Called("gather_nd", {"batch_dims": int(site.attribute("batch_dims", 0))})


@lowers("ScatterElements", "Scatter")
def scatter_elements(site: Site) -> Lowered:
    """Lower a copy with single elements along an axis replaced or combined."""
    axis = axis_of(int(site.attribute("axis", 0)), len(site.required(0).shape))
    return Called("scatter_elements", {"axis": axis, "reduction": _reduction(site)})


@lowers("ScatterND")
def scatter_nd(site: Site) -> Lowered:
    """Lower a copy with slices replaced or combined."""
    return Called("scatter_nd", {"reduction": _reduction(site)})


def _reduction(site: Site) -> str:
    reduction = str(site.attribute("reduction", "none"))
    if reduction not in ("none", "add", "mul", "max", "min"):
        raise Unsupported(f"{site.node.op} reduction='{reduction}' is none of none, add, mul, max, min")
    return reduction


@lowers("TopK")
def top_k(site: Site) -> Lowered:
    """Lower the largest or smallest elements along an axis with their positions, with ties in order."""
    x, y = site.required(0), site.output
    axis = axis_of(int(site.attribute("axis", -1)), len(x.shape))
    return Called("top_k", {"axis": axis, "k": y.shape[axis], "largest": int(site.attribute("largest", 1))}, (x.name,))


@lowers("ReverseSequence")
def reverse_sequence(site: Site) -> Lowered:
    """Lower sequences reversed up to their own lengths."""
    return Called(
        "reverse_sequence",
        {"batch_axis": int(site.attribute("batch_axis", 1)), "time_axis": int(site.attribute("time_axis", 0))},
    )


@lowers("CumSum", "CumProd")
def cumulative(site: Site) -> Lowered:
    """Lower cumulative sums or products."""
    given = site.known(1, f"{site.node.op}'s axis")
    if given is None:
        raise Unsupported(f"{site.node.op} without an axis")
    axis = axis_of(int(np.ravel(given)[0]), len(site.required(0).shape))
    flags = {name: int(site.attribute(name, 0)) for name in ("exclusive", "reverse")}
    return Called(site.node.op.lower(), {"axis": axis, **flags}, (site.required(0).name,))


@lowers("Compress")
def compress(site: Site) -> Lowered:
    """Lower the slices that a constant condition selects."""
    condition = site.known(1, "Compress's condition")
    if condition is None:
        raise Unsupported("Compress without a condition")
    kept = np.flatnonzero(condition)
    x, axis = site.required(0), site.attribute("axis")
    if axis is not None:
        return gathered(site, {axis_of(int(axis), len(x.shape)): kept})
    steps = Steps(site)
    flat = steps.reshape(x, (x.elements,))
    steps.add("Gather", (flat, steps.constant(kept.astype(np.int64))), (len(kept),), x.dtype, out=site.output, axis=0)
    return steps.done()


@lowers("OneHot")
def one_hot(site: Site) -> Lowered:
    """Lower a comparison of indices with positions along a new axis."""
    indices, values = site.required(0), site.required(2)
    rank = len(indices.shape) + 1
    axis = axis_of(int(site.attribute("axis", -1)), rank)
    axes = axes_of(site.output.shape)
    depth = axes[axis].extent
    rest = (*axes[:axis], *axes[axis + 1 :])
    at = broadcast(indices, [a.extent for a in rest], rest)
    wide = "int32" if indices.dtype in ("int8", "uint8", "int16") else indices.dtype
    wanted = converted(at, indices.dtype, wide)
    zero, position = literal(0, wide), IndexValue(axis_index(axes[axis].name))
    wrapped = call("select", call("lt", wanted, zero), call("add", wanted, literal(depth, wide)), wanted)
    off, on = (
        converted(Load(tensor(values).name, (Index((), i),)), values.dtype, computed(values.dtype)) for i in (0, 1)
    )
    return pointwise(site, axes, call("select", call("eq", wrapped, converted(position, "int32", wide)), on, off))
