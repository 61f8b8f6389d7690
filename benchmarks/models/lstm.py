"""The LSTM of the Roller paper: ten layers of width 256 over a hundred steps, as operators and unrolled."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.models.network import Network


@dataclass(frozen=True)
class Lstm:
    """Sizes; ``unrolled`` writes every step of every layer as matrix products and element-wise functions."""

    layers: int = 10
    steps: int = 100
    width: int = 256
    unrolled: bool = False


OPERATOR, UNROLLED = Lstm(), Lstm(unrolled=True)


def build(path: Path, batch: int, size: Lstm = OPERATOR) -> None:
    """Write the network: a sequence ``[steps, batch, width]`` in, that of the last layer out.

    Both forms have the same weights for the same seed, so they compute the same.
    """
    with Network(path) as net:
        shape = (size.steps, batch, size.width)
        x = net.input("x", shape)
        weights = [_draw(net, size) for _ in range(size.layers)]
        y = _unrolled(net, size, x, batch, weights) if size.unrolled else _operators(net, x, weights)
        net.output(y, "y", shape)


def _draw(net: Network, size: Lstm) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return input weights, recurrent weights ``[4 * width, width]`` and bias, gates in ONNX's order i, o, f, c."""
    shape, scale = (4 * size.width, size.width), np.float32(1.5 / math.sqrt(size.width))
    w, r = (net.random.standard_normal(shape, np.float32) * scale for _ in range(2))
    return w, r, net.random.standard_normal(4 * size.width, np.float32) * np.float32(0.1)


def _operators(net: Network, x: str, weights: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> str:
    for n, (w, r, b) in enumerate(weights):
        names = (
            net.constant(f"layer{n}.w", w[None]),
            net.constant(f"layer{n}.r", r[None]),
            net.constant(f"layer{n}.b", np.concatenate([b, np.zeros_like(b)])[None]),
        )
        y = net.add("LSTM", x, *names, hidden_size=r.shape[1], outputs=1)
        x = net.add("Squeeze", y, net.integers(1))
    return x


def _unrolled(
    net: Network, size: Lstm, x: str, batch: int, weights: list[tuple[np.ndarray, np.ndarray, np.ndarray]]
) -> str:
    parts = net.add("Split", x, net.integers(*[1] * size.steps), axis=0, outputs=size.steps)
    steps = [net.add("Squeeze", p, net.integers(0)) for p in ((parts,) if size.steps == 1 else parts)]
    start = net.constant("start", np.zeros((batch, size.width), np.float32))
    for n, (w, r, b) in enumerate(weights):
        held = (
            net.constant(f"layer{n}.w", w.T),
            net.constant(f"layer{n}.r", r.T),
            net.constant(f"layer{n}.b", b),
        )
        h = c = start
        for t, value in enumerate(steps):
            h, c = _cell(net, value, h, c, held)
            steps[t] = h
    rows = [net.add("Unsqueeze", h, net.integers(0)) for h in steps]
    return str(net.add("Concat", *rows, axis=0))


def _cell(net: Network, x: str, h: str, c: str, held: tuple[str, str, str]) -> tuple[str, str]:
    w, r, b = held
    gates = net.add("Add", net.add("Add", net.add("MatMul", x, w), net.add("MatMul", h, r)), b)
    into, out, forget, cell = net.add("Split", gates, axis=1, outputs=4)
    kept = net.add("Mul", net.add("Sigmoid", forget), c)
    c = net.add("Add", kept, net.add("Mul", net.add("Sigmoid", into), net.add("Tanh", cell)))
    return net.add("Mul", net.add("Sigmoid", out), net.add("Tanh", c)), c
