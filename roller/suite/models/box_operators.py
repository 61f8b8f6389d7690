"""Operators of detectors with fixed shapes; boxes are (left, top, right, bottom)."""

# Where published code selects all boxes that pass a test, a fixed number is selected here, best first; boxes that
# fail the test have no effect.

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.nn import functional

#: Largest logarithmic growth of a box, log(1000 / 16) as in Detectron.
_MOST_GROWTH = math.log(1000 / 16)


def anchors_of_level(
    shape: torch.Size, stride: int, sizes: Sequence[float], ratios: Sequence[float], device: torch.device
) -> torch.Tensor:
    """Return anchors, shape ``(height * width * sizes * ratios, 4)``, for a level; ratios are height over width."""
    height, width = shape[-2:]
    sides = [(size * math.sqrt(1 / ratio), size * math.sqrt(ratio)) for size in sizes for ratio in ratios]
    around = torch.tensor([(-w / 2, -h / 2, w / 2, h / 2) for w, h in sides], device=device)
    x = (torch.arange(width, device=device) + 0.5) * stride
    y = (torch.arange(height, device=device) + 0.5) * stride
    centres = torch.stack([x.repeat(height), y.repeat_interleave(width)], 1).repeat(1, 2)
    return (centres[:, None] + around).reshape(-1, 4)


