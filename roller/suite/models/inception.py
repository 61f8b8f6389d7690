"""Inception-v3 with its auxiliary head (Szegedy et al., 2015, arXiv:1512.00567)."""

# Images are 3 x 299 x 299, as published; the 3 x 256 x 256 of the benchmark are too small for the auxiliary head.

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional

from roller.suite.entry import Workload
from roller.suite.models.residual import random_images_and_classes
from roller.suite.models.supervised_step import supervised_step_factory

SIDE, CLASSES = 299, 1000
#: Weight of the auxiliary head's loss in the publication's implementation.
AUXILIARY = 0.4
Size = int | tuple[int, int]


class ConvNorm(nn.Sequential):
    """A convolution without bias, batch norm and ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: Size = 1, stride: int = 1, padding: Size = 0) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False),
            nn.BatchNorm2d(outputs, eps=0.001),
            nn.ReLU(inplace=True),
        )


class Branches(nn.ModuleList):
    """Parallel branches whose outputs are concatenated."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the channels of all branches, in order."""
        return torch.cat([branch(x) for branch in self], 1)


def _row_convolution(inputs: int, outputs: int, length: int) -> ConvNorm:
    return ConvNorm(inputs, outputs, (1, length), padding=(0, length // 2))


def _column_convolution(inputs: int, outputs: int, length: int) -> ConvNorm:
    return ConvNorm(inputs, outputs, (length, 1), padding=(length // 2, 0))


def _pooling_branch(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), ConvNorm(inputs, outputs))


class Inception(nn.Module):
    """Inception-v3 with its auxiliary head; ``divisor`` (at most 16) divides all numbers of channels."""

    def __init__(self, divisor: int = 1, classes: int = CLASSES) -> None:
        super().__init__()
        self.divisor = divisor
        n = self._divide_channels
        self.stem = nn.Sequential(
            ConvNorm(3, n(32), 3, 2), ConvNorm(n(32), n(32), 3), ConvNorm(n(32), n(64), 3, padding=1),
            nn.MaxPool2d(3, 2), ConvNorm(n(64), n(80)), ConvNorm(n(80), n(192), 3), nn.MaxPool2d(3, 2),
        )  # fmt: skip
        self.fine = nn.Sequential(
            self._fine_branches(192, 32), self._fine_branches(256, 64), self._fine_branches(288, 64)
        )
        self.middle = nn.Sequential(
            self._first_reduction_branches(288), *(self._factorized_branches(width) for width in (128, 160, 160, 192))
        )
        self.auxiliary = nn.Sequential(
            nn.AvgPool2d(5, 3), ConvNorm(n(768), n(128)), ConvNorm(n(128), n(768), 5), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Linear(n(768), classes),
        )  # fmt: skip
        self.coarse = nn.Sequential(
            self._second_reduction_branches(768), self._expanded_branches(1280), self._expanded_branches(2048)
        )
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Dropout(0.5), nn.Flatten(), nn.Linear(n(2048), classes))

    def _divide_channels(self, published: int) -> int:
        return published // self.divisor

    def _fine_branches(self, inputs: int, pooled: int) -> Branches:
        n, i = self._divide_channels, self._divide_channels(inputs)
        return Branches([
            ConvNorm(i, n(64)),
            nn.Sequential(ConvNorm(i, n(48)), ConvNorm(n(48), n(64), 5, padding=2)),
            nn.Sequential(ConvNorm(i, n(64)), ConvNorm(n(64), n(96), 3, padding=1), ConvNorm(n(96), n(96), 3, 1, 1)),
            _pooling_branch(i, n(pooled)),
        ])  # fmt: skip

    def _first_reduction_branches(self, inputs: int) -> Branches:
        n, i = self._divide_channels, self._divide_channels(inputs)
        return Branches([
            ConvNorm(i, n(384), 3, 2),
            nn.Sequential(ConvNorm(i, n(64)), ConvNorm(n(64), n(96), 3, padding=1), ConvNorm(n(96), n(96), 3, 2)),
            nn.MaxPool2d(3, 2),
        ])  # fmt: skip

    def _factorized_branches(self, width: int) -> Branches:
        n, i, w = self._divide_channels, self._divide_channels(768), self._divide_channels(width)
        return Branches([
            ConvNorm(i, n(192)),
            nn.Sequential(ConvNorm(i, w), _row_convolution(w, w, 7), _column_convolution(w, n(192), 7)),
            nn.Sequential(
                ConvNorm(i, w), _column_convolution(w, w, 7), _row_convolution(w, w, 7), _column_convolution(w, w, 7),
                _row_convolution(w, n(192), 7)
            ),
            _pooling_branch(i, n(192)),
        ])  # fmt: skip

    def _second_reduction_branches(self, inputs: int) -> Branches:
        n, i = self._divide_channels, self._divide_channels(inputs)
        w = n(192)
        return Branches([
            nn.Sequential(ConvNorm(i, w), ConvNorm(w, n(320), 3, 2)),
            nn.Sequential(ConvNorm(i, w), _row_convolution(w, w, 7), _column_convolution(w, w, 7), ConvNorm(w, w, 3,
                                                                                                            2)),
            nn.MaxPool2d(3, 2),
        ])  # fmt: skip

    def _expanded_branches(self, inputs: int) -> Branches:
        n, i = self._divide_channels, self._divide_channels(inputs)
        w = n(384)

        def both_ways() -> Branches:
            return Branches([_row_convolution(w, w, 3), _column_convolution(w, w, 3)])

        return Branches([
            ConvNorm(i, n(320)),
            nn.Sequential(ConvNorm(i, w), both_ways()),
            nn.Sequential(ConvNorm(i, n(448)), ConvNorm(n(448), w, 3, padding=1), both_ways()),
            _pooling_branch(i, n(192)),
        ])  # fmt: skip

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits of the main head and of the auxiliary head, shape ``(batch, classes)`` each."""
        x = self.middle(self.fine(self.stem(images)))
        return self.head(self.coarse(x)), self.auxiliary(x)


def _loss(model: nn.Module, images: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    last, auxiliary = model(images)
    return functional.cross_entropy(last, classes) + AUXILIARY * functional.cross_entropy(auxiliary, classes)


def inception_v3(*, reduced: bool = False) -> Workload:
    """Return Inception-v3 for ImageNet: 27,161,264 parameters; reduced: an eighth of the channels."""
    divisor, classes = (8, 100) if reduced else (1, CLASSES)
    sgd = partial(torch.optim.SGD, lr=0.045, momentum=0.9)
    return Workload(
        partial(Inception, divisor, classes), lambda batch: random_images_and_classes(batch, SIDE, classes),
        supervised_step_factory(sgd, _loss), batch=4 if reduced else 32,
    )  # fmt: skip
