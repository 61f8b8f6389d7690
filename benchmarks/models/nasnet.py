"""A network like NASNet-A mobile (Zoph et al. 2018): searched cells of separable convolutions, poolings and sums.

About 5.3 million weights and 0.56 G multiply-adds at a side of 224 pixels, in some 700 nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.models.convolutional import Image, classifier, conv_norm, norm, pool, relu
from benchmarks.models.network import Network

#: Both summands of a sum are scaled so that it has a standard deviation of about one again.
_HALF = 0.7


@dataclass(frozen=True)
class NasNet:
    """Sizes: ``filters`` of the first normal cells, doubled by each of two reductions; ``repeats`` of normal cells."""

    side: int = 224
    stem: int = 32
    filters: int = 44
    repeats: int = 4
    classes: int = 1000


A_MOBILE = NasNet()


def build(path: Path, batch: int, size: NasNet = A_MOBILE) -> None:
    """Write the network: an image in, logits out."""
    with Network(path) as net:
        image = Image(net.input("image", (batch, 3, size.side, size.side)), 3, size.side)
        before = x = conv_norm(net, "stem", image, size.stem, 3, 2)
        for n, share in enumerate((4, 2)):
            before, x = x, _reduction(net, f"stem{n}", before, x, max(2, size.filters // share))
        for stage in range(3):
            filters = size.filters << stage
            if stage:
                before, x = x, _reduction(net, f"reduction{stage}", before, x, filters)
            for n in range(size.repeats):
                before, x = x, _normal(net, f"cell{stage}.{n}", before, x, filters)
        classifier(net, relu(net, x), size.classes, batch)


def _normal(net: Network, name: str, before: Image, x: Image, filters: int) -> Image:
    left, right = _fit(net, f"{name}.left", before, x, filters), _fit(net, f"{name}.right", x, x, filters)
    parts = [
        left,
        _sum(net, _separable(net, f"{name}.a", right, 5), _separable(net, f"{name}.b", left, 3)),
        _sum(net, _separable(net, f"{name}.c", left, 5), _separable(net, f"{name}.d", left, 3)),
        _sum(net, pool(net, "AveragePool", right), left),
        _sum(net, pool(net, "AveragePool", left), pool(net, "AveragePool", left)),
        _sum(net, _separable(net, f"{name}.e", right, 3), right),
    ]
    return _join(net, parts)


def _reduction(net: Network, name: str, before: Image, x: Image, filters: int) -> Image:
    left, right = _fit(net, f"{name}.left", before, x, filters), _fit(net, f"{name}.right", x, x, filters)
    first = _sum(net, _separable(net, f"{name}.a", right, 5, 2), _separable(net, f"{name}.b", left, 7, 2))
    parts = [
        _sum(net, pool(net, "MaxPool", right, stride=2), _separable(net, f"{name}.c", left, 7, 2)),
        _sum(net, pool(net, "AveragePool", right, stride=2), _separable(net, f"{name}.d", left, 5, 2)),
    ]
    parts.append(_sum(net, pool(net, "AveragePool", first), parts[0]))
    parts.append(_sum(net, _separable(net, f"{name}.e", first, 3), pool(net, "MaxPool", right, stride=2)))
    return _join(net, parts)


def _fit(net: Network, name: str, x: Image, like: Image, filters: int) -> Image:
    """Bring an input of a cell to ``filters`` channels and the side of another one."""
    x = relu(net, x)
    if x.side == like.side:
        return conv_norm(net, name, x, filters)
    # Two halves, the second one from the pixels the first leaves out.
    ahead = net.add("Pad", x.name, net.integers(0, 0, 0, 0, 0, 0, 1, 1))
    end = 2**31 - 1
    shifted = net.add("Slice", ahead, net.integers(1, 1), net.integers(end, end), net.integers(2, 3))
    halves = []
    for n, source in enumerate((x.name, shifted)):
        taken = net.add("AveragePool", source, kernel_shape=[1, 1], strides=[2, 2])
        width = filters // 2 if n == 0 else filters - filters // 2
        scale = (1 / x.channels) ** 0.5
        weight = net.normal(f"{name}.{n}.weight", (width, x.channels, 1, 1), scale)
        halves.append(net.add("Conv", taken, weight, kernel_shape=[1, 1]))
    return Image(norm(net, name, net.add("Concat", *halves, axis=1), filters), filters, like.side)


def _separable(net: Network, name: str, x: Image, kernel: int, stride: int = 1) -> Image:
    """Depthwise and 1x1 convolution, twice."""
    for n in range(2):
        x = relu(net, x)
        scale, pad = (2 / kernel**2) ** 0.5, [kernel // 2] * 4
        weight = net.normal(f"{name}.{n}.depthwise", (x.channels, 1, kernel, kernel), scale)
        steps = [stride if n == 0 else 1] * 2
        y = net.add("Conv", x.name, weight, kernel_shape=[kernel] * 2, strides=steps, pads=pad, group=x.channels)
        x = conv_norm(net, f"{name}.{n}.point", Image(y, x.channels, -(-x.side // steps[0])), x.channels, gain=_HALF)
    return x


def _sum(net: Network, one: Image, other: Image) -> Image:
    return Image(net.add("Add", one.name, other.name), one.channels, one.side)


def _join(net: Network, parts: list[Image]) -> Image:
    joined = net.add("Concat", *[p.name for p in parts], axis=1)
    return Image(joined, sum(p.channels for p in parts), parts[0].side)