def intersection_over_union(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return intersections over unions, shape ``(..., n, m)``, of boxes, shapes ``(..., n, 4)`` and ``(..., m, 4)``."""
    low = torch.maximum(first[..., :, None, :2], second[..., None, :, :2])
    high = torch.minimum(first[..., :, None, 2:], second[..., None, :, 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    areas = [(boxes[..., 2:] - boxes[..., :2]).prod(-1) for boxes in (first, second)]
    return shared / (areas[0][..., :, None] + areas[1][..., None, :] - shared)


def encode_boxes(boxes: torch.Tensor, anchors: torch.Tensor, weights: tuple[float, float] = (1.0, 1.0)) -> torch.Tensor:
    """Return the shifts and log scales, shape ``(..., 4)``, from anchors to boxes, multiplied by ``weights``."""
    sizes, wanted = anchors[..., 2:] - anchors[..., :2], boxes[..., 2:] - boxes[..., :2]
    shift = (boxes[..., :2] + wanted / 2 - anchors[..., :2] - sizes / 2) / sizes
    return torch.cat([weights[0] * shift, weights[1] * torch.log(wanted / sizes)], -1)


def decode_boxes(deltas: torch.Tensor, anchors: torch.Tensor, image: tuple[int, int]) -> torch.Tensor:
    """Return anchors moved and scaled by ``deltas``, at least a pixel wide, and clipped to an image (height, width)."""
    sizes = anchors[..., 2:] - anchors[..., :2]
    centres = anchors[..., :2] + sizes / 2 + deltas[..., :2] * sizes
    half = sizes * torch.exp(deltas[..., 2:].clamp(max=_MOST_GROWTH)) / 2
    limit = torch.tensor([image[1], image[0]], dtype=anchors.dtype, device=anchors.device)
    low = torch.minimum((centres - half).clamp(min=0), limit - 1)
    return torch.cat([low, torch.maximum(torch.minimum(centres + half, limit), low + 1)], -1)


def match_anchors(
    anchors: torch.Tensor, boxes: torch.Tensor, low: float, high: float, *, best_of_each: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return anchor labels (1 matched, 0 background, -1 ignored) and the index of the best box for each anchor."""
    overlaps = intersection_over_union(anchors.expand(len(boxes), -1, -1), boxes)
    best, number = overlaps.max(-1)
    labels = (best >= high).long() - ((best >= low) & (best < high)).long()
    if best_of_each:
        labels = torch.where((overlaps == overlaps.amax(1, keepdim=True)).any(-1), 1, labels)
    return labels, number


def sample_anchors(labels: torch.Tensor, count: int, most_matched: int) -> torch.Tensor:
    """Return ``count`` random anchor indices per image: at most ``most_matched`` matched ones, then background."""
    chance = torch.rand(labels.shape, device=labels.device)
    most_matched = min(most_matched, labels.shape[1])
    rank = torch.where(labels == 1, 1 + chance, chance).topk(most_matched, 1)
    key = torch.where(labels == 0, 1 + chance, chance)
    key = key.scatter(1, rank.indices, torch.where(rank.values >= 1, rank.values + 1, key.gather(1, rank.indices)))
    return key.topk(min(count, labels.shape[1]), 1).indices


def suppress_overlapping_boxes(
    boxes: torch.Tensor, scores: torch.Tensor, most_overlap: float, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ranks and indices of the best boxes; ranks exceed 1 if no better box overlaps by over ``most_overlap``."""
    # all pairs at once, as in Fast NMS (Bolya et al., "YOLACT", 2019): a suppressed box still suppresses others
    stays = intersection_over_union(boxes, boxes).triu(1).amax(1) <= most_overlap
    ranks, numbers = (scores.sigmoid() + stays).topk(min(count, boxes.shape[1]), 1)
    return ranks, numbers


def gather_rows(rows: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Gather rows, shape ``(batch, k, ...)``, from shape ``(batch, n, ...)`` at indices of shape ``(batch, k)``."""
    if rows.dim() == 2:
        return rows.gather(1, numbers)
    return rows.gather(1, numbers[..., None].expand(-1, -1, rows.shape[-1]))


def pack_levels(levels: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pack levels, each half the size of the previous one, into an image; return the image and the levels' corners."""
    first, *others = levels
    corners, top = [(0, 0)], 0
    if not others:
        return first, torch.zeros(1, 2, device=first.device)
    width, column = others[0].shape[-1], []
    for level in others:
        column.append(functional.pad(level, (0, width - level.shape[-1])))
        corners.append((first.shape[-1], top))
        top += level.shape[-2]
    joined = torch.cat(column, 2)
    height = max(first.shape[-2], top)
    both = [functional.pad(x, (0, 0, 0, height - x.shape[-2])) for x in (first, joined)]
    return torch.cat(both, 3), torch.tensor(corners, dtype=torch.float32, device=first.device)


def roi_align(
    levels: Sequence[torch.Tensor], strides: Sequence[int], boxes: torch.Tensor, side: int, points: int = 1
) -> torch.Tensor:
    """Return the levels' features in ``boxes`` by RoIAlign (He et al., "Mask R-CNN", 2017), with one grid sampling."""
    atlas, corners = pack_levels(levels)
    batch, count = boxes.shape[:2]
    sizes = boxes[..., 2:] - boxes[..., :2]
    level = torch.floor(4 + torch.log2(sizes.prod(-1).sqrt() / 224 + 1e-6)).clamp(2, 1 + len(levels)).long() - 2
    stride = torch.tensor(strides, dtype=boxes.dtype, device=boxes.device)[level]
    ends = torch.tensor([[x.shape[-1] - 1, x.shape[-2] - 1] for x in levels], dtype=boxes.dtype, device=boxes.device)
    place = (torch.arange(side * points, device=boxes.device) + 0.5) / (side * points)
    inside = boxes[..., None, :2] + place[:, None] * sizes[..., None, :]
    inside = torch.minimum((inside / stride[..., None, None] - 0.5).clamp(min=0), ends[level][..., None, :])
    inside = inside + corners[level][..., None, :]
    shape = torch.tensor([atlas.shape[-1] - 1, atlas.shape[-2] - 1], dtype=boxes.dtype, device=boxes.device)
    x, y = (2 * inside / shape - 1).unbind(-1)
    n = side * points
    grid = torch.stack([x[..., None, :].expand(-1, -1, n, -1), y[..., None].expand(-1, -1, -1, n)], -1)
    found = functional.grid_sample(atlas, grid.reshape(batch, count * n, n, 2), align_corners=True)
    if points > 1:
        found = functional.avg_pool2d(found, points)
    return found.unflatten(2, (count, side)).transpose(1, 2).flatten(0, 1)


def smooth_l1_box_loss(
    found: torch.Tensor, wanted: torch.Tensor, counts: torch.Tensor, beta: float = 1 / 9
) -> torch.Tensor:
    """Return the summed error of the boxes for which ``counts`` holds, divided by the number of all boxes."""
    error = functional.smooth_l1_loss(found, wanted, beta=beta, reduction="none").sum(-1)
    return (error * counts).sum() / counts.numel()
