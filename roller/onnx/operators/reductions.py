"""Reductions over any dimensions, and positions of extremes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto

from roller.expr import Axis, Call, Const, Index, IndexValue, Load, Scalar, Stage
from roller.model.steps import Value
from roller.onnx.building import const_of, elementwise, ended, floats_of, normal_axes, tensor, types_of, walk_axes
from roller.onnx.lowering import Compute, Lowered, Reshaped, Site, Unsupported, lowers
from roller.onnx.rewriting import Steps
from roller.ops.build import Types, indices, rows_of

_COMBINER = {"ReduceMax": "max", "ReduceMin": "min", "ReduceProd": "prod"}

#: Reductions of whole numbers that are whole numbers.
_WHOLE = ("ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceSumSquare")


def axes_given(site: Site) -> tuple[int, ...] | None:
    """Return the dimensions to reduce, by attribute or constant input; ``None`` where none is named."""
    rank = len(site.required(0).shape)
    given = site.attribute("axes")
    if given is None:
        known = site.known(1, "the list of axes") if len(site.inputs) > 1 else None
        given = None if known is None or not known.size else known.ravel()
    return normal_axes(given, rank) if given is not None and len(given) else None


def result_of(site: Site, reduced: tuple[int, ...]) -> tuple[Value, tuple[Axis, ...], tuple[Axis, ...]]:
    """Return the output, the axes it is written by, and those its input is walked by."""
    x, y = site.required(0), site.output
    kept = bool(site.attribute("keepdims", 1))
    walked = walk_axes(x.shape, reduced)
    points = tuple(Axis(f"one{d}", 1) if d in reduced else a for d, a in enumerate(walked) if kept or d not in reduced)
    if tuple(a.extent for a in points) != y.shape:
        raise Unsupported(f"the declared result has shape {y.shape}, its axes {list(reduced)} make another")
    return y, points, walked


@lowers(
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceSumSquare",
)  # fmt: skip
def reduction(site: Site) -> Lowered:
    """Lower a reduction: what it sums of an element, how, and what it makes of the sum."""
    x, y, op = site.required(0), site.output, site.node.op
    named = axes_given(site)
    if named is None and site.attribute("noop_with_empty_axes", 0):
        named = ()
    reduced = tuple(range(len(x.shape))) if named is None else named
    t = types_of(x, y)
    if x.dtype == "bool":
        return _of_booleans(site, named)
    if not t.is_float and op not in _WHOLE:
        t = floats_of(x, y)
    if not x.elements:
        return _of_nothing(op, y, t)
    if op == "ReduceLogSumExp":
        return _log_sum_exp(site, reduced, t)
    if not reduced:
        return _of_points(op, x, y, t)
    _, points, walked = result_of(site, reduced)
    element = t.load(x.name, indices(walked))
    body, ending = _parts(op, element, math.prod(x.shape[d] for d in reduced), t)
    axes = (*rows_of(points), *(a for d, a in enumerate(walked) if d in reduced))
    return Compute(ended(y, axes, indices(points), body, _COMBINER.get(op, "sum"), t, ending))


def _parts(op: str, element: Scalar, count: int, t: Types) -> tuple[Scalar, Callable[[Scalar], Scalar] | None]:
    """Return what a reduction combines of an element, and what it makes of the total."""
    body = element
    if op == "ReduceL1":
        body = Call("abs", (element,))
    elif op in ("ReduceL2", "ReduceSumSquare"):
        body = Call("mul", (element, element))
    if op == "ReduceMean":
        return body, (lambda total: Call("mul", (total, t.const(1 / count)))) if count > 1 else None
    if op in ("ReduceL2", "ReduceLogSum"):
        return body, lambda total: Call("sqrt" if op == "ReduceL2" else "log", (total,))
    return body, None


def _of_booleans(site: Site, reduced: tuple[int, ...] | None) -> Lowered:
    """Return a reduction of booleans as one of bytes."""
    steps, y = Steps(site), site.output
    number = steps.add("Cast", (site.required(0),), site.required(0).shape, "uint8", to=TensorProto.UINT8)
    named: dict[str, Any] = {} if reduced is None else {"axes": reduced}
    total = steps.add(site.node.op, (number,), y.shape, **named, keepdims=site.attribute("keepdims", 1),
                      noop_with_empty_axes=site.attribute("noop_with_empty_axes", 0))  # fmt: skip
    steps.add("Cast", (total,), y.shape, out=y, to=TensorProto.BOOL)
    return steps.done()


def _of_nothing(op: str, y: Value, t: Types) -> Lowered:
    """Return the reduction of no elements: the neutral value, as its ending makes it."""
    neutral = {"ReduceProd": 1.0, "ReduceMax": -math.inf, "ReduceMin": math.inf, "ReduceMean": math.nan,
               "ReduceLogSum": -math.inf, "ReduceLogSumExp": -math.inf}.get(op, 0.0)  # fmt: skip
    if "float" not in y.dtype and not math.isfinite(neutral):
        neutral = float(np.iinfo(y.dtype).min if op == "ReduceMax" else np.iinfo(y.dtype).max)
    return Compute((elementwise(y, lambda at: const_of(neutral, t.acc), t.acc),))


def _of_points(op: str, x: Value, y: Value, t: Types) -> Lowered:
    """Return the reduction over no dimension: every element alone."""

    def alone(at: tuple[Index, ...]) -> Scalar:
        body, ending = _parts(op, t.load(x.name, at), 1, t)
        return ending(body) if ending else body

    same = op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")
    return Reshaped() if same else Compute((elementwise(y, alone, t.acc),))


def _log_sum_exp(site: Site, reduced: tuple[int, ...], t: Types) -> Lowered:
    """Return ``log(sum(exp(x - max))) + max``, which does not overflow."""
    x = site.required(0)
    y, points, walked = result_of(site, reduced)
    if not reduced:
        return Reshaped()
    axes = (*rows_of(points), *(a for d, a in enumerate(walked) if d in reduced))
    store, element = indices(points), t.load(x.name, indices(walked))
    largest, total = tensor(y, t.acc, "max"), tensor(y, t.acc, "sum")
    shift = Load(largest.name, store)
    # A row of infinities keeps them: nothing is subtracted there, where inf - inf would be no number.
    finite = Call("lt", (Call("abs", (shift,)), t.const(math.inf)))
    shift_by = Call("select", (finite, shift, t.const(0)))
    value = Call("add", (Call("log", (Load(total.name, store),)), shift_by))
    return Compute(
        (
            Stage(largest, axes, store, element, "max", t.acc),
            Stage(total, axes, store, Call("exp", (Call("sub", (element, shift_by)),)), "sum", t.acc),
            Stage(tensor(y), rows_of(points), store, value, None, t.acc),
        )
    )


@lowers("ArgMax", "ArgMin")
def position(site: Site) -> Lowered:
    """Lower the first (or last) position of an extreme: the extreme, then the position that attains it."""
    x = site.required(0)
    (along,) = normal_axes([site.attribute("axis", 0)], len(x.shape))
    if not x.elements:
        raise Unsupported("there is no position in an empty tensor")
    y, points, walked = result_of(site, (along,))
    largest = site.node.op == "ArgMax"
    t = types_of(x, x)
    extreme, found = extreme_and_position(
        y, x, t, points, walked, along, largest=largest, last=bool(site.attribute("select_last_index", 0))
    )
    return Compute((extreme, found))


def extreme_and_position(
    y: Value, x: Value, t: Types, points: tuple[Axis, ...], walked: tuple[Axis, ...], along: int, *,
    largest: bool, last: bool, part: str = "",
) -> tuple[Stage, Stage]:  # fmt: skip
    """Return the stages of an extreme along a dimension and of where it stands; ``y`` (or a part of it) is int64."""
    axes, store = (*rows_of(points), walked[along]), indices(points)
    element = t.load(x.name, indices(walked))
    extreme = tensor(Value(y.name, tuple(a.extent for a in points)), t.acc, "extreme")
    first = Stage(extreme, axes, store, element, "max" if largest else "min", t.acc)
    hit: Scalar = Call("eq", (element, Load(extreme.name, store)))
    if (
        t.is_float
    ):  # what is not a number is the extreme, as NumPy has it; it equals nothing, and no position is invented
        hit = Call("select", (Call("isnan", (element,)), Const(1, "bool"), hit))
    where = IndexValue(indices([walked[along]])[0], "int64")
    # A position even where nothing equals the extreme: a fused operand may be rounded otherwise when it is read again.
    missing = Const(0 if last else walked[along].extent - 1, "int64")
    out = tensor(Value(y.name, extreme.shape), "int64", part)
    return first, Stage(out, axes, store, Call("select", (hit, where, missing)), "max" if last else "min", "int64")
