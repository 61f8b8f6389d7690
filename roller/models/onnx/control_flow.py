"""Removes If, Loop and Scan nodes.

An If with a constant condition becomes the branch that it takes; otherwise both branches are computed. Loops with a
bounded number of iterations are unrolled. This is valid because operators have no side effects, and possible if the
shapes of results do not depend on data.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from roller.models.graph.model_graph import Node
from roller.models.onnx.dynamic_shape_regions import leave_to_runtime
from roller.models.onnx.name_scope import Scope
from roller.models.onnx.tracer_interface import GraphTracer

#: Maximum number of nodes in an unrolled loop (iterations times nodes in its body).
MAX_UNROLLED = 20_000
#: Maximum number of iterations of a loop without a trip count.
MAX_ROUNDS = 1024


class _UnsupportedControlFlow(Exception):
    """Raised if a control-flow node cannot be removed; the message gives the reason."""


def is_control_flow(node: onnx.NodeProto) -> bool:
    """Return whether ``node`` is an If, Loop or Scan."""
    return node.domain in ("", "ai.onnx") and node.op_type in _RULES


def trace_control_flow(tracer: GraphTracer, node: onnx.NodeProto, inputs: tuple[str, ...], scope: Scope) -> bool:
    """Trace ``node`` if it is a control-flow node; return whether it is."""
    if not is_control_flow(node):
        return False
    rule = _RULES[node.op_type]
    label = tracer.label(node, scope)
    before = len(tracer.refused)
    try:
        results = rule(tracer, node, inputs, scope, label)
        if len(results) != len(node.output):
            raise _UnsupportedControlFlow(f"its body returns {len(results)} values where {len(node.output)} are read")
    except (_UnsupportedControlFlow, KeyError, IndexError, ValueError) as error:
        reason = str(error) if isinstance(error, _UnsupportedControlFlow) else f"its body does not fit it ({error!r})"
        inside, tracer.refused[before:] = tracer.refused[before:], []
        if leave_to_runtime(tracer, node, inputs, scope, label, reason):
            return True
        tracer.refused += inside
        if not inside:  # otherwise a refusal within the body is more specific
            tracer.refuse(Node(node.op_type, inputs, (), {}, label), reason)
        tracer.forget(node, scope)
        return True
    for name, result in zip(node.output, results, strict=True):
        if name in scope.used:
            tracer.alias(scope, name, result)
    return True


def _trace_body(
    tracer: GraphTracer, node: onnx.NodeProto, attribute: str, scope: Scope, prefix: str, given: Sequence[str]
) -> list[str]:
    """Trace the body in ``attribute`` with the inputs ``given`` (unique names); return the names of its results."""
    body = _body_graph(node, attribute)
    inner = Scope({}, scope, prefix)
    if len(body.input) > len(given):
        raise _UnsupportedControlFlow(f"its body takes {len(body.input)} values where {len(given)} are given")
    for entry, name in zip(body.input, given, strict=False):
        inner.names[entry.name] = name
    for tensor in body.initializer:
        tracer.constant(tracer.define(inner, tensor.name), tracer.loaded.array(tensor))
    wanted = [o.name for o in body.output]
    tracer.run(body.node, inner, wanted)
    found = [inner.find(n) for n in wanted]
    if any(f is None for f in found):
        raise _UnsupportedControlFlow("its body returns what it does not compute")
    return [f for f in found if f is not None]


def _body_graph(node: onnx.NodeProto, attribute: str) -> onnx.GraphProto:
    found: onnx.GraphProto | None = next((a.g for a in node.attribute if a.name == attribute), None)
    if found is None:
        raise _UnsupportedControlFlow(f"its body '{attribute}' is missing")
    return found


def _trace_if(
    tracer: GraphTracer, node: onnx.NodeProto, inputs: tuple[str, ...], scope: Scope, label: str
) -> list[str]:
    """Return the results of the branch that a constant condition takes; for other conditions, select at run time."""
    condition = tracer.constants.get(inputs[0])
    if condition is not None:
        taken = "then" if bool(condition.reshape(-1)[0]) else "else"
        return _trace_body(tracer, node, f"{taken}_branch", scope, f"{label}/{taken}/", ())
    both = [_trace_body(tracer, node, f"{t}_branch", scope, f"{label}/{t}/", ()) for t in ("then", "else")]
    return [
        _select_by_condition(tracer, inputs[0], one, other, "its branches") for one, other in zip(*both, strict=True)
    ]


def _select_by_condition(tracer: GraphTracer, condition: str, one: str, other: str, what: str) -> str:
    """Return the name of a value that is ``one`` if the condition holds, otherwise ``other``."""
    if one == other:
        return one
    if one in tracer.unknown or other in tracer.unknown:
        raise _UnsupportedControlFlow(f"{what} hold what cannot be compiled")
    if tracer.is_loose(one) or tracer.is_loose(other):
        raise _UnsupportedControlFlow(f"{what} return values whose shape is known only at run time")
    a, b = tracer.values[one], tracer.values[other]
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        raise _UnsupportedControlFlow(
            f"{what} return {a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)}, and only run time tells which one"
        )
    if tracer.values[condition].shape:
        condition = tracer.emit("Squeeze", [condition])
    return tracer.emit("Where", [condition, one, other])


def _unroll_loop(
    tracer: GraphTracer, node: onnx.NodeProto, inputs: tuple[str, ...], scope: Scope, label: str
) -> list[str]:
    """Unroll a loop; once a run-time condition is false, the state keeps its values."""
    limit, going, state = _loop_trip_count(tracer, inputs[0]), inputs[1], list(inputs[2:])
    body = _body_graph(node, "body")
    scans: list[list[str]] = [[] for _ in range(len(body.output) - 1 - len(state))]
    going = going or _add_constant_with_fresh_name(tracer, f"{label}/going", np.array(True))
    live = ""  # the run-time value that tells whether the loop still runs
    turn = 0
    while limit is None or turn < limit:
        known = tracer.constants.get(going)
        if known is not None and not bool(known.reshape(-1)[0]):
            break
        if known is None:
            if limit is None:
                raise _UnsupportedControlFlow("how often it runs is computed at run time")
            if scans:
                raise _UnsupportedControlFlow("how many results it collects is computed at run time")
            live = going if not live else tracer.emit("And", [live, going])
        if limit is None and turn >= MAX_ROUNDS:
            raise _UnsupportedControlFlow(
                f"it does not say how often it runs, and does not end within {MAX_ROUNDS} rounds"
            )
        if (turn + 1) * max(len(body.node), 1) > MAX_UNROLLED:
            raise _UnsupportedControlFlow(f"unrolled it has more than {MAX_UNROLLED} nodes")
        count = _add_constant_with_fresh_name(tracer, f"{label}/turn", np.array(turn, np.int64))
        found = _trace_body(tracer, node, "body", scope, f"{label}/{turn}/", [count, going, *state])
        going, new = found[0], found[1 : 1 + len(state)]
        if any(n in tracer.unknown for n in found):
            raise _UnsupportedControlFlow("its body holds what cannot be compiled")
        state = (
            [_select_by_condition(tracer, live, n, o, "its rounds") for n, o in zip(new, state, strict=True)]
            if live
            else new
        )
        for scan, name in zip(scans, found[1 + len(state) :], strict=True):
            scan.append(name)
        turn += 1
    return state + [_stack_values(tracer, s, 0) for s in scans]


def _loop_trip_count(tracer: GraphTracer, name: str) -> int | None:
    """Return the constant trip count of a loop, or ``None`` if it has none."""
    if not name:
        return None
    array = tracer.constants.get(name)
    if array is None:
        raise _UnsupportedControlFlow("how often it runs is computed at run time")
    return int(array.reshape(-1)[0])


def _unroll_scan(
    tracer: GraphTracer, node: onnx.NodeProto, inputs: tuple[str, ...], scope: Scope, label: str
) -> list[str]:
    """Unroll a Scan; its length is a static dimension of its sequences."""
    if tracer.loaded.opsets.get("", 0) < 9:
        raise _UnsupportedControlFlow(
            "the Scan of operator set 8 is not read. Convert the model (onnx.version_converter)"
        )
    details = {a.name: list(a.ints) for a in node.attribute if a.type == onnx.AttributeProto.INTS}
    count = next((int(a.i) for a in node.attribute if a.name == "num_scan_inputs"), 0)
    if not 0 < count <= len(inputs):
        raise _UnsupportedControlFlow(
            f"expected at least one sequence, got num_scan_inputs {count} of {len(inputs)} inputs"
        )
    body = _body_graph(node, "body")
    state, sources = list(inputs[: len(inputs) - count]), inputs[len(inputs) - count :]
    collected = len(body.output) - len(state)
    axes, out_axes = details.get("scan_input_axes", [0] * count), details.get("scan_output_axes", [0] * collected)
    back, out_back = (
        details.get("scan_input_directions", [0] * count),
        details.get("scan_output_directions", [0] * collected),
    )
    axes = [a % len(tracer.values[s].shape) for a, s in zip(axes, sources, strict=True)]
    lengths = {tracer.values[s].shape[a] for s, a in zip(sources, axes, strict=True)}
    if len(lengths) != 1:
        raise _UnsupportedControlFlow(f"its sequences have different lengths: {sorted(lengths)}")
    (length,) = lengths
    if length * max(len(body.node), 1) > MAX_UNROLLED:
        raise _UnsupportedControlFlow(f"unrolled it has more than {MAX_UNROLLED} nodes")
    scans: list[list[str]] = [[] for _ in range(collected)]
    for turn in range(length):
        given = list(state)
        for source, axis, reverse in zip(sources, axes, back, strict=True):
            at = np.array(length - 1 - turn if reverse else turn, np.int64)
            given.append(
                tracer.emit("Gather", [source, _add_constant_with_fresh_name(tracer, f"{label}/turn", at)], axis=axis)
            )
        found = _trace_body(tracer, node, "body", scope, f"{label}/{turn}/", given)
        if any(n in tracer.unknown for n in found):
            raise _UnsupportedControlFlow("its body holds what cannot be compiled")
        state = found[: len(state)]
        for scan, name in zip(scans, found[len(state) :], strict=True):
            scan.append(name)
    ordered = [s[::-1] if r else s for s, r in zip(scans, out_back, strict=True)]
    return state + [_stack_values(tracer, s, a) for s, a in zip(ordered, out_axes, strict=True)]


def _stack_values(tracer: GraphTracer, names: Sequence[str], axis: int) -> str:
    """Stack values along a new axis; return the name of the result."""
    if not names:
        raise _UnsupportedControlFlow("it runs zero times, so the shape of its collected results is unknown")
    if any(map(tracer.is_loose, names)):
        raise _UnsupportedControlFlow("the shape of its collected results is known only at run time")
    shape = tracer.values[names[0]].shape
    axis %= len(shape) + 1
    target = np.array([*shape[:axis], 1, *shape[axis:]], np.int64)
    wide = [tracer.emit("Reshape", [n, _add_constant_with_fresh_name(tracer, "loop:shape", target)]) for n in names]
    if any(w in tracer.unknown for w in wide):
        raise _UnsupportedControlFlow("its rounds return different shapes")
    return tracer.emit("Concat", wide, axis=axis)


def _add_constant_with_fresh_name(tracer: GraphTracer, base: str, array: np.ndarray) -> str:
    name = tracer.fresh(base)
    tracer.constant(name, array)
    return name


_RULES = {"If": _trace_if, "Loop": _unroll_loop, "Scan": _unroll_scan}
