"""Lowerings of softmax and related functions, in a numerically stable form."""

from __future__ import annotations

import math

from roller.expr import Call, IndexValue, Tensor
from roller.models.onnx.lowering_helpers import (
    float_accumulation_types,
    make_reduction_rows,
    normalise_axes,
    output_or_intermediate_tensor,
    refuse_empty_tensors,
)
from roller.models.onnx.lowering_registry import Compute, Lowered, Site, lowers
from roller.models.onnx.node_rewriter import NodeRewriter
from roller.ops.reduce import extreme_and_position_stages
from roller.ops.softmax import softmax_stages
from roller_runtime.plan.program_steps import Value

#: First version in which these operators run along one dimension instead of all dimensions from ``axis`` on.
_ONE_DIMENSION = 13


def _softmax_dimensions(site: Site, x: Value) -> tuple[int, ...]:
    """Return the dimensions over which the result sums to one, without those of one element if others remain."""
    refuse_empty_tensors(site)
    rank = len(x.shape)
    flattens = site.node.version < _ONE_DIMENSION
    (axis,) = normalise_axes([site.attribute("axis", 1 if flattens else -1)], rank or 1)
    along = tuple(range(axis, rank)) if flattens else (axis,)
    return tuple(d for d in along if x.shape[d] > 1) or along[-1:]


@lowers("Softmax", "LogSoftmax")
def lower_softmax(site: Site) -> Lowered:
    """Lower ``Softmax`` to the stages of :func:`roller.ops.softmax`, and ``LogSoftmax`` to those of its logarithm."""
    x, y = site.required(0), site.output
    rows = make_reduction_rows(x, y, float_accumulation_types(x, y), _softmax_dimensions(site, x))
    return Compute(softmax_stages(rows, output_or_intermediate_tensor(y), logarithm=site.node.op == "LogSoftmax"))


@lowers("Hardmax")
def lower_hardmax(site: Site) -> Lowered:
    """Lower ``Hardmax``: one at the position of the first maximum, which is found first, and zero elsewhere."""
    x, y = site.required(0), site.output
    t = float_accumulation_types(x, y)
    reduced = _softmax_dimensions(site, x)
    if len(reduced) > 1:
        return _rewrite_on_matrix_rows(site, math.prod(x.shape[: reduced[0]]))
    rows = make_reduction_rows(x, y, t, reduced)
    extreme, found = extreme_and_position_stages(rows, Tensor(f"{y.name}/place", rows.shape, "int64"))
    here = Call("eq", (IndexValue(rows.point[reduced[0]], "int64"), rows.of(found)))
    return Compute(
        (
            extreme,
            found,
            rows.pointwise(output_or_intermediate_tensor(y), Call("select", (here, t.const(1), t.const(0)))),
        )
    )


def _rewrite_on_matrix_rows(site: Site, rows: int) -> Lowered:
    """Return the same operator applied to the rows of a matrix."""
    x, steps = site.required(0), NodeRewriter(site)
    shape = (rows, x.elements // rows)
    flat = steps.add(site.node.op, (steps.reshape(x, shape),), shape, version=_ONE_DIMENSION, axis=1)
    steps.reshape(flat, x.shape, out=site.output)
    return steps.finish()
