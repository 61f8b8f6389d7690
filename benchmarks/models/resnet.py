"""Residual networks (He et al. 2015, the stride in the 3x3 as everybody has it since): ResNet-18 and ResNet-50."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from benchmarks.models.convolutional import Image, classifier, conv_norm, pool, relu
from benchmarks.models.network import Network


@dataclass(frozen=True)
class ResNet:
    """Sizes; a block has two 3x3 convolutions, or where ``bottleneck`` 1x1, 3x3, and 4 times as many 1x1."""

    blocks: tuple[int, ...] = (2, 2, 2, 2)
    bottleneck: bool = False
    side: int = 224
    width: int = 64
    classes: int = 1000


R18 = ResNet()
R50 = ResNet((3, 4, 6, 3), bottleneck=True)


def build(path: Path, batch: int, size: ResNet = R18) -> None:
    """Write the network: an image in, logits out."""
    with Network(path) as net:
        image = Image(net.input("image", (batch, 3, size.side, size.side)), 3, size.side)
        x = pool(net, "MaxPool", relu(net, conv_norm(net, "stem", image, size.width, 7, 2, gain=math.sqrt(2))), 3, 2)
        for s, blocks in enumerate(size.blocks):
            for b in range(blocks):
                x = _block(net, f"stage{s}.{b}", x, size, size.width * 2**s, 2 if s and not b else 1)
        classifier(net, x, size.classes, batch)


def _block(net: Network, name: str, x: Image, size: ResNet, channels: int, stride: int) -> Image:
    """Add a residual block; its branch is small, or every block would double the variance."""
    wide = channels * (4 if size.bottleneck else 1)
    convolutions = ((channels, 1, 1), (channels, 3, stride), (wide, 1, 1))
    if not size.bottleneck:
        convolutions = ((channels, 3, stride), (wide, 3, 1))
    y = x
    for n, (filters, kernel, step) in enumerate(convolutions):
        last = n == len(convolutions) - 1
        y = conv_norm(net, f"{name}.{n}", y, filters, kernel, step, gain=0.4 if last else math.sqrt(2))
        y = y if last else relu(net, y)
    if stride > 1 or wide != x.channels:
        x = conv_norm(net, f"{name}.shortcut", x, wide, 1, stride)
    return relu(net, Image(net.add("Add", y.name, x.name), wide, y.side))
