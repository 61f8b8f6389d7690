"""Faster R-CNN on ResNet-101, and Mask R-CNN on ResNet-50 with a feature pyramid, in plain PyTorch."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional

from roller.suite.entry import Workload
from roller.suite.models import box_operators as ops
from roller.suite.models.residual import RESNET50, RESNET101, FrozenNorm, make_stages
from roller.suite.models.supervised_step import supervised_step_factory

# Faster R-CNN: Ren et al., 2015, arXiv:1506.01497, on the first four parts of ResNet-101, with the fifth as head (He et
# al., 2015), for the 20 classes of Pascal VOC 2007 in images of about 350 x 500, at batch 1. Of 2,000 boxes, 300 are
# proposed, and 64 train the head, as in TensorFlow's implementation. Mask R-CNN: He et al., 2017, arXiv:1703.06870,
# with the feature pyramid of Lin et al., 2016, arXiv:1612.03144, for 91 class indices of COCO in images of 800 x 1344.
# Of 2,000 boxes, 1,000 are proposed, and 512 train the heads; at most a quarter of these, which are matched ones, train
# the masks.
RATIOS = (0.5, 1.0, 2.0)
#: Weights of shifts and log scales in the heads.
HEAD_WEIGHTS = (10.0, 5.0)
#: Number of objects per image; about 2.5 in VOC and 7.3 in COCO.
OBJECTS = 8


class Stem(nn.Sequential):
    """First part of a ResNet, which reduces height and width to a quarter."""

    def __init__(self, width: int) -> None:
        super().__init__(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), FrozenNorm(width), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )


class Proposer(nn.Module):
    """Region proposal network over all levels, with its loss."""

    def __init__(
        self, inputs: int, width: int, strides: tuple[int, ...], sizes: tuple[tuple[int, ...], ...],
        considered: int, count: int,
    ) -> None:  # fmt: skip
        super().__init__()
        each = len(sizes[0]) * len(RATIOS)
        self.conv = nn.Conv2d(inputs, width, 3, padding=1)
        self.score, self.deltas = nn.Conv2d(width, each, 1), nn.Conv2d(width, 4 * each, 1)
        for layer in (self.conv, self.score, self.deltas):
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.zeros_(layer.bias)
        self.strides, self.sizes, self.considered, self.count = strides, sizes, considered, count

    def forward(
        self, levels: list[torch.Tensor], image: tuple[int, int], objects: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return boxes without gradients, shape ``(batch, count, 4)``, and the loss over 256 anchors of each image."""
        scores, deltas, anchors = [], [], []
        for level, stride, sizes in zip(levels, self.strides, self.sizes, strict=True):
            x = torch.relu(self.conv(level))
            scores.append(self.score(x).permute(0, 2, 3, 1).flatten(1))
            deltas.append(self.deltas(x).permute(0, 2, 3, 1).reshape(len(x), -1, 4))
            anchors.append(ops.anchors_of_level(level.shape, stride, sizes, RATIOS, level.device))
        with torch.no_grad():
            proposed = self._select_proposals(scores, deltas, anchors, image)
        return proposed, self._loss(torch.cat(scores, 1), torch.cat(deltas, 1), torch.cat(anchors), objects)

    def _select_proposals(
        self, scores: list[torch.Tensor], deltas: list[torch.Tensor], anchors: list[torch.Tensor],
        image: tuple[int, int],
    ) -> torch.Tensor:  # fmt: skip
        kept, ranks = [], []
        for score, delta, anchor in zip(scores, deltas, anchors, strict=True):
            best, numbers = score.topk(min(self.considered, score.shape[1]), 1)
            near = ops.gather_rows(anchor.expand(len(score), -1, -1), numbers)
            found = ops.decode_boxes(ops.gather_rows(delta, numbers), near, image)
            rank, left = ops.suppress_overlapping_boxes(found, best, 0.7, self.count)
            kept.append(ops.gather_rows(found, left))
            ranks.append(rank)
        if len(kept) == 1:
            return kept[0]
        order = torch.cat(ranks, 1).topk(self.count, 1).indices
        return ops.gather_rows(torch.cat(kept, 1), order)

    def _loss(
        self, scores: torch.Tensor, deltas: torch.Tensor, anchors: torch.Tensor, objects: torch.Tensor
    ) -> torch.Tensor:
        with torch.no_grad():
            labels, number = ops.match_anchors(anchors, objects, 0.3, 0.7, best_of_each=True)
            chosen = ops.sample_anchors(labels, 256, 128)
            labels = ops.gather_rows(labels, chosen)
            near = ops.gather_rows(anchors.expand(len(objects), -1, -1), chosen)
            wanted = ops.encode_boxes(ops.gather_rows(objects, ops.gather_rows(number, chosen)), near)
        scored = functional.binary_cross_entropy_with_logits(
            ops.gather_rows(scores, chosen), (labels == 1).float(), weight=(labels >= 0).float()
        )
        return scored + ops.smooth_l1_box_loss(ops.gather_rows(deltas, chosen), wanted, labels == 1)


