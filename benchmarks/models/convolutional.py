"""What convolutional networks are made of: convolution and batch norm, activations, pooling."""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchmarks.models.network import Network


@dataclass(frozen=True)
class Image:
    """A value ``[batch, channels, side, side]``."""

    name: str
    channels: int
    side: int


def conv_norm(
    net: Network, name: str, x: Image, channels: int, kernel: int = 1, stride: int = 1, groups: int = 1,
    gain: float = 1.0, dilation: int = 1,
) -> Image:  # fmt: skip
    """Add Conv without bias, padded by half its window, and BatchNormalization.

    The window's elements are ``dilation`` apart.
    ``gain`` is the standard deviation of the result, for normal inputs of standard deviation 1.
    """
    fan_in = x.channels // groups * kernel * kernel
    weight = net.normal(f"{name}.weight", (channels, x.channels // groups, kernel, kernel), math.sqrt(1 / fan_in))
    shape = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2 * dilation] * 4}
    gaps = {"dilations": [dilation] * 2} if dilation > 1 else {}
    y = net.add("Conv", x.name, weight, group=groups, **shape, **gaps)
    return Image(norm(net, name, y, channels, gain), channels, -(-x.side // stride))


def norm(net: Network, name: str, x: str, channels: int, gain: float = 1.0) -> str:
    """Add BatchNormalization with the statistics of a trained network: means near 0, variances near 1."""
    return str(net.add(
        "BatchNormalization", x,
        net.normal(f"{name}.norm.weight", (channels,), 0.1 * gain, mean=gain),
        net.normal(f"{name}.norm.bias", (channels,), 0.1),
        net.normal(f"{name}.norm.mean", (channels,), 0.1),
        net.uniform(f"{name}.norm.variance", (channels,), 0.7, 1.3),
        epsilon=1e-3,
    ))  # fmt: skip


def relu(net: Network, x: Image, six: bool = False) -> Image:
    """Add Relu, or Clip to ``[0, 6]``."""
    y = net.add("Clip", x.name, net.number(0.0), net.number(6.0)) if six else net.add("Relu", x.name)
    return Image(y, x.channels, x.side)


def pool(net: Network, kind: str, x: Image, kernel: int = 3, stride: int = 1) -> Image:
    """Add MaxPool or AveragePool (the padding does not count), padded by half its window."""
    shape = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2] * 4}
    return Image(net.add(kind, x.name, **shape), x.channels, -(-x.side // stride))


def classifier(net: Network, x: Image, classes: int, batch: int) -> None:
    """Add the mean over pixels, a fully connected layer, and the model's output."""
    flat = net.add("Flatten", net.add("GlobalAveragePool", x.name), axis=1)
    weight = net.normal("classifier.weight", (classes, x.channels), 2 / math.sqrt(x.channels))
    logits = net.add("Gemm", flat, weight, net.normal("classifier.bias", (classes,), 0.1), transB=1)
    net.output(logits, "logits", (batch, classes))
