"""Recurrent layers against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from roller.models.onnx.lowering_registry import Unsupported
from tests.models.onnx.lowering_oracle import agrees, node, runtime
from tests.offenders import every

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def _array(shape, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def _inputs(op, directions, *, bias=True, start=True, lengths=None, peepholes=False, t=4, b=3, i=2, h=5, layout=0):
    g = _GATES[op]
    state = (b, directions, h) if layout else (directions, b, h)
    arrays = [
        _array((b, t, i) if layout else (t, b, i)),
        _array((directions, g * h, i), 1),
        _array((directions, g * h, h), 2),
        _array((directions, 2 * g * h), 3) if bias else None,
        None if lengths is None else np.asarray(lengths, np.int32),
        _array(state, 4) if start else None,
    ]
    if op == "LSTM":
        arrays += [_array(state, 5) if start else None, _array((directions, 3 * h), 6) if peepholes else None]
    return arrays


def _agrees(op, arrays, constants=(), **attributes):
    layer = node(op, len(arrays), outputs=3 if op == "LSTM" else 2, version=14, hidden_size=5, **attributes)
    agrees(layer, arrays, constants, wanted=runtime(layer, arrays))


@every("op", ["LSTM", "GRU", "RNN"])
@every("direction", ["forward", "reverse", "bidirectional"])
@every("constants", [(), (1, 2, 3)])
def test_directions(op, direction, constants):
    _agrees(op, _inputs(op, 2 if direction == "bidirectional" else 1), constants, direction=direction)


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_without_what_is_optional(op):
    _agrees(op, _inputs(op, 1, bias=False, start=False))


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_sequences_that_end_earlier(op, direction):
    directions = 2 if direction == "bidirectional" else 1
    _agrees(op, _inputs(op, directions, lengths=[4, 2, 3]), direction=direction)
    _agrees(op, _inputs(op, directions, lengths=[4, 4, 4]), (4,), direction=direction)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("constants", [(), (1, 2, 3)])
def test_reset_behind_the_product(bias, constants):
    _agrees("GRU", _inputs("GRU", 1, bias=bias), constants, linear_before_reset=1)


def test_peepholes_and_clip():
    _agrees("LSTM", _inputs("LSTM", 2, peepholes=True), direction="bidirectional")
    _agrees("LSTM", _inputs("LSTM", 1, peepholes=True), input_forget=1)
    _agrees("GRU", _inputs("GRU", 1), clip=0.3)
    _agrees("RNN", _inputs("RNN", 1), clip=0.3)
    _agrees("LSTM", _inputs("LSTM", 1), clip=0.3)


def test_activations():
    _agrees("RNN", _inputs("RNN", 2), direction="bidirectional", activations=["LeakyRelu", "Affine"],
            activation_alpha=[0.3, 0.5], activation_beta=[0.1])  # fmt: skip
    _agrees("LSTM", _inputs("LSTM", 1), activations=["HardSigmoid", "Softsign", "Relu"], activation_alpha=[0.3])
    _agrees("GRU", _inputs("GRU", 1), activations=["Sigmoid", "ScaledTanh"], activation_alpha=[0.7],
            activation_beta=[0.9])  # fmt: skip


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_batch_first(op):
    # ONNX Runtime takes the other layout only; it is the same computation, transposed.
    arrays = _inputs(op, 2)
    layer = node(op, len(arrays), outputs=2, version=14, hidden_size=5, direction="bidirectional")
    whole, last = runtime(layer, arrays)[:2]
    turned = [a if n not in (0, 5, 6) or a is None else a.swapaxes(0, 1) for n, a in enumerate(arrays)]
    first = node(op, len(arrays), outputs=2, version=14, hidden_size=5, direction="bidirectional", layout=1)
    agrees(first, turned, wanted=[whole.transpose(2, 0, 1, 3), last.swapaxes(0, 1)])


def test_unknown_activations_are_refused():
    with pytest.raises(Unsupported, match="swish"):
        arrays = _inputs("RNN", 1)
        wanted = [np.zeros((4, 1, 3, 5), np.float32), np.zeros((1, 3, 5), np.float32)]
        agrees(node("RNN", 6, outputs=2, hidden_size=5, activations=["Swish"]), arrays, wanted=wanted)
