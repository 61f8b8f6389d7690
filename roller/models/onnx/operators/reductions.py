"""Lowerings of reductions over any dimensions and of the positions of maxima and minima."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx import TensorProto

from roller.expr import Call, Index, Scalar
from roller.models.onnx.build_elementwise_stages import literal
from roller.models.onnx.lowering_helpers import (
    accumulation_types,
    elementwise_stage,
    float_accumulation_types,
    make_reduction_rows,
    normalise_axes,
    output_or_intermediate_tensor,
    reduction_with_ending,
)
from roller.models.onnx.lowering_registry import Compute, InputView, Lowered, Site, Unsupported, lowers
from roller.models.onnx.node_rewriter import NodeRewriter
from roller.ops.operator_argument_checks import OperatorDtypes
from roller.ops.reduce import COMBINERS, extreme_and_position_stages, summand_and_ending
from roller.ops.tensor_rows import TensorRows
from roller_runtime.plan.program_steps import Value

#: Kind of each operator in :func:`roller.ops.reduce.summand_and_ending`.
_KINDS = {
    "ReduceSum": "sum", "ReduceMean": "mean", "ReduceMax": "max", "ReduceMin": "min", "ReduceProd": "prod",
    "ReduceL1": "l1", "ReduceL2": "l2", "ReduceLogSum": "log_sum", "ReduceSumSquare": "sum_square",
}  # fmt: skip
#: Reductions that support integers.
_WHOLE = ("ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceSumSquare")


def reduced_axes(site: Site) -> tuple[int, ...] | None:
    """Return the dimensions to reduce, from an attribute or a constant input; ``None`` if none are given."""
    rank = len(site.required(0).shape)
    given = site.attribute("axes")
    if given is None:
        known = site.known(1, "the list of axes") if len(site.inputs) > 1 else None
        given = None if known is None or not known.size else known.ravel()
    return normalise_axes(given, rank) if given is not None and len(given) else None


def _reduction_rows_of_site(site: Site, reduced: tuple[int, ...], t: OperatorDtypes) -> TensorRows:
    """Return the rows that a site reduces."""
    rows = make_reduction_rows(site.required(0), site.output, t, reduced, keepdims=bool(site.attribute("keepdims", 1)))
    if rows.shape != site.output.shape:
        raise Unsupported(f"the declared result has shape {site.output.shape}, its axes {list(reduced)} make another")
    return rows


@lowers(*_KINDS, "ReduceLogSumExp")
def lower_reduction(site: Site) -> Lowered:
    """Lower ``ReduceSum`` and the other reductions over dimensions."""
    x, y, op = site.required(0), site.output, site.node.op
    named = reduced_axes(site)
    if named is None and site.attribute("noop_with_empty_axes", 0):
        named = ()
    reduced = tuple(range(len(x.shape))) if named is None else named
    t = accumulation_types(x, y)
    if x.dtype == "bool":
        return _reduce_booleans(site, named)
    if not t.is_float and op not in _WHOLE:
        t = float_accumulation_types(x, y)
    if not x.elements:
        return _reduce_no_elements(op, y, t)
    if op == "ReduceLogSumExp":
        return _reduce_log_sum_exp(site, reduced, t)
    if not reduced:
        return _reduce_no_dimension(op, x, y, t)
    rows = _reduction_rows_of_site(site, reduced, t)
    kind = _KINDS[op]
    body, ending = summand_and_ending(kind, rows.element, rows.count, t)
    return Compute(reduction_with_ending(y, rows.axes, rows.at, body, COMBINERS.get(kind, "sum"), t, ending))


def _reduce_booleans(site: Site, reduced: tuple[int, ...] | None) -> Lowered:
    """Return nodes that reduce booleans as bytes."""
    steps, y = NodeRewriter(site), site.output
    number = steps.add("Cast", (site.required(0),), site.required(0).shape, "uint8", to=TensorProto.UINT8)
    named: dict[str, Any] = {} if reduced is None else {"axes": reduced}
    total = steps.add(site.node.op, (number,), y.shape, **named, keepdims=site.attribute("keepdims", 1),
                      noop_with_empty_axes=site.attribute("noop_with_empty_axes", 0))  # fmt: skip
    steps.add("Cast", (total,), y.shape, out=y, to=TensorProto.BOOL)
    return steps.finish()


def _reduce_no_elements(op: str, y: Value, t: OperatorDtypes) -> Lowered:
    """Return the reduction of no elements: the operator's neutral value, with its ending applied."""
    neutral = {"ReduceProd": 1.0, "ReduceMax": -math.inf, "ReduceMin": math.inf, "ReduceMean": math.nan,
               "ReduceLogSum": -math.inf, "ReduceLogSumExp": -math.inf}.get(op, 0.0)  # fmt: skip
    if "float" not in y.dtype and not math.isfinite(neutral):
        neutral = float(np.iinfo(y.dtype).min if op == "ReduceMax" else np.iinfo(y.dtype).max)
    return Compute((elementwise_stage(y, lambda at: literal(neutral, t.acc), t.acc),))


def _reduce_no_dimension(op: str, x: Value, y: Value, t: OperatorDtypes) -> Lowered:
    """Return the reduction over no dimensions, which applies to each element separately."""

    def alone(at: tuple[Index, ...]) -> Scalar:
        body, ending = summand_and_ending(_KINDS[op], t.load(x.name, at), 1, t)
        return ending(body) if ending else body

    same = op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")
    return InputView() if same else Compute((elementwise_stage(y, alone, t.acc),))


def _reduce_log_sum_exp(site: Site, reduced: tuple[int, ...], t: OperatorDtypes) -> Lowered:
    """Return ``log(sum(exp(x - max))) + max``, which does not overflow."""
    rows = _reduction_rows_of_site(site, reduced, t)
    if not reduced:
        return InputView()
    largest = rows.reduction("max", rows.element, "max")
    # An infinite maximum is not subtracted, because inf - inf is NaN.
    finite = Call("lt", (Call("abs", (rows.of(largest),)), t.const(math.inf)))
    shift = Call("select", (finite, rows.of(largest), t.const(0)))
    total = rows.reduction("sum", Call("exp", (Call("sub", (rows.element, shift)),)))
    value = Call("add", (Call("log", (rows.of(total),)), shift))
    return Compute((largest, total, rows.per_row_stage(output_or_intermediate_tensor(site.output), value)))


@lowers("ArgMax", "ArgMin")
def lower_arg_extreme(site: Site) -> Lowered:
    """Lower ``ArgMax`` and ``ArgMin``: one stage finds the extreme, the next its first or last position."""
    x = site.required(0)
    (along,) = normalise_axes([site.attribute("axis", 0)], len(x.shape))
    if not x.elements:
        raise Unsupported("there is no position in an empty tensor")
    rows = _reduction_rows_of_site(site, (along,), accumulation_types(x, x))
    largest, last = site.node.op == "ArgMax", bool(site.attribute("select_last_index", 0))
    return Compute(
        extreme_and_position_stages(
            rows, output_or_intermediate_tensor(site.output, "int64"), largest=largest, last=last
        )
    )
