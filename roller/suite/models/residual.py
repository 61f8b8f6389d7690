"""ResNet-50 and stages for other ResNets (He et al., "Deep Residual Learning", 2015, arXiv:1512.03385)."""

# The second convolution of a bottleneck has the stride, as in current implementations (ResNet v1.5). The published
# benchmark trains on images of 3 x 256 x 256.

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional

from roller.suite.entry import Workload
from roller.suite.models.supervised_step import supervised_step_factory

#: Number of bottlenecks per stage.
RESNET50, RESNET101 = (3, 4, 6, 3), (3, 4, 23, 3)
IMAGE, CLASSES = 256, 1000


class FrozenNorm(nn.Module):
    """Batch norm whose statistics and weights are frozen buffers, for detectors, which train on few images."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(channels))
        self.register_buffer("bias", torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return images, shape ``(batch, channels, height, width)``, scaled and shifted per channel."""
        scale = self.weight * (self.running_var + 1e-5).rsqrt()
        shift = self.bias - self.running_mean * scale
        return x * scale[:, None, None] + shift[:, None, None]


class Bottleneck(nn.Module):
    """Residual block of three convolutions."""

    def __init__(self, inputs: int, width: int, stride: int, norm: type[nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = norm(width)
        self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), norm(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.down: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.down = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return images with four times ``width`` channels, and their height and width divided by the stride."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += x if self.down is None else self.down(x)
        return self.relu(y)


def make_stages(blocks: tuple[int, ...], width: int, norm: type[nn.Module] = nn.BatchNorm2d) -> nn.Sequential:
    """Return stages of bottlenecks; each stage after the first halves the image size and doubles the channels."""
    inputs, stages = width, []
    for number, count in enumerate(blocks):
        stage = []
        for place in range(count):
            stage.append(Bottleneck(inputs, width << number, 2 if number and not place else 1, norm))
            inputs = 4 * (width << number)
        stages.append(nn.Sequential(*stage))
    return nn.Sequential(*stages)


class ResNet50(nn.Module):
    """ResNet-50; ``width`` is the number of channels after the first convolution."""

    def __init__(self, width: int = 64, classes: int = CLASSES) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        self.relu, self.pool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        self.stages = make_stages(RESNET50, width)
        self.average, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(32 * width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits, shape ``(batch, classes)``, for images of shape ``(batch, 3, height, width)``."""
        x = self.pool(self.relu(self.bn1(self.conv1(x))))
        return self.fc(torch.flatten(self.average(self.stages(x)), 1))


def random_images_and_classes(batch: int, side: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random images, shape ``(batch, 3, side, side)``, and class indices, shape ``(batch,)``."""
    return torch.randn(batch, 3, side, side), torch.randint(classes, (batch,))


def _loss(model: nn.Module, images: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(images), classes)


def resnet50(*, reduced: bool = False) -> Workload:
    """Return ResNet-50 for ImageNet: 25,557,032 parameters; reduced: a quarter of the width, 64 x 64 images."""
    width, side, classes = (16, 64, 100) if reduced else (64, IMAGE, CLASSES)
    sgd = partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-4)
    return Workload(
        partial(ResNet50, width, classes), lambda batch: random_images_and_classes(batch, side, classes),
        supervised_step_factory(sgd, _loss), batch=8 if reduced else 32,
    )  # fmt: skip
