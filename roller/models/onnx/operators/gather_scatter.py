"""Lowerings of indexing operators: to an access map for constant regular indices, otherwise to a library call."""

from __future__ import annotations

import numpy as np

from roller.expr import Index, IndexValue, Load, Term, axis_index
from roller.models.onnx.build_elementwise_stages import (
    broadcast_load,
    computation_dtype,
    convert_scalar,
    kernel_tensor_of_value,
    literal,
    pointwise_stage,
    result_axes,
    scalar_call,
)
from roller.models.onnx.lowering_registry import LibraryCall, Lowered, Site, Unsupported, lowers
from roller.models.onnx.node_rewriter import NodeRewriter
from roller.models.onnx.operators.depth_to_space_and_pad import gather_along_dimensions
from roller.models.onnx.operators.movement import normalise_axis


@lowers("Gather")
def lower_gather(site: Site) -> Lowered:
    """Lower ``Gather`` to an access map if the indices are constant and regular, otherwise to a library call."""
    x, rank = site.required(0), len(site.required(0).shape)
    axis = normalise_axis(int(site.attribute("axis", 0)), rank)
    indices = site.constant(1)
    regular = None if indices is None else _match_regular_indices(indices, x.shape[axis])
    if regular is None:
        return LibraryCall("gather", {"axis": axis})
    assert indices is not None
    axes = result_axes(site.output.shape)
    chosen = axes[axis : axis + indices.ndim]
    start, steps = regular
    along = Index(tuple(Term(a.name, *s) for a, s in zip(chosen, steps, strict=True) if a.extent > 1 and s[0]), start)
    outer = [axis_index(a.name) for a in (*axes[:axis], *axes[axis + indices.ndim :])]
    body = Load(kernel_tensor_of_value(x).name, (*outer[:axis], along, *outer[axis:]))
    return pointwise_stage(site, axes, body, dtype=x.dtype)


def _match_regular_indices(indices: np.ndarray, size: int) -> tuple[int, tuple[tuple[int, int, int], ...]] | None:
    """Return regular indices as start and, per dimension, coefficient, divisor and modulus; ``None`` if irregular."""
    values = np.where(indices < 0, indices + size, indices).astype(np.int64)
    if values.size == 0:
        return None
    if values.min() < 0 or values.max() >= size:
        raise Unsupported(f"Gather of index {int(indices.max())} of an axis of {size}")
    start = int(values.ravel()[0])
    steps = []
    for d in range(values.ndim):
        line = np.moveaxis(values, d, -1).reshape(-1, values.shape[d])[0] - start
        found = _match_regular_sequence(line)
        if found is None:
            return None
        steps.append(found)
    grid = np.full(values.shape, start)
    for (coefficient, divisor, modulus), i in zip(steps, np.indices(values.shape), strict=True):
        digit = i // divisor
        grid = grid + coefficient * (digit % modulus if modulus else digit)
    return (start, tuple(steps)) if bool((grid == values).all()) else None


def _match_regular_sequence(line: np.ndarray) -> tuple[int, int, int] | None:
    """Return the coefficient, divisor and modulus of a sequence that starts at 0; ``None`` if it is irregular."""
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
def lower_gather_elements(site: Site) -> Lowered:
    """Lower ``GatherElements``: single elements at indices along an axis."""
    return LibraryCall(
        "gather_elements", {"axis": normalise_axis(int(site.attribute("axis", 0)), len(site.required(0).shape))}
    )


@lowers("GatherND")
def lower_gather_nd(site: Site) -> Lowered:
    """Lower ``GatherND``: slices at index tuples."""
    return LibraryCall("gather_nd", {"batch_dims": int(site.attribute("batch_dims", 0))})


@lowers("ScatterElements", "Scatter")
def lower_scatter_elements(site: Site) -> Lowered:
    """Lower ``ScatterElements``: a copy in which single elements along an axis are replaced or combined."""
    axis = normalise_axis(int(site.attribute("axis", 0)), len(site.required(0).shape))
    return LibraryCall("scatter_elements", {"axis": axis, "reduction": _checked_reduction(site)})


