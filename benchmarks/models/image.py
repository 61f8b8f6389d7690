"""A small residual network over images whose size a call says: strides, padding, pooling, a mean over all points."""

from __future__ import annotations

import math
from pathlib import Path

from benchmarks.models.network import Network


def build(path: Path, width: int = 32, classes: int = 100) -> None:
    """Write a network of six convolutions; batch, height and width are left to its calls, as symbols."""
    with Network(path) as net:
        image = net.input("image", ("batch", 3, "height", "width"))
        x = _conv(net, "stem", image, 3, width, 3, stride=2)
        x = net.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
        inner = _conv(net, "block.0", x, width, width, 3)
        inner = _conv(net, "block.1", inner, width, width, 3, active=False)
        x = net.add("Relu", net.add("Add", inner, x))
        x = _conv(net, "down", x, width, 2 * width, 3, stride=2, pad=0)
        x = _conv(net, "last", x, 2 * width, 4 * width, 1, pad=0)
        mean = net.add("Flatten", net.add("GlobalAveragePool", x))
        weight = net.normal("head.weight", (4 * width, classes), 1 / math.sqrt(4 * width))
        net.output(net.add("Gemm", mean, weight, net.normal("head.bias", (classes,), 0.02)), "y", ("batch", classes))


def _conv(
    net: Network, name: str, x: str, ins: int, outs: int, window: int, stride: int = 1, pad: int = 1,
    active: bool = True,
) -> str:  # fmt: skip
    weight = net.normal(f"{name}.weight", (outs, ins, window, window), math.sqrt(2 / (ins * window * window)))
    bias = net.normal(f"{name}.bias", (outs,), 0.02)
    y = net.add("Conv", x, weight, bias, strides=[stride] * 2, pads=[pad] * 4)
    return str(net.add("Relu", y) if active else y)
