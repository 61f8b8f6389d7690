"""Lowerings of LSTM, GRU and simple recurrent layers, which are unrolled: one product for all inputs, then cells.

All input projections of a direction are one matrix product. Each step multiplies the state by the recurrent weights,
and one element-wise kernel then computes all new states (:mod:`roller.models.onnx.operators.recurrent_cells`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from roller.models.onnx.lowering_helpers import refuse_empty_tensors
from roller.models.onnx.lowering_registry import Lowered, Site, Unsupported, lowers
from roller.models.onnx.node_rewriter import NodeRewriter
from roller.models.onnx.operators.recurrent_cells import ACTIVATIONS
from roller_runtime.plan.program_steps import Value

#: Maximum number of steps in a sequence, each of which becomes a few steps of the plan.
_MOST_STEPS = 4096

#: Number of gates and default activations of a layer.
_KINDS = {"LSTM": (4, ("sigmoid", "tanh", "tanh")), "GRU": (3, ("sigmoid", "tanh")), "RNN": (1, ("tanh",))}


@dataclass
class _RecurrentLayer:
    """A recurrent layer that is being rewritten."""

    site: Site
    steps: NodeRewriter
    length: int
    batch: int
    hidden: int
    directions: int
    gates: int
    lengths: Value | None = None
    clocks: dict[int, Value] = field(default_factory=dict)

    @property
    def dtype(self) -> str:
        return self.site.required(0).dtype

    def part_of_direction(self, position: int, d: int, shape: tuple[int, ...]) -> Value | None:
        """Return the part of an input for one direction; ``None`` if the input is absent."""
        value = self.site.input(position)
        if value is None:
            return None
        return self.steps.part(value, d * int(np.prod(shape)), shape)

    def step_index_constant(self, t: int) -> Value | None:
        """Return the index of a step as a constant; ``None`` if all sequences have the full length."""
        if self.lengths is None:
            return None
        if t not in self.clocks:
            self.clocks[t] = self.steps.constant(np.array([t], np.int32))
        return self.clocks[t]

    def results(self, states: int) -> tuple[list[Value], Value | None]:
        """Return new values for the states of a step, and for its output if that differs from the state."""
        shape = (self.batch, self.hidden)
        made = [self.steps.value(shape, self.dtype) for _ in range(states)]
        return made, self.steps.value(shape, self.dtype) if self.lengths is not None else None


@lowers("LSTM", "GRU", "RNN")
def lower_recurrent_layer(site: Site) -> Lowered:
    """Rewrite a recurrent layer into products and cells."""
    refuse_empty_tensors(site)
    layer = _make_layer(site)
    steps, lead = layer.steps, bool(site.attribute("layout", 0))
    x = site.required(0)
    if lead:
        x = steps.add("Transpose", (x,), (layer.length, layer.batch, x.shape[2]), perm=(1, 0, 2))
    rows = steps.reshape(x, (layer.length * layer.batch, x.shape[2]))
    shown: dict[tuple[int, int], Value] = {}
    last: list[list[Value]] = []
    for d in range(layer.directions):
        backwards = site.attribute("direction", "forward") == "reverse" or d == 1
        order = range(layer.length)[:: -1 if backwards else 1]
        last.append(_append_steps_of_direction(layer, rows, d, order, shown))
    _append_outputs(layer, shown, last, lead)
    return steps.finish()


def _make_layer(site: Site) -> _RecurrentLayer:
    x, w, r = site.required(0), site.required(1), site.required(2)
    gates, _ = _KINDS[site.node.op]
    direction = site.attribute("direction", "forward")
    directions = 2 if direction == "bidirectional" else 1
    if direction not in ("forward", "reverse", "bidirectional"):
        raise Unsupported(f"direction '{direction}' is unknown")
    length, batch = x.shape[:2] if not site.attribute("layout", 0) else (x.shape[1], x.shape[0])
    hidden = r.shape[-1]
    if w.shape != (directions, gates * hidden, x.shape[2]) or r.shape != (directions, gates * hidden, hidden):
        raise Unsupported(f"weights of shapes {w.shape} and {r.shape} do not fit an input of shape {x.shape}")
    if length > _MOST_STEPS:
        raise Unsupported(f"a sequence of {length} steps is unrolled no more, {_MOST_STEPS} are the most")
    lengths, known = site.input(4), site.constant(4)
    if known is not None and (known == length).all():
        lengths = None
    return _RecurrentLayer(site, NodeRewriter(site), length, batch, hidden, directions, gates, lengths)


def _activation_attributes(site: Site, d: int) -> dict[str, Any]:
    """Return a direction's activations, their parameters and the clip, as attributes of cells."""
    _, default = _KINDS[site.node.op]
    names = [str(a).lower() for a in site.attribute("activations", ())] or list(default) * 2
    if len(names) < (d + 1) * len(default) or any(n not in ACTIVATIONS for n in names):
        raise Unsupported(f"activations {names} are not known")
    given = {k: list(site.attribute(f"activation_{k}", ())) for k in ("alpha", "beta")}
    alphas, betas = [], []
    for name in names:  # parameters are listed only for activations that have some
        _, alpha, beta = ACTIVATIONS[name]
        alphas.append(float(given["alpha"].pop(0) if alpha is not None and given["alpha"] else alpha or 0.0))
        betas.append(float(given["beta"].pop(0) if beta is not None and given["beta"] else beta or 0.0))
    mine = slice(d * len(default), (d + 1) * len(default))
    return {"activations": tuple(names[mine]), "alphas": tuple(alphas[mine]), "betas": tuple(betas[mine]),
            "clip": float(site.attribute("clip", 0.0) or 0.0)}  # fmt: skip


