"""A network like MobileNet-V2 (Sandler et al. 2018): inverted residuals of 1x1 and depthwise 3x3 convolutions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from benchmarks.models.convolutional import Image, classifier, conv_norm, relu
from benchmarks.models.network import Network


@dataclass(frozen=True)
class MobileNet:
    """Sizes; ``stages`` are expansion, channels, blocks and stride of the first block."""

    side: int = 224
    stem: int = 32
    stages: tuple[tuple[int, int, int, int], ...] = (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    )  # fmt: skip
    head: int = 1280
    classes: int = 1000


V2 = MobileNet()


def build(path: Path, batch: int, size: MobileNet = V2) -> None:
    """Write the network: an image in, logits out."""
    with Network(path) as net:
        image = Image(net.input("image", (batch, 3, size.side, size.side)), 3, size.side)
        x = relu(net, conv_norm(net, "stem", image, size.stem, 3, 2), six=True)
        for s, (expansion, channels, blocks, stride) in enumerate(size.stages):
            for b in range(blocks):
                x = _block(net, f"stage{s}.{b}", x, expansion, channels, stride if b == 0 else 1)
        x = relu(net, conv_norm(net, "head", x, size.head, gain=math.sqrt(2)), six=True)
        classifier(net, x, size.classes, batch)


def _block(net: Network, name: str, x: Image, expansion: int, channels: int, stride: int) -> Image:
    inner = x
    if expansion > 1:
        inner = relu(net, conv_norm(net, f"{name}.expand", x, x.channels * expansion, gain=1.5), six=True)
    inner = relu(net, conv_norm(net, f"{name}.depthwise", inner, inner.channels, 3, stride, inner.channels, 1.5), True)
    y = conv_norm(net, f"{name}.project", inner, channels)
    if stride > 1 or channels != x.channels:
        return y
    return Image(net.add("Add", x.name, y.name), channels, y.side)
