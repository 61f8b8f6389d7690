"""Recurrent layers with everything ONNX lets them have."""

from __future__ import annotations

import numpy as np
from onnx import helper

from tests.models.onnx.families.making import FamilyMaker

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_COUNT = {"LSTM": 3, "GRU": 2, "RNN": 1}
_ACTIVATIONS = ["Tanh", "Sigmoid", "Relu", "HardSigmoid", "Softsign", "Softplus", "Elu", "LeakyRelu",
                "ThresholdedRelu", "Affine", "ScaledTanh"]  # fmt: skip
#: What takes an alpha, and a beta; ONNX Runtime's defaults are not ONNX's for all, so they are given.
_ALPHA = {"HardSigmoid": 0.3, "Elu": 0.7, "LeakyRelu": 0.1, "ThresholdedRelu": 0.25, "Affine": 0.5, "ScaledTanh": 1.5}
_BETA = {"HardSigmoid": 0.4, "Affine": 0.25, "ScaledTanh": 0.5}


def layer(m: FamilyMaker) -> None:
    """Add a layer; one with the batch first is judged by the same layer between transposes."""
    op = m.one(list(_GATES))
    length, batch, size, hidden = m.one([1, 2, 3, 5]), m.one([1, 2, 3]), m.one([1, 2, 4]), m.one([1, 2, 3])
    direction = m.one(["forward", "reverse", "bidirectional"])
    d, g = 2 if direction == "bidirectional" else 1, _GATES[op]
    lead = m.opset >= 14 and m.flip(0.35)
    states = (batch, d, hidden) if lead else (d, batch, hidden)
    inputs = [
        m.value((batch, length, size) if lead else (length, batch, size)),
        m.value((d, g * hidden, size), constant=m.flip(0.8)),
        m.put(m.reals((d, g * hidden, hidden)) * np.float32(0.4), constant=m.flip(0.8)),  # so that nothing explodes
        m.value((d, 2 * g * hidden), constant=m.flip(0.8)) if m.flip(0.6) else "",
        m.put(m.rng.integers(1, length + 1, batch).astype(np.int32)) if m.flip(0.4) else "",
        m.value(states) if m.flip() else "",
    ]
    at = {"hidden_size": hidden, "direction": direction} | _attributes(m, op, d)
    if op == "LSTM":
        inputs += [m.value(states) if m.flip() else "", m.value((d, 3 * hidden)) if m.flip(0.4) else ""]
    while not inputs[-1]:
        inputs.pop()
    wanted = [m.flip(0.8) for _ in range(3 if op == "LSTM" else 2)]
    wanted = wanted if any(wanted) else [True, *wanted[1:]]
    if not lead:
        m.node(op, inputs, wanted, **at)
        return
    names = m.node(op, inputs, wanted, judged=False, layout=1, **at)
    _plainer(m, op, inputs, names, at)


def _attributes(m: FamilyMaker, op: str, d: int) -> dict:
    at: dict = {}
    if m.flip():
        clips = m.flip()
        at |= {"clip": 2.0} if clips else {}
        # ONNX Runtime's Softplus is infinite where it need not be.
        names = [m.one([a for a in _ACTIVATIONS if clips or a != "Softplus"]) for _ in range(_COUNT[op] * d)]
        at |= {"activations": names}
        alpha, beta = [_ALPHA[n] for n in names if n in _ALPHA], [_BETA[n] for n in names if n in _BETA]
        at |= ({"activation_alpha": alpha} if alpha else {}) | ({"activation_beta": beta} if beta else {})
    elif m.flip(0.3):
        at["clip"] = m.one([0.25, 0.75, 2.0])
    if op == "LSTM" and m.flip(0.2):
        at["input_forget"] = 1
    if op == "GRU" and m.flip():
        at["linear_before_reset"] = 1
    return at


def _plainer(m: FamilyMaker, op: str, inputs: list[str], names: list[str], at: dict) -> None:
    """Judge a layer whose batch comes first by one whose time does, which ONNX Runtime has."""
    turned = [f"{names[-1]}_in{k}" if n and k in (0, 5, 6) else n for k, n in enumerate(inputs)]
    for a, b in zip(inputs, turned, strict=True):
        if a != b:
            m.judge("Transpose", [a], [b], perm=[1, 0, 2])
    m.judged.append(helper.make_node(op, turned, [f"{n}_out" if n else "" for n in names], **at))
    for k, n in enumerate(names):
        if n:
            m.judge("Transpose", [f"{n}_out"], [n], perm=[1, 0, 2] if k else [2, 0, 1, 3])


FUNCTIONS = (layer,)