def _append_steps_of_direction(
    layer: _RecurrentLayer, rows: Value, d: int, order: range, shown: dict[tuple[int, int], Value]
) -> list[Value]:
    """Append the steps of one direction; store each step's output in ``shown`` and return the last states."""
    steps, site, h, g = layer.steps, layer.site, layer.hidden, layer.gates
    weights = layer.part_of_direction(1, d, (g * h, rows.shape[1]))
    recurrent_weights = layer.part_of_direction(2, d, (g * h, h))
    assert weights is not None and recurrent_weights is not None
    bias, inner = _projection_and_inner_bias(layer, d)
    projected = steps.add("Gemm", (rows, weights, bias), (rows.shape[0], g * h), transB=1)
    attributes = _activation_attributes(site, d)
    states = [_initial_state(layer, 5, d)]
    if site.node.op == "LSTM":
        states.append(_initial_state(layer, 6, d))
        attributes["input_forget"] = int(site.attribute("input_forget", 0))
    for t in order:
        now = steps.part(projected, t * layer.batch * g * h, (layer.batch, g * h))
        if site.node.op == "GRU":
            states, seen = _append_gru_step(layer, now, recurrent_weights, inner, states, t, attributes)
        else:
            states, seen = _append_lstm_or_rnn_step(layer, now, recurrent_weights, states, d, t, attributes)
        shown[t, d] = seen or states[0]
    return states


def _projection_and_inner_bias(layer: _RecurrentLayer, d: int) -> tuple[Value | None, Value | None]:
    """Return the bias of the projections, and a GRU's inner bias with ``linear_before_reset``."""
    steps, size = layer.steps, layer.gates * layer.hidden
    both = layer.part_of_direction(3, d, (2 * size,))
    if both is None:
        return None, None
    of_inputs, of_states = steps.part(both, 0, (size,)), steps.part(both, size, (size,))
    inner = None
    if layer.site.node.op == "GRU" and layer.site.attribute("linear_before_reset", 0):
        inner = steps.part(of_states, 2 * layer.hidden, (layer.hidden,))
        mask = np.ones(size, np.dtype(layer.dtype))
        mask[2 * layer.hidden :] = 0
        of_states = _combine_vectors(steps, "Mul", of_states, steps.constant(mask))
    return _combine_vectors(steps, "Add", of_inputs, of_states), inner


def _combine_vectors(steps: NodeRewriter, op: str, a: Value, b: Value) -> Value:
    """Return the sum or product of two vectors, folded if both are constant."""
    left, right = steps.constants.get(a.name), steps.constants.get(b.name)
    if left is not None and right is not None:
        return steps.constant(left + right if op == "Add" else left * right)
    return steps.add(op, (a, b), a.shape)


