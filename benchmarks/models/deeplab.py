"""A network like DeepLab-v3 (Chen et al. 2017) on MobileNet-V3-Large (Howard et al. 2019), as torchvision builds it.

The backbone keeps a sixteenth of the image: its last stage slides windows with gaps instead of a step of two. The head
looks at that with dense 3x3 windows of three rates at once, joins them, and resizes its classes to the image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from benchmarks.models.convolutional import Image, conv_norm, relu
from benchmarks.models.mobilenet_v3 import LARGE, Row, active, block
from benchmarks.models.network import Network


@dataclass(frozen=True)
class DeepLab:
    """Sizes; from block ``dilated`` on no block has a step, and windows have gaps instead."""

    side: int = 513
    stem: int = 16
    rows: tuple[Row, ...] = LARGE
    dilated: int = 12
    last: int = 960
    pooled: int = 256
    rates: tuple[int, ...] = (12, 24, 36)
    classes: int = 21


V3_LARGE = DeepLab()


def build(path: Path, batch: int, size: DeepLab = V3_LARGE) -> None:
    """Write the network: an image in, logits of every pixel out."""
    with Network(path) as net:
        image = Image(net.input("image", (batch, 3, size.side, size.side)), 3, size.side)
        x = active(net, conv_norm(net, "stem", image, size.stem, 3, 2, gain=1.5), swish=True)
        for n, row in enumerate(size.rows):
            gaps = n >= size.dilated
            x = block(net, f"block{n}", x, (*row[:-1], 1) if gaps else row, 2 if gaps else 1)
        x = active(net, conv_norm(net, "last", x, size.last, gain=1.5), swish=True)
        x = _pyramid(net, x, size)
        x = relu(net, conv_norm(net, "head", x, size.pooled, 3, gain=math.sqrt(2)))
        logits = conv_norm(net, "classes", x, size.classes)
        net.output(_resized(net, logits.name, size.side), "logits", (batch, size.classes, size.side, size.side))


def _pyramid(net: Network, x: Image, size: DeepLab) -> Image:
    """Add the windows of all rates, and the mean of the image, joined and mixed."""
    gain = math.sqrt(2)
    branches = [relu(net, conv_norm(net, "pyramid.point", x, size.pooled, gain=gain))]
    for rate in size.rates:
        y = conv_norm(net, f"pyramid.rate{rate}", x, size.pooled, 3, gain=gain, dilation=rate)
        branches.append(relu(net, y))
    mean = Image(net.add("GlobalAveragePool", x.name), x.channels, 1)
    mean = relu(net, conv_norm(net, "pyramid.mean", mean, size.pooled, gain=gain))
    branches.append(Image(_resized(net, mean.name, x.side), size.pooled, x.side))
    joined = net.add("Concat", *(b.name for b in branches), axis=1)
    return relu(net, conv_norm(net, "pyramid.mix", Image(joined, size.pooled * len(branches), x.side), size.pooled))


def _resized(net: Network, name: str, side: int) -> str:
    """Add a bilinear resize to a square image of ``side``."""
    outer = net.add("Shape", name, start=0, end=2)
    sizes = net.add("Concat", outer, net.integers(side, side), axis=0)
    mode = {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"}
    return str(net.add("Resize", name, "", "", sizes, **mode))
