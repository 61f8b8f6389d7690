"""Lowerings of a recurrent layer's steps: element-wise kernels between the products, which write all states.

These operators are Roller's own (domain ``roller``); :mod:`roller.models.onnx.operators.recurrent` creates them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from roller.expr import Axis, Call, Cast, Const, Index, Load, Scalar, Stage, axis_index
from roller.models.onnx.lowering_helpers import float_accumulation_types, output_or_intermediate_tensor
from roller.models.onnx.lowering_registry import Compute, Lowered, Site, Unsupported, lowers
from roller.ops.elementwise_functions import ELEMENT_FUNCTIONS
from roller.ops.operator_argument_checks import OperatorDtypes
from roller_runtime.plan.program_steps import Value


def _activation_ignoring_parameters(name: str) -> Callable[..., Scalar]:
    return lambda c, x, a, b: ELEMENT_FUNCTIONS[name].build(c, x)


def _hard_sigmoid_scalar(c: Callable[[float], Const], x: Scalar, alpha: float, beta: float) -> Scalar:
    line = Call("add", (Call("mul", (c(alpha), x)), c(beta)))
    return Call("min", (Call("max", (line, c(0))), c(1)))


def _elu_scalar(c: Callable[[float], Const], x: Scalar, alpha: float, beta: float) -> Scalar:
    return Call("select", (Call("lt", (x, c(0))), Call("mul", (c(alpha), Call("expm1", (x,)))), x))


#: For each activation, the function of (literal, x, alpha, beta) that builds its scalar expression, and the default
#: parameters (``None`` if it has no such parameter).
ACTIVATIONS: dict[str, tuple[Callable[..., Scalar], float | None, float | None]] = {
    "sigmoid": (_activation_ignoring_parameters("sigmoid"), None, None),
    "tanh": (_activation_ignoring_parameters("tanh"), None, None),
    "relu": (_activation_ignoring_parameters("relu"), None, None),
    "softplus": (_activation_ignoring_parameters("softplus"), None, None),
    "softsign": (lambda c, x, a, b: Call("div", (x, Call("add", (c(1), Call("abs", (x,)))))), None, None),
    "hardsigmoid": (_hard_sigmoid_scalar, 0.2, 0.5),
    "elu": (_elu_scalar, 1.0, None),
    "leakyrelu": (lambda c, x, a, b: ELEMENT_FUNCTIONS["leaky_relu"].build(c, x, a), 0.01, None),
    "thresholdedrelu": (lambda c, x, a, b: Call("select", (Call("lt", (c(a), x)), x, c(0))), 1.0, None),
    "affine": (lambda c, x, a, b: Call("add", (Call("mul", (c(a), x)), c(b))), 1.0, 0.0),
    "scaledtanh": (lambda c, x, a, b: Call("mul", (c(a), Call("tanh", (Call("mul", (c(b), x)),)))), 1.0, 1.0),
}


@dataclass(frozen=True)
class CellBuilder:
    """Builds the scalar expressions of a cell."""

    site: Site
    t: OperatorDtypes
    hidden: int

    @classmethod
    def of(cls, site: Site) -> CellBuilder:
        """Return the builder for a site whose first output is a state, shape ``(batch, hidden)``."""
        y = site.output
        return cls(site, float_accumulation_types(y, y), y.shape[1])

    def activate(self, number: int, x: Scalar, clips: bool = True) -> Scalar:
        """Return activation ``number`` of ``x``, which is clipped first if ``clips`` is set and the cell clips."""
        clip = float(self.site.attribute("clip", 0.0)) if clips else 0.0
        if clip > 0:
            x = Call("min", (Call("max", (x, self.t.const(-clip))), self.t.const(clip)))
        name, alpha, beta = (self.site.attribute(a)[number] for a in ("activations", "alphas", "betas"))
        return ACTIVATIONS[name][0](self.t.const, x, alpha, beta)

    def gate(self, position: int, number: int) -> Scalar:
        """Return an element of gate ``number`` in an input, shape ``(batch, gates * hidden)``."""
        return self.t.load(self.site.required(position).name, (axis_index("b"), self._at(number)))

    def state(self, position: int) -> Scalar:
        """Return an element of an input, shape ``(batch, hidden)``."""
        return self.t.load(self.site.required(position).name, (axis_index("b"), axis_index("j")))

    def weight(self, position: int, number: int) -> Scalar | None:
        """Return an element of part ``number`` in an input, shape ``(parts * hidden,)``; ``None`` if it is absent."""
        value = self.site.input(position)
        return None if value is None else self.t.load(value.name, (self._at(number),))

    def _at(self, number: int) -> Index:
        return axis_index("j", 1, number * self.hidden)

    def active(self, lengths: int) -> Scalar | None:
        """Return the condition that a sequence is long enough to have this step; ``None`` if all sequences are."""
        length, step = self.site.input(lengths), self.site.input(lengths + 1)
        if length is None or step is None:
            return None
        now = Load(step.name, (Index(),))
        return Call("lt", (Cast("int32", now), Cast("int32", Load(length.name, (axis_index("b"),)))))

    def stage(self, out: Value, body: Scalar) -> Stage:
        """Return the stage that writes ``body`` to the result ``out``."""
        axes = (Axis("b", out.shape[0]), Axis("j", out.shape[1]))
        return Stage(
            output_or_intermediate_tensor(out), axes, (axis_index("b"), axis_index("j")), body, None, self.t.acc
        )

    def results(self, states: Sequence[tuple[Value, Scalar, Scalar]], shown: Value | None, lengths: int) -> Compute:
        """Return the stages that write the states ``(value, new, old)``; ``shown`` receives the last of them."""
        # Sequences that have ended keep their states and output zero.
        active = self.active(lengths)
        stages = []
        for value, new, old in states:
            stages.append(self.stage(value, new if active is None else Call("select", (active, new, old))))
        if shown is not None:
            if active is None:
                raise Unsupported("a cell has no separate output where all sequences are equally long")
            last = self.t.cast(Load(states[-1][0].name, (axis_index("b"), axis_index("j"))))
            stages.append(self.stage(shown, Call("select", (active, last, self.t.const(0)))))
        return Compute(tuple(stages))


def _outputs_padded_with_none(site: Site, count: int) -> tuple[Value | None, ...]:
    return (*site.outputs, None, None, None)[:count]


def _add_scalars(a: Scalar, b: Scalar) -> Scalar:
    return Call("add", (a, b))


def _multiply_scalars(a: Scalar, b: Scalar) -> Scalar:
    return Call("mul", (a, b))


@lowers("LSTMCell", domain="roller")
def lower_lstm_cell(site: Site) -> Lowered:
    """Lower ``LSTMCell``: ``h``, ``c`` and ``y`` from gates ``iofc``, cell, state, peepholes, lengths and step."""
    cell = CellBuilder.of(site)
    h, c, y = _outputs_padded_with_none(site, 3)
    assert h is not None and c is not None
    before, old = cell.state(1), cell.state(2)
    here = cell.t.cast(Load(c.name, (axis_index("b"), axis_index("j"))))

    def gate(number: int, peeped: Scalar) -> Scalar:
        total, peephole = cell.gate(0, number), cell.weight(3, number)
        return cell.activate(0, total if peephole is None else _add_scalars(total, _multiply_scalars(peephole, peeped)))

    enter = gate(0, before)
    if site.attribute("input_forget", 0):
        keep: Scalar = Call("sub", (cell.t.const(1), enter))
    else:
        keep = gate(2, before)
    fresh = _add_scalars(_multiply_scalars(keep, before), _multiply_scalars(enter, cell.activate(1, cell.gate(0, 3))))
    # ONNX Runtime clips the inputs of gates, not the cell.
    shows = _multiply_scalars(gate(1, here), cell.activate(2, here, clips=False))
    return cell.results(((c, fresh, before), (h, shows, old)), y, 4)


@lowers("RNNCell", domain="roller")
def lower_rnn_cell(site: Site) -> Lowered:
    """Lower ``RNNCell``, a step of a simple layer: ``h`` and ``y`` from sum, state, lengths and step."""
    cell = CellBuilder.of(site)
    h, y = _outputs_padded_with_none(site, 2)
    assert h is not None
    return cell.results(((h, cell.activate(0, cell.gate(0, 0)), cell.state(1)),), y, 2)


@lowers("GRUReset", domain="roller")
def lower_gru_reset(site: Site) -> Lowered:
    """Lower ``GRUReset``: the state times the reset gate, from projections ``zrh``, product ``zr`` and state."""
    cell = CellBuilder.of(site)
    gate = cell.activate(0, _add_scalars(cell.gate(0, 1), cell.gate(1, 1)))
    return Compute((cell.stage(site.output, _multiply_scalars(gate, cell.state(2))),))


@lowers("GRUCell", domain="roller")
def lower_gru_cell(site: Site) -> Lowered:
    """Lower ``GRUCell``, a step of a GRU with the results ``h`` and ``y``."""
    # Inputs: projections ``zrh``, product ``zr`` (``zrh`` with linear_before_reset), state, product ``h`` or absent,
    # the bias of that product, lengths, step.
    cell = CellBuilder.of(site)
    h, y = _outputs_padded_with_none(site, 2)
    assert h is not None
    update = cell.activate(0, _add_scalars(cell.gate(0, 0), cell.gate(1, 0)))
    if site.input(3) is not None:
        inner = cell.gate(3, 0)
    else:
        inner, bias = cell.gate(1, 2), cell.weight(4, 0)
        inner = inner if bias is None else _add_scalars(inner, bias)
        inner = _multiply_scalars(cell.activate(0, _add_scalars(cell.gate(0, 1), cell.gate(1, 1))), inner)
    new = cell.activate(1, _add_scalars(cell.gate(0, 2), inner))
    old = cell.state(2)
    mixed = _add_scalars(_multiply_scalars(Call("sub", (cell.t.const(1), update)), new), _multiply_scalars(update, old))
    return cell.results(((h, mixed, old),), y, 5)
