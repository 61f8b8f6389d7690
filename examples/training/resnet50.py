"""An entry file: ResNet-50 on ImageNet, as in "Deep Residual Learning for Image Recognition" (He et al., 2015).

roller forecast examples/training/resnet50.py --device a100 --amp bf16
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

CLASSES, SIDE = 1000, 224
#: Blocks of each stage, and the channels of their inner convolution.
STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))


class Bottleneck(nn.Module):
    """Convolutions of 1x1, 3x3 and 1x1 beside a shortcut; the last one has four times the channels."""

    EXPANSION = 4

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        channels_out = channels * self.EXPANSION
        self.conv1 = nn.Conv2d(channels_in, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, channels_out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels_out)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride, bias=False), nn.BatchNorm2d(channels_out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``relu(shortcut(x) + convolutions(x))``."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += self.shortcut(x)
        return self.relu(y)


class ResNet(nn.Module):
    """A stem that shrinks the image by four, four stages of bottlenecks, and a linear classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        channels_in, stages = 64, []
        for number, (blocks, channels) in enumerate(STAGES):
            stage = []
            for block in range(blocks):
                stride = 2 if number > 0 and block == 0 else 1
                stage.append(Bottleneck(channels_in, channels, stride))
                channels_in = channels * Bottleneck.EXPANSION
            stages.append(nn.Sequential(*stage))
        self.stages = nn.Sequential(*stages)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels_in, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of every image."""
        x = self.relu(self.bn1(self.conv1(images)))
        x = self.stages(self.maxpool(x))
        return self.fc(self.avgpool(x).flatten(1))


def model_provider() -> nn.Module:
    """Return the model."""
    return ResNet()


def input_provider(batch_size: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images and their classes."""
    return torch.randn(batch_size, 3, SIDE, SIDE), torch.randint(CLASSES, (batch_size,))


def iteration_provider(model: nn.Module) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return a step of SGD with momentum; it returns the loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    criterion = nn.CrossEntropyLoss()

    def step(images: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = criterion(model(images), classes)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