def _initial_state(layer: _RecurrentLayer, position: int, d: int) -> Value:
    shape = (layer.batch, layer.hidden)
    given = layer.site.input(position)
    if given is None:
        return layer.steps.constant(np.zeros(shape, np.dtype(layer.dtype)))
    if layer.site.attribute("layout", 0) and layer.directions > 1:
        given = layer.steps.add("Transpose", (given,), (layer.directions, *shape), perm=(1, 0, 2))
        return layer.steps.part(given, d * layer.batch * layer.hidden, shape)
    found = layer.part_of_direction(position, d, shape)
    assert found is not None
    return found


def _append_lstm_or_rnn_step(
    layer: _RecurrentLayer, now: Value, weights: Value, states: list[Value], d: int, t: int, attributes: dict[str, Any]
) -> tuple[list[Value], Value | None]:
    """Append a step of an LSTM or a simple layer; return its states and output."""
    total = layer.steps.add("Gemm", (states[0], weights, now), now.shape, transB=1)
    made, seen = layer.results(len(states))
    more: tuple[Value | None, ...] = ()
    if layer.site.node.op == "LSTM":
        more = (states[1], states[0], layer.part_of_direction(7, d, (3 * layer.hidden,)))
    else:
        more = (states[0],)
    inputs = (total, *more, layer.lengths, layer.step_index_constant(t))
    layer.steps.append(f"{layer.site.node.op}Cell", inputs, (*made, seen), "roller", **attributes)
    return made, seen


def _append_gru_step(
    layer: _RecurrentLayer, now: Value, weights: Value, inner: Value | None, states: list[Value], t: int,
    attributes: dict[str, Any],
) -> tuple[list[Value], Value | None]:  # fmt: skip
    """Append a step of a GRU; return its state and output."""
    steps, h, (state,) = layer.steps, layer.hidden, states
    made, seen = layer.results(1)
    clock = (layer.lengths, layer.step_index_constant(t))
    if layer.site.attribute("linear_before_reset", 0):
        product = steps.add("Gemm", (state, weights), (layer.batch, 3 * h), transB=1)
        inputs: tuple[Value | None, ...] = (now, product, state, None, inner, *clock)
    else:
        gates, fresh = steps.part(weights, 0, (2 * h, h)), steps.part(weights, 2 * h * h, (h, h))
        product = steps.add("Gemm", (state, gates), (layer.batch, 2 * h), transB=1)
        passed = steps.add("GRUReset", (now, product, state), state.shape, domain="roller", **attributes)
        last = steps.add("Gemm", (passed, fresh), (layer.batch, h), transB=1)
        inputs = (now, product, state, last, None, *clock)
    steps.append("GRUCell", inputs, (*made, seen), "roller", **attributes)
    return made, seen


def _append_outputs(
    layer: _RecurrentLayer, shown: dict[tuple[int, int], Value], last: list[list[Value]], lead: bool
) -> None:
    """Append the nodes that concatenate the steps' outputs, and those that concatenate the last states."""
    steps, d, b, h = layer.steps, layer.directions, layer.batch, layer.hidden
    outputs = (*layer.site.outputs, None, None)
    if outputs[0] is not None:
        every = [shown[t, k] for t in range(layer.length) for k in range(d)]
        joined = _concat_rows(steps, every)
        if lead:
            whole = steps.reshape(joined, (layer.length, d, b, h))
            steps.add("Transpose", (whole,), outputs[0].shape, out=outputs[0], perm=(2, 0, 1, 3))
        else:
            steps.reshape(joined, outputs[0].shape, out=outputs[0])
    for number, out in enumerate(outputs[1 : 1 + len(last[0])]):
        if out is None:
            continue
        ends = _concat_rows(steps, [states[number] for states in last])
        if lead and d > 1:
            steps.add("Transpose", (steps.reshape(ends, (d, b, h)),), out.shape, out=out, perm=(1, 0, 2))
        else:
            steps.reshape(ends, out.shape, out=out)


def _concat_rows(steps: NodeRewriter, values: list[Value]) -> Value:
    """Return values concatenated along the first dimension."""
    if len(values) == 1:
        return values[0]
    rows = sum(v.shape[0] for v in values)
    return steps.add("Concat", values, (rows, *values[0].shape[1:]), axis=0)
