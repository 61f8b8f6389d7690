"""Softmax and its relatives, in numerically stable form."""

from __future__ import annotations

import math

from roller.expr import Call, IndexValue, Load, Scalar, Stage
from roller.model.steps import Value
from roller.onnx.building import floats_of, normal_axes, point_axes, require_elements, tensor, walk_axes
from roller.onnx.lowering import Compute, Lowered, Site, lowers
from roller.onnx.operators.reductions import extreme_and_position
from roller.onnx.rewriting import Steps
from roller.ops.build import indices, rows_of

#: From this version on they run along one dimension; before, along all from ``axis`` on.
_ONE_DIMENSION = 13


def _reduced(site: Site, x: Value) -> tuple[int, ...]:
    """Return the dimensions that sum to one, at least one; those of one element beside others are left out."""
    require_elements(site)
    rank = len(x.shape)
    flattens = site.node.version < _ONE_DIMENSION
    (axis,) = normal_axes([site.attribute("axis", 1 if flattens else -1)], rank or 1)
    along = tuple(range(axis, rank)) if flattens else (axis,)
    return tuple(d for d in along if x.shape[d] > 1) or along[-1:]


@lowers("Softmax", "LogSoftmax")
def softmax(site: Site) -> Lowered:
    """Lower to the form of :func:`roller.ops.softmax`: a maximum, a sum of exponentials, and one element-wise stage."""
    x, y = site.required(0), site.output
    t = floats_of(x, y)
    reduced = _reduced(site, x)
    walked, every = walk_axes(x.shape, reduced), point_axes(x.shape)
    rows = tuple(a for d, a in enumerate(every) if d not in reduced)
    axes = (*rows_of(rows), *(walked[d] for d in reduced))
    row = Value(y.name, tuple(a.extent for a in rows))
    largest, total, at = tensor(row, t.acc, "max"), tensor(row, t.acc, "sum"), indices(rows)
    shift = Load(largest.name, at)
    inside, point = t.load(x.name, indices(walked)), t.load(x.name, indices(every))
    centred = Call("sub", (point, shift))
    if site.node.op == "Softmax":
        value: Scalar = Call("div", (Call("exp", (centred,)), Load(total.name, at)))
    else:
        value = Call("sub", (centred, Call("log", (Load(total.name, at),))))
    return Compute(
        (
            Stage(largest, axes, at, inside, "max", t.acc),
            Stage(total, axes, at, Call("exp", (Call("sub", (inside, shift)),)), "sum", t.acc),
            Stage(tensor(y), every, indices(every), value, None, t.acc),
        )
    )


@lowers("Hardmax")
def hardmax(site: Site) -> Lowered:
    """Lower to the position of the first maximum, and one where a point stands there."""
    x, y = site.required(0), site.output
    t = floats_of(x, y)
    reduced = _reduced(site, x)
    if len(reduced) > 1:
        return _flattened(site, math.prod(x.shape[: reduced[0]]))
    (along,) = reduced
    walked, every = walk_axes(x.shape, reduced), point_axes(x.shape)
    rows = tuple(a for d, a in enumerate(every) if d != along)
    extreme, found = extreme_and_position(y, x, t, rows, walked, along, largest=True, last=False, part="place")
    here = Call("eq", (IndexValue(indices([every[along]])[0], "int64"), Load(found.name, indices(rows))))
    value = Call("select", (here, t.const(1), t.const(0)))
    return Compute((extreme, found, Stage(tensor(y), every, indices(every), value, None, t.acc)))


def _flattened(site: Site, rows: int) -> Lowered:
    """Return the same operator over rows of a matrix."""
    x, steps = site.required(0), Steps(site)
    shape = (rows, x.elements // rows)
    flat = steps.add(site.node.op, (steps.reshape(x, shape),), shape, version=_ONE_DIMENSION, axis=1)
    steps.reshape(flat, x.shape, out=site.output)
    return steps.done()
