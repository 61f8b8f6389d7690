"""EfficientDet-D0 (Tan et al., 2019, arXiv:1911.09070): EfficientNet-B0, three BiFPN layers, three-layer heads."""

# Images of 512 x 512, 64 channels in the pyramid, nine anchors per pixel, 90 classes of COCO: 3.9 million parameters.

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional

from roller.suite.entry import Workload
from roller.suite.models import box_operators as ops
from roller.suite.models.detection import random_objects
from roller.suite.models.supervised_step import supervised_step_factory

SIDE, CHANNELS, CLASSES, LAYERS = 512, 64, 90, 3
#: Stages of EfficientNet-B0 (Tan and Le, 2019): growth, channels, blocks, stride, kernel.
STAGES = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)  # fmt: skip
#: Stages that feed the pyramid, at an eighth, a 16th and a 32nd of the image size.
TAKEN = (2, 4, 6)
STRIDES = (8, 16, 32, 64, 128)
RATIOS, SCALES = (0.5, 1.0, 2.0), (1.0, 2 ** (1 / 3), 2 ** (2 / 3))


def _make_batch_norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


class ConvNorm(nn.Sequential):
    """A convolution and batch norm, followed by SiLU by default."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, *, groups: int = 1, activation: bool = True
    ) -> None:
        conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        super().__init__(conv, _make_batch_norm(outputs), *([nn.SiLU(inplace=True)] if activation else []))


class Squeeze(nn.Module):
    """Squeeze-and-excitation: scales channels by a small network applied to their means."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return images, shape ``(batch, channels, height, width)``."""
        return x * torch.sigmoid(self.expand(functional.silu(self.reduce(x.mean((2, 3), keepdim=True)))))


