"""A network like MobileNet-V3 large (Howard et al. 2019): hard swish, squeeze and excitation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from benchmarks.models.convolutional import Image, conv_norm, relu
from benchmarks.models.network import Network

#: Kernel, channels inside, channels out, whether it squeezes, whether it is hard swish (else Relu), stride.
Row = tuple[int, int, int, bool, bool, int]

LARGE: tuple[Row, ...] = (
    (3, 16, 16, False, False, 1), (3, 64, 24, False, False, 2), (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2), (5, 120, 40, True, False, 1), (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2), (3, 200, 80, False, True, 1), (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1), (3, 480, 112, True, True, 1), (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2), (5, 960, 160, True, True, 1), (5, 960, 160, True, True, 1),
)  # fmt: skip


@dataclass(frozen=True)
class MobileNetV3:
    """Sizes; ``rows`` are the blocks of table 1 of the paper."""

    side: int = 224
    stem: int = 16
    rows: tuple[Row, ...] = LARGE
    head: int = 960
    hidden: int = 1280
    classes: int = 1000


V3 = MobileNetV3()


def build(path: Path, batch: int, size: MobileNetV3 = V3) -> None:
    """Write the network: an image in, logits out."""
    with Network(path) as net:
        image = Image(net.input("image", (batch, 3, size.side, size.side)), 3, size.side)
        x = active(net, conv_norm(net, "stem", image, size.stem, 3, 2, gain=1.5), swish=True)
        for n, row in enumerate(size.rows):
            x = block(net, f"block{n}", x, row)
        x = active(net, conv_norm(net, "head", x, size.head, gain=1.5), swish=True)
        flat = net.add("Flatten", net.add("GlobalAveragePool", x.name), axis=1)
        hidden = net.add("HardSwish", _dense(net, "hidden", flat, size.head, size.hidden, 1.0))
        net.output(_dense(net, "logits", hidden, size.hidden, size.classes, 1.0), "logits", (batch, size.classes))


def _dense(net: Network, name: str, x: str, width_in: int, width_out: int, gain: float) -> str:
    weight = net.normal(f"{name}.weight", (width_out, width_in), gain / math.sqrt(width_in))
    return str(net.add("Gemm", x, weight, net.normal(f"{name}.bias", (width_out,), 0.1), transB=1))


def active(net: Network, x: Image, *, swish: bool) -> Image:
    """Add HardSwish, or Relu."""
    return Image(net.add("HardSwish", x.name), x.channels, x.side) if swish else relu(net, x)


def block(net: Network, name: str, x: Image, row: Row, dilation: int = 1) -> Image:
    """Add an inverted residual, whose window's elements are ``dilation`` apart."""
    kernel, inside, channels, squeezes, swish, stride = row
    y = x
    if inside != x.channels:
        y = active(net, conv_norm(net, f"{name}.expand", y, inside, gain=1.5), swish=swish)
    y = conv_norm(net, f"{name}.depthwise", y, inside, kernel, stride, inside, 1.5, dilation)
    y = active(net, y, swish=swish)
    y = _excited(net, f"{name}.squeeze", y) if squeezes else y
    y = conv_norm(net, f"{name}.project", y, channels)
    if stride > 1 or channels != x.channels:
        return y
    return Image(net.add("Add", x.name, y.name), channels, y.side)


def _excited(net: Network, name: str, x: Image) -> Image:
    """Add squeeze and excitation: every channel times a factor computed from the means of all."""
    few = max(8, (x.channels // 4 + 4) // 8 * 8)
    mean = net.add("GlobalAveragePool", x.name)
    inner = net.add("Relu", _point(net, f"{name}.0", mean, x.channels, few))
    factor = net.add("HardSigmoid", _point(net, f"{name}.1", inner, few, x.channels), alpha=1 / 6)
    return Image(net.add("Mul", x.name, factor), x.channels, x.side)


def _point(net: Network, name: str, x: str, channels: int, filters: int) -> str:
    weight = net.normal(f"{name}.weight", (filters, channels, 1, 1), math.sqrt(2 / channels))
    return str(net.add("Conv", x, weight, net.normal(f"{name}.bias", (filters,), 0.5), kernel_shape=[1, 1]))
