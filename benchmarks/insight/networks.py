"""The networks of published what-ifs: VGG-19 and DenseNet-121 in plain ``torch.nn``, and training steps of their time.

Optimizers update one parameter after the other and attention is written out, as in the frameworks of 2019.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import roller
from roller.hardware import DeviceSpec
from roller.insight.traced_step import TracedStep
from roller.suite.models.bert import BERT_BASE, BERT_LARGE, LENGTH, Body
from roller.suite.models.residual import ResNet50
from roller.suite.models.transformer_blocks import Sizes

CLASSES, SIDE = 1000, 224
#: Channels of the convolutions of VGG-19 between its pools (Simonyan and Zisserman 2015, table 1, column E).
VGG = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))
#: Layers of the blocks of DenseNet-121 and its growth (Huang et al. 2017, table 1).
DENSE, GROWTH = (6, 12, 24, 16), 32
GNMT_FILE = Path(__file__).parents[2] / "examples" / "training" / "gnmt.py"


class VGG19(nn.Sequential):
    """Sixteen convolutions of 3x3 and three linear layers."""

    def __init__(self) -> None:
        layers, channels = list[nn.Module](), 3
        for wide, count in VGG:
            for _ in range(count):
                layers += [nn.Conv2d(channels, wide, 3, padding=1), nn.ReLU(inplace=True)]
                channels = wide
            layers.append(nn.MaxPool2d(2))
        layers += [nn.Flatten(), nn.Linear(channels * 49, 4096), nn.ReLU(inplace=True), nn.Dropout()]
        super().__init__(*layers, nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, CLASSES))


class DenseLayer(nn.Module):
    """Convolutions of 1x1 and 3x3, each after a normalisation, whose result is joined with their input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = 4 * GROWTH
        self.norm1, self.conv1 = nn.BatchNorm2d(channels), nn.Conv2d(channels, wide, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(wide), nn.Conv2d(wide, GROWTH, 3, padding=1, bias=False)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102 - as the class says
        y = self.conv1(self.relu(self.norm1(x)))
        return torch.cat([x, self.conv2(self.relu(self.norm2(y)))], 1)


class DenseNet121(nn.Sequential):
    """A stem, four dense blocks, halving transitions between them, and a linear layer."""

    def __init__(self) -> None:
        channels = 2 * GROWTH
        layers: list[nn.Module] = [
            nn.Conv2d(3, channels, 7, 2, 3, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        ]  # fmt: skip
        for number, count in enumerate(DENSE):
            for _ in range(count):
                layers.append(DenseLayer(channels))
                channels += GROWTH
            layers += [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
            if number < len(DENSE) - 1:
                layers += [nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
                channels //= 2
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


class Answers(nn.Module):
    """BERT with the head that finds answers, its attention product by product."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.body, self.head = Body(sizes), nn.Linear(sizes.width, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits (batch, length, 2)."""
        return self.head(self.body(tokens))


def _answer_loss(logits: torch.Tensor, first: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    begins, ends = logits.unbind(-1)
    return (functional.cross_entropy(begins, first) + functional.cross_entropy(ends, last)) / 2


def _word_loss(logits: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), words.flatten())


@cache
def gnmt() -> ModuleType:
    """Return the example of GNMT as a module."""
    spec = importlib.util.spec_from_file_location("gnmt_example", GNMT_FILE)
    if spec is None or spec.loader is None:
        raise roller.RollerError(f"{GNMT_FILE}: expected a module, got none. Restore it.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Training:
    """A network, what trains it, and the batch that is predicted; published batches are not known.

    Parameters
    ----------
    build
        Makes the module.
    data
        From a batch to inputs and targets, tensors without memory.
    loss
        Of the output and the targets.
    batch
        Samples of a step.
    optimizer
        ``"adam"`` or ``"momentum"``.
    """

    build: Callable[[], nn.Module]
    data: Callable[[int], tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]]
    loss: Callable[..., torch.Tensor]
    batch: int
    optimizer: str


def _empty(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _images(batch: int) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    return (_empty(batch, 3, SIDE, SIDE, dtype=torch.float32),), (_empty(batch),)


def _questions(batch: int) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    return (_empty(batch, LENGTH),), (_empty(batch), _empty(batch))


def _sentences(batch: int) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    length = gnmt().LENGTH
    return (_empty(batch, length), _empty(batch, length)), (_empty(batch, length),)


#: The models of the published what-ifs.
NETWORKS: Mapping[str, Training] = {
    "vgg19": Training(VGG19, _images, functional.cross_entropy, 32, "momentum"),
    "densenet121": Training(DenseNet121, _images, functional.cross_entropy, 32, "momentum"),
    "resnet50": Training(ResNet50, _images, functional.cross_entropy, 32, "momentum"),
    "gnmt": Training(lambda: gnmt().GNMT(), _sentences, _word_loss, 64, "adam"),
    "bert_base": Training(partial(Answers, BERT_BASE), _questions, _answer_loss, 4, "adam"),
    "bert_large": Training(partial(Answers, BERT_LARGE), _questions, _answer_loss, 2, "adam"),
}


def trace(name: str, spec: DeviceSpec, batch: int = 0) -> TracedStep:
    """Return the traced step of a network at its batch, or at half of it as often as the device's memory asks."""
    network = NETWORKS[name]
    inputs, targets = network.data(batch or network.batch)
    optimizers: Mapping[str, Callable[..., Any]] = {
        "adam": partial(torch.optim.Adam, lr=1e-4, foreach=False),
        "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=False),
    }
    step = roller.trace(
        network.build, inputs, loss=network.loss, targets=targets, optimizer=optimizers[network.optimizer], device=spec
    )
    size = batch or network.batch
    while not step.memory(spec).fits and size > 1:
        size //= 2
        step = step.at(batch=size)
    return step