class MBConv(nn.Module):
    """Inverted bottleneck: channel expansion, depthwise convolution, squeeze-and-excitation, and projection."""

    def __init__(self, inputs: int, outputs: int, growth: int, stride: int, kernel: int) -> None:
        super().__init__()
        inner = inputs * growth
        self.body = nn.Sequential(
            *([ConvNorm(inputs, inner)] if growth > 1 else []),
            ConvNorm(inner, inner, kernel, stride, groups=inner), Squeeze(inner, max(1, inputs // 4)),
            ConvNorm(inner, outputs, activation=False),
        )  # fmt: skip
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return images, shape ``(batch, outputs, height / stride, width / stride)``."""
        return x + self.body(x) if self.adds else self.body(x)


class Backbone(nn.Module):
    """EfficientNet-B0 without its head."""

    def __init__(self, divisor: int) -> None:
        super().__init__()
        self.stem = ConvNorm(3, 32 // divisor, 3, 2)
        self.stages, inputs = nn.ModuleList(), 32 // divisor
        for growth, channels, count, stride, kernel in STAGES:
            stage = nn.Sequential()
            for number in range(count):
                stage.append(MBConv(inputs, channels // divisor, growth, stride if number == 0 else 1, kernel))
                inputs = channels // divisor
            self.stages.append(stage)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return features at an eighth, a 16th and a 32nd of the image size."""
        x, found = self.stem(x), []
        for number, stage in enumerate(self.stages):
            x = stage(x)
            if number in TAKEN:
                found.append(x)
        return found


class Separable(nn.Sequential):
    """A depthwise and a pointwise convolution."""

    def __init__(self, inputs: int, outputs: int, *, normed: bool) -> None:
        super().__init__(
            nn.Conv2d(inputs, inputs, 3, padding=1, groups=inputs, bias=False), nn.Conv2d(inputs, outputs, 1),
            *([_make_batch_norm(outputs)] if normed else []),
        )  # fmt: skip


class Fusion(nn.Module):
    """Weighted sum of levels ("fast normalized fusion") and a separable convolution."""

    def __init__(self, count: int, channels: int) -> None:
        super().__init__()
        self.weights, self.conv = nn.Parameter(torch.ones(count)), Separable(channels, channels, normed=True)

    def forward(self, *levels: torch.Tensor) -> torch.Tensor:
        """Return features with the sizes of ``levels``."""
        shares = torch.relu(self.weights)
        shares = shares / (shares.sum() + 1e-4)
        mixed = sum(share * level for share, level in zip(shares.unbind(), levels, strict=True))
        return self.conv(functional.silu(mixed))


def _downsample_by_two(x: torch.Tensor) -> torch.Tensor:
    return functional.max_pool2d(x, 3, 2, 1)


def _upsample_by_two(x: torch.Tensor) -> torch.Tensor:
    return functional.interpolate(x, scale_factor=2.0, mode="nearest")


class BiFPN(nn.Module):
    """One BiFPN layer: mixes five levels top-down, then bottom-up."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down = nn.ModuleList(Fusion(2, channels) for _ in range(4))
        self.up = nn.ModuleList(Fusion(3 if n < 3 else 2, channels) for n in range(4))

    def forward(self, levels: list[torch.Tensor], again: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return five levels; ``again`` are the inputs of the bottom-up path and have the same shapes."""
        down = [levels[4]]
        for number in (3, 2, 1, 0):
            down.insert(0, self.down[number](levels[number], _upsample_by_two(down[0])))
        found = [down[0]]
        for number in (1, 2, 3, 4):
            middle = [down[number]] if number < 4 else []
            found.append(self.up[number - 1](again[number], *middle, _downsample_by_two(found[-1])))
        return found


class Head(nn.Module):
    """Separable convolutions shared by all levels, with separate norms per level."""

    def __init__(self, channels: int, outputs: int, layers: int = LAYERS) -> None:
        super().__init__()
        self.convs = nn.ModuleList(Separable(channels, channels, normed=False) for _ in range(layers))
        self.norms = nn.ModuleList(nn.ModuleList(_make_batch_norm(channels) for _ in range(layers)) for _ in STRIDES)
        self.last = Separable(channels, outputs, normed=False)

    def forward(self, levels: list[torch.Tensor], each: int) -> torch.Tensor:
        """Return ``each`` outputs per anchor, shape ``(batch, anchors, each)``."""
        found = []
        for x, norms in zip(levels, self.norms, strict=True):
            for conv, norm in zip(self.convs, norms, strict=True):
                x = functional.silu(norm(conv(x)))
            found.append(self.last(x).permute(0, 2, 3, 1).reshape(len(x), -1, each))
        return torch.cat(found, 1)


class EfficientDet(nn.Module):
    """EfficientDet, called on images and returning its loss; ``divisor`` (up to 8) divides backbone channel counts."""

    def __init__(self, divisor: int = 1, channels: int = CHANNELS, classes: int = CLASSES) -> None:
        super().__init__()
        self.backbone, self.classes = Backbone(divisor), classes
        inputs = [STAGES[n][1] // divisor for n in TAKEN]
        self.lateral = nn.ModuleList(ConvNorm(n, channels, activation=False) for n in inputs)
        self.again = nn.ModuleList(ConvNorm(n, channels, activation=False) for n in inputs[1:])
        self.further = ConvNorm(inputs[-1], channels, activation=False)
        self.pyramid = nn.ModuleList(BiFPN(channels) for _ in range(LAYERS))
        each = len(RATIOS) * len(SCALES)
        self.score, self.deltas = Head(channels, each * classes), Head(channels, each * 4)
        nn.init.constant_(self.score.last[1].bias, -4.6)  # prior of 1 % objects, as in the publication of focal loss

    def forward(self, images: torch.Tensor, objects: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        """Return the loss; inputs have shapes ``(batch, 3, side, side)``, ``(batch, n, 4)`` and ``(batch, n)``."""
        taken = self.backbone(images)
        sixth = _downsample_by_two(self.further(taken[-1]))
        levels = [*(layer(x) for layer, x in zip(self.lateral, taken, strict=True)), sixth, _downsample_by_two(sixth)]
        again = [levels[0], *(layer(x) for layer, x in zip(self.again, taken[1:], strict=True)), *levels[3:]]
        for layer in self.pyramid:
            levels = layer(levels, again)
            again = levels
        scores, deltas = self.score(levels, self.classes), self.deltas(levels, 4)
        anchors = torch.cat([
            ops.anchors_of_level(x.shape, stride, [4 * stride * s for s in SCALES], RATIOS, x.device)
            for x, stride in zip(levels, STRIDES, strict=True)
        ])  # fmt: skip
        return detection_loss(scores, deltas, anchors, objects, classes)


def detection_loss(
    scores: torch.Tensor, deltas: torch.Tensor, anchors: torch.Tensor, objects: torch.Tensor, classes: torch.Tensor
) -> torch.Tensor:
    """Return the focal loss (alpha 0.25, gamma 1.5) of all anchors plus 50 times the box error of matched anchors."""
    with torch.no_grad():
        labels, number = ops.match_anchors(anchors, objects, 0.5, 0.5)
        counts = labels == 1
        chosen = torch.where(counts, ops.gather_rows(classes, number), 0)
        wanted = functional.one_hot(chosen, scores.shape[-1] + 1)[..., 1:].to(scores.dtype)
        boxes = ops.encode_boxes(ops.gather_rows(objects, number), anchors)
        most = counts.sum().clamp(min=1)
    raw = functional.binary_cross_entropy_with_logits(scores, wanted, reduction="none")
    shares = torch.sigmoid(scores)
    missed = wanted * (1 - shares) + (1 - wanted) * shares
    focal = ((0.25 * wanted + 0.75 * (1 - wanted)) * missed.pow(1.5) * raw).sum() / most
    error = functional.huber_loss(deltas, boxes, delta=0.1, reduction="none").sum(-1)
    return focal + 50 * (error * counts).sum() / (4 * most)


def _random_images(side: int, batch: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(batch, 3, side, side), *random_objects(batch, side, side, CLASSES + 1)


def _loss(model: nn.Module, *inputs: torch.Tensor) -> torch.Tensor:
    return model(*inputs)


def efficientdet_d0(*, reduced: bool = False) -> Workload:
    """Return EfficientDet-D0 for COCO; reduced: a quarter of the channels, 128 x 128 images."""
    divisor, channels, side = (4, 16, 128) if reduced else (1, CHANNELS, SIDE)
    sgd = partial(torch.optim.SGD, lr=0.01, momentum=0.9, weight_decay=4e-5)
    return Workload(
        partial(EfficientDet, divisor, channels), partial(_random_images, side), supervised_step_factory(sgd, _loss,
            clip_norm=10.0),
        batch=2 if reduced else 8,
    )  # fmt: skip