class Refiner(nn.Module):
    """Last layers of a head: class logits and a refined box for each class."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.score, self.deltas = nn.Linear(inputs, classes), nn.Linear(inputs, 4 * classes)
        nn.init.normal_(self.score.weight, std=0.01)
        nn.init.normal_(self.deltas.weight, std=0.001)

    def loss(self, x: torch.Tensor, near: torch.Tensor, objects: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        """Return the loss of boxes ``near``, shape ``(batch, n, 4)``, with ``classes``; class 0 is background."""
        flat = classes.flatten()
        found = self.deltas(x).unflatten(-1, (-1, 4))
        own = found.gather(1, flat[:, None, None].expand(-1, 1, 4)).view(near.shape)
        wanted = ops.encode_boxes(objects, near, HEAD_WEIGHTS)
        return functional.cross_entropy(self.score(x), flat) + ops.smooth_l1_box_loss(own, wanted, classes > 0, 1.0)


def sample_proposals(
    proposed: torch.Tensor, objects: torch.Tensor, classes: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return ``count`` proposals and objects (at most a quarter matched), and their object indices and classes."""
    with torch.no_grad():
        everything = torch.cat([proposed, objects], 1)
        labels, number = ops.match_anchors(everything, objects, 0.5, 0.5)
        chosen = ops.sample_anchors(labels, count, count // 4)
        number = ops.gather_rows(number, chosen)
        found = torch.where(ops.gather_rows(labels, chosen) == 1, ops.gather_rows(classes, number), 0)
        return ops.gather_rows(everything, chosen), number, found


class FasterRCNN(nn.Module):
    """Faster R-CNN, called on images and returning its loss; class 0 is background; ``count`` boxes train the head."""

    def __init__(self, width: int = 64, classes: int = 21, count: int = 64) -> None:
        super().__init__()
        self.stem, stages = Stem(width), make_stages(RESNET101, width, FrozenNorm)
        self.body, self.head = stages[:3], stages[3]
        self.proposer = Proposer(16 * width, 8 * width, (16,), ((64, 128, 256, 512),), 2_000, 300)
        self.refiner, self.count = Refiner(32 * width, classes), count

    def forward(self, images: torch.Tensor, objects: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        """Return the loss; inputs have shapes ``(batch, 3, height, width)``, ``(batch, n, 4)`` and ``(batch, n)``."""
        level = self.body(self.stem(images))
        proposed, loss = self.proposer([level], (images.shape[2], images.shape[3]), objects)
        near, number, found = sample_proposals(proposed, objects, classes, self.count)
        x = self.head(ops.roi_align([level], [16], near, 14)).mean((2, 3))
        return loss + self.refiner.loss(x, near, ops.gather_rows(objects, number), found)


class Pyramid(nn.Module):
    """Feature pyramid: computes five levels of equal width from four."""

    def __init__(self, inputs: list[int], width: int) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Conv2d(n, width, 1) for n in inputs)
        self.outer = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in inputs)

    def forward(self, levels: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return levels from a quarter to a 64th of the image size."""
        x = self.inner[-1](levels[-1])
        found = [self.outer[-1](x)]
        for number in range(len(levels) - 2, -1, -1):
            above = functional.interpolate(x, size=levels[number].shape[-2:], mode="nearest")
            x = self.inner[number](levels[number]) + above
            found.insert(0, self.outer[number](x))
        return [*found, functional.max_pool2d(found[-1], 1, 2)]


class MaskRCNN(nn.Module):
    """Mask R-CNN, called on images with masks and returning its loss; ``kept`` is the number of proposed boxes."""

    def __init__(
        self, width: int = 64, classes: int = 91, count: int = 512, channels: int = 256, units: int = 1024,
        kept: int = 1_000,
    ) -> None:  # fmt: skip
        super().__init__()
        self.stem, self.stages = Stem(width), make_stages(RESNET50, width, FrozenNorm)
        self.pyramid = Pyramid([4 * width << n for n in range(4)], channels)
        sizes = tuple((32 << n,) for n in range(5))
        self.proposer = Proposer(channels, channels, (4, 8, 16, 32, 64), sizes, 2_000, kept)
        self.box_head = nn.Sequential(
            nn.Flatten(), nn.Linear(49 * channels, units), nn.ReLU(), nn.Linear(units, units), nn.ReLU()
        )
        self.refiner, self.count = Refiner(units, classes), count
        layers = (part for _ in range(4) for part in (nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()))
        self.mask_head = nn.Sequential(
            *layers, nn.ConvTranspose2d(channels, channels, 2, 2), nn.ReLU(), nn.Conv2d(channels, classes, 1)
        )

    def forward(
        self, images: torch.Tensor, objects: torch.Tensor, classes: torch.Tensor, masks: torch.Tensor
    ) -> torch.Tensor:
        """Return the loss; masks have shape ``(batch, n, height, width)``; for others, see :class:`FasterRCNN`."""
        x, levels = self.stem(images), []
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        levels = self.pyramid(levels)
        proposed, loss = self.proposer(levels, (images.shape[2], images.shape[3]), objects)
        near, number, found = sample_proposals(proposed, objects, classes, self.count)
        strides = self.proposer.strides[:4]
        x = self.box_head(ops.roi_align(levels[:4], strides, near, 7, 2))
        loss = loss + self.refiner.loss(x, near, ops.gather_rows(objects, number), found)
        few = self.count // 4
        return loss + self._mask_loss(levels[:4], strides, near[:, :few], number[:, :few], found[:, :few], masks)

    def _mask_loss(
        self, levels: list[torch.Tensor], strides: tuple[int, ...], near: torch.Tensor, number: torch.Tensor,
        found: torch.Tensor, masks: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        x = self.mask_head(ops.roi_align(levels, strides, near, 14, 2))
        flat = found.flatten()
        own = x.gather(1, flat[:, None, None, None].expand(-1, 1, *x.shape[-2:])).squeeze(1)
        with torch.no_grad():
            # Each box samples the masks of all objects in its image, and selects the sample of its own object.
            parts = ops.roi_align([masks], [1], near, x.shape[-1])
            wanted = parts.gather(1, number.flatten()[:, None, None, None].expand(-1, 1, *x.shape[-2:])).squeeze(1)
        error = functional.binary_cross_entropy_with_logits(own, wanted, reduction="none").mean((1, 2))
        return (error * (flat > 0)).sum() / (flat > 0).sum().clamp(min=1)


def random_objects(batch: int, height: int, width: int, classes: int) -> tuple[torch.Tensor, ...]:
    """Return objects, shape ``(batch, OBJECTS, 4)``, at least an eighth of the image in size, and classes from 1."""
    size = torch.tensor([width, height])
    low = torch.rand(batch, OBJECTS, 2) * 0.5
    boxes = torch.cat([low * size, (low + 0.125 + torch.rand(batch, OBJECTS, 2) * 0.375) * size], -1)
    return boxes, torch.randint(1, classes, (batch, OBJECTS))


def _random_images(height: int, width: int, classes: int, batch: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(batch, 3, height, width), *random_objects(batch, height, width, classes)


def _random_images_and_masks(height: int, width: int, classes: int, batch: int) -> tuple[torch.Tensor, ...]:
    masks = (torch.rand(batch, OBJECTS, height, width) < 0.5).float()
    return *_random_images(height, width, classes, batch), masks


def _loss(model: nn.Module, *inputs: torch.Tensor) -> torch.Tensor:
    return model(*inputs)


def faster_rcnn(*, reduced: bool = False) -> Workload:
    """Return Faster R-CNN on ResNet-101 for VOC; reduced: an eighth of the width, 128 x 160 images, 16 boxes."""
    width, height, long, count = (8, 128, 160, 16) if reduced else (64, 352, 500, 64)
    sgd = partial(torch.optim.SGD, lr=1e-3, momentum=0.9, weight_decay=1e-4)
    return Workload(
        partial(FasterRCNN, width, 21, count),
        partial(_random_images, height, long, 21),
        supervised_step_factory(sgd, _loss),
        batch=1,
    )


def mask_rcnn(*, reduced: bool = False) -> Workload:
    """Return Mask R-CNN for COCO: 44,401,393 parameters; reduced: a quarter of the width, 128 x 160 images."""
    height, width = (128, 160) if reduced else (800, 1344)
    sizes = (16, 91, 32, 64, 128, 100) if reduced else ()
    sgd = partial(torch.optim.SGD, lr=0.02 if reduced else 5e-3, momentum=0.9, weight_decay=1e-4)
    return Workload(
        partial(MaskRCNN, *sizes), partial(_random_images_and_masks, height, width, 91), supervised_step_factory(sgd,
                                                                                                                 _loss),
        batch=1 if reduced else 2,
    )  # fmt: skip
