"""A one-stage detector (Lin et al. 2017, RetinaNet): a residual backbone, a pyramid of features, shared heads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.models.network import Network


@dataclass(frozen=True)
class Detector:
    """Sizes of a detector for images whose height and width are multiples of 32."""

    widths: tuple[int, ...] = (32, 64, 128, 256)  #: Channels of the backbone's four stages
    features: int = 64  #: Channels of the pyramid
    classes: int = 20
    free: bool = True  #: Whether calls choose the size of the image
    side: int = 320  #: Height and width, if they are fixed


def build(path: Path, batch: int, size: Detector) -> None:
    """Write a detector: an image in; for every point of three maps, scores of the classes and four distances out."""
    with Network(path) as net:
        shape: tuple[int | str, int | str] = ("height", "width") if size.free else (size.side, size.side)
        image = net.input("image", (batch, 3, *shape))
        x = _conv(net, "stem", image, 3, size.widths[0], 7, stride=2)
        x = net.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
        maps, ins = [], size.widths[0]
        for n, outs in enumerate(size.widths):
            x = _block(net, f"stage.{n}", x, ins, outs, stride=1 if n == 0 else 2)
            maps.append(x)
            ins = outs
        levels = _pyramid(net, size, maps[1:])
        heads = {
            name: [(net.normal(f"{name}.{n}.weight", _filters(size.features, outs, 3), _scale(size.features, 3)),
                    net.normal(f"{name}.{n}.bias", (outs,), 0.02))
                   for n, outs in enumerate((size.features, size.features, last))]
            for name, last in (("scores", size.classes), ("boxes", 4))
        }  # fmt: skip
        for name, last in (("scores", size.classes), ("boxes", 4)):
            rows = [_head(net, level, heads[name], batch, last) for level in levels]
            y = net.add("Concat", *rows, axis=1)
            net.output(net.add("Sigmoid" if name == "scores" else "Relu", y), name, (batch, "points", last))


def _pyramid(net: Network, size: Detector, maps: list[str]) -> list[str]:
    """Return maps of equal width, the finest first; each coarser map is doubled and added to the next finer one."""
    scales = net.constant("scales", np.array([1, 1, 2, 2], np.float32))
    levels: list[str] = []
    for n in reversed(range(len(maps))):
        x = _conv(net, f"lateral.{n}", maps[n], size.widths[n + 1], size.features, 1, active=False)
        if levels:
            doubled = net.add("Resize", levels[0], "", scales, mode="nearest", nearest_mode="floor",
                              coordinate_transformation_mode="asymmetric")  # fmt: skip
            x = net.add("Add", x, doubled)
        levels.insert(0, x)
    return levels


def _head(net: Network, x: str, weights: list[tuple[str, str]], batch: int, outs: int) -> str:
    for n, (weight, bias) in enumerate(weights):
        x = net.add("Conv", x, weight, bias, pads=[1] * 4)
        x = net.add("Relu", x) if n + 1 < len(weights) else x
    return str(net.add("Reshape", net.add("Transpose", x, perm=[0, 2, 3, 1]), net.integers(batch, -1, outs)))


def _block(net: Network, name: str, x: str, ins: int, outs: int, stride: int) -> str:
    inner = _conv(net, f"{name}.0", x, ins, outs, 3, stride=stride)
    inner = _conv(net, f"{name}.1", inner, outs, outs, 3, active=False)
    kept = (
        x if stride == 1 and ins == outs else _conv(net, f"{name}.skip", x, ins, outs, 1, stride=stride, active=False)
    )
    return str(net.add("Relu", net.add("Add", inner, kept)))


def _conv(
    net: Network, name: str, x: str, ins: int, outs: int, window: int, stride: int = 1, active: bool = True
) -> str:  # fmt: skip
    weight = net.normal(f"{name}.weight", _filters(ins, outs, window), _scale(ins, window))
    y = net.add("Conv", x, weight, net.normal(f"{name}.bias", (outs,), 0.02), strides=[stride] * 2,
                pads=[window // 2] * 4)  # fmt: skip
    return str(net.add("Relu", y) if active else y)


def _filters(ins: int, outs: int, window: int) -> tuple[int, ...]:
    return outs, ins, window, window


def _scale(ins: int, window: int) -> float:
    return math.sqrt(1 / (ins * window * window))