@lowers("ScatterND")
def lower_scatter_nd(site: Site) -> Lowered:
    """Lower ``ScatterND``: a copy in which slices are replaced or combined."""
    return LibraryCall("scatter_nd", {"reduction": _checked_reduction(site)})


def _checked_reduction(site: Site) -> str:
    reduction = str(site.attribute("reduction", "none"))
    if reduction not in ("none", "add", "mul", "max", "min"):
        raise Unsupported(f"{site.node.op} reduction='{reduction}' is none of none, add, mul, max, min")
    return reduction


@lowers("TopK")
def lower_top_k(site: Site) -> Lowered:
    """Lower ``TopK``: the largest or smallest elements along an axis, and their positions; ties keep their order."""
    x, y = site.required(0), site.output
    axis = normalise_axis(int(site.attribute("axis", -1)), len(x.shape))
    return LibraryCall(
        "top_k", {"axis": axis, "k": y.shape[axis], "largest": int(site.attribute("largest", 1))}, (x.name,)
    )


@lowers("ReverseSequence")
def lower_reverse_sequence(site: Site) -> Lowered:
    """Lower ``ReverseSequence``: each sequence reversed up to its own length."""
    return LibraryCall(
        "reverse_sequence",
        {"batch_axis": int(site.attribute("batch_axis", 1)), "time_axis": int(site.attribute("time_axis", 0))},
    )


@lowers("CumSum", "CumProd")
def lower_cumulative(site: Site) -> Lowered:
    """Lower ``CumSum`` and ``CumProd``: cumulative sums and products."""
    given = site.known(1, f"{site.node.op}'s axis")
    if given is None:
        raise Unsupported(f"{site.node.op} without an axis")
    axis = normalise_axis(int(np.ravel(given)[0]), len(site.required(0).shape))
    flags = {name: int(site.attribute(name, 0)) for name in ("exclusive", "reverse")}
    return LibraryCall(site.node.op.lower(), {"axis": axis, **flags}, (site.required(0).name,))


@lowers("Compress")
def lower_compress(site: Site) -> Lowered:
    """Lower ``Compress``: the slices that a constant condition selects."""
    condition = site.known(1, "Compress's condition")
    if condition is None:
        raise Unsupported("Compress without a condition")
    kept = np.flatnonzero(condition)
    x, axis = site.required(0), site.attribute("axis")
    if axis is not None:
        return gather_along_dimensions(site, {normalise_axis(int(axis), len(x.shape)): kept})
    steps = NodeRewriter(site)
    flat = steps.reshape(x, (x.elements,))
    steps.add("Gather", (flat, steps.constant(kept.astype(np.int64))), (len(kept),), x.dtype, out=site.output, axis=0)
    return steps.finish()


@lowers("OneHot")
def lower_one_hot(site: Site) -> Lowered:
    """Lower ``OneHot`` to a comparison of indices with positions along a new axis."""
    indices, values = site.required(0), site.required(2)
    rank = len(indices.shape) + 1
    axis = normalise_axis(int(site.attribute("axis", -1)), rank)
    axes = result_axes(site.output.shape)
    depth = axes[axis].extent
    rest = (*axes[:axis], *axes[axis + 1 :])
    at = broadcast_load(indices, [a.extent for a in rest], rest)
    wide = "int32" if indices.dtype in ("int8", "uint8", "int16") else indices.dtype
    wanted = convert_scalar(at, indices.dtype, wide)
    zero, position = literal(0, wide), IndexValue(axis_index(axes[axis].name))
    wrapped = scalar_call(
        "select", scalar_call("lt", wanted, zero), scalar_call("add", wanted, literal(depth, wide)), wanted
    )
    off, on = (
        convert_scalar(
            Load(kernel_tensor_of_value(values).name, (Index((), i),)), values.dtype, computation_dtype(values.dtype)
        )
        for i in (0, 1)
    )
    return pointwise_stage(
        site, axes, scalar_call("select", scalar_call("eq", wrapped, convert_scalar(position, "int32", wide)), on, off)
    )
