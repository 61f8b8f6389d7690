"""What detectors share, held to plain loops."""

import pytest

torch = pytest.importorskip("torch")

from roller.suite.models import box_operators as ops  # noqa: E402


def random_boxes(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    low = torch.rand(*shape, 2, generator=generator) * 50
    return torch.cat([low, low + 1 + torch.rand(*shape, 2, generator=generator) * 50], -1)


def test_overlap():
    first, second = torch.tensor([[0.0, 0.0, 2.0, 2.0]]), torch.tensor([[1.0, 1.0, 3.0, 3.0], [5.0, 5.0, 6.0, 6.0]])
    torch.testing.assert_close(ops.intersection_over_union(first, second), torch.tensor([[1 / 7, 0.0]]))


def test_decoding_undoes_encoding():
    anchors, boxes = random_boxes(2, 7), random_boxes(2, 7, seed=1)
    found = ops.decode_boxes(ops.encode_boxes(boxes, anchors, (1.0, 1.0)), anchors, (200, 200))
    torch.testing.assert_close(found, boxes, rtol=1e-4, atol=1e-3)


def test_anchors_lie_around_the_pixels_of_a_level():
    found = ops.anchors_of_level(torch.Size((2, 3)), 16, [32], [1.0], torch.device("cpu"))
    assert found.shape == (6, 4)
    assert found[0].tolist() == [-8.0, -8.0, 24.0, 24.0] and found[4].tolist() == [8.0, 8.0, 40.0, 40.0]
    tall = ops.anchors_of_level(torch.Size((1, 1)), 8, [8], [4.0], torch.device("cpu"))[0]
    assert ((tall[3] - tall[1]) / (tall[2] - tall[0])).item() == pytest.approx(4)


def test_matches():
    anchors = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 6], [20, 20, 30, 30], [0, 0, 10, 4.5]])
    objects = torch.tensor([[[0.0, 0, 10, 10], [21.0, 20, 40, 40]]])
    labels, number = ops.match_anchors(anchors, objects, 0.5, 0.7)
    assert labels.tolist() == [[1, -1, 0, 0]] and number[0, :2].tolist() == [0, 0]
    best, _ = ops.match_anchors(anchors, objects, 0.5, 0.7, best_of_each=True)
    assert best.tolist() == [[1, -1, 1, 0]]


@pytest.mark.parametrize("matches", [0, 2, 20])
def test_samples_have_matched_ones_first_and_never_too_many(matches):
    labels = torch.zeros(1, 40, dtype=torch.long)
    labels[0, :matches], labels[0, 30:] = 1, -1
    chosen = ops.gather_rows(labels, ops.sample_anchors(labels, 16, 4))[0].tolist()
    few = min(matches, 4)
    background = min(16 - few, 30 - matches)
    assert chosen[:few] == [1] * few and chosen[few : few + background] == [0] * background


def test_suppression_keeps_a_declared_number_best_first():
    boxes = torch.tensor([[[0.0, 0, 10, 10], [0, 0, 10, 9], [20, 20, 30, 30], [50, 50, 60, 60]]])
    ranks, numbers = ops.suppress_overlapping_boxes(boxes, torch.tensor([[3.0, 2.0, 1.0, 0.0]]), 0.7, 4)
    assert numbers.tolist() == [[0, 2, 3, 1]] and (ranks[0] > 1).tolist() == [True, True, True, False]


def align_by_loops(level, stride, box, side, points):
    """RoIAlign, sample by sample."""
    found = torch.zeros(level.shape[0], side, side)
    height, width = level.shape[1:]
    left, top, right, bottom = (v / stride - 0.5 for v in box)
    n = side * points
    for i in range(n):
        for j in range(n):
            y = min(max(top + (i + 0.5) / n * (bottom - top), 0), height - 1)
            x = min(max(left + (j + 0.5) / n * (right - left), 0), width - 1)
            y0, x0 = min(int(y), height - 2), min(int(x), width - 2)
            dy, dx = y - y0, x - x0
            value = (
                level[:, y0, x0] * (1 - dy) * (1 - dx) + level[:, y0, x0 + 1] * (1 - dy) * dx
                + level[:, y0 + 1, x0] * dy * (1 - dx) + level[:, y0 + 1, x0 + 1] * dy * dx
            )  # fmt: skip
            found[:, i // points, j // points] += value / points**2
    return found


def test_roi_align_equals_the_definition_on_every_level():
    generator = torch.Generator().manual_seed(3)
    levels = [torch.randn(2, 3, 128 >> n, 160 >> n, generator=generator) for n in range(4)]
    strides = [4, 8, 16, 32]
    boxes = torch.tensor(
        [
            [[3.0, 5, 60, 40], [10, 20, 200, 180], [0, 0, 400, 360], [0, 0, 640, 512]],
            [[600, 480, 640, 512], [100, 100, 290, 300], [320, 10, 640, 500], [1, 2, 600, 510]],
        ]
    )
    size = (boxes[..., 2:] - boxes[..., :2]).prod(-1).sqrt()
    chosen = torch.floor(4 + torch.log2(size / 224)).clamp(2, 5).long() - 2
    assert sorted(set(chosen.flatten().tolist())) == [0, 1, 2, 3]
    found = ops.roi_align(levels, strides, boxes, 5, 2).view(2, 4, 3, 5, 5)
    for image in range(2):
        for number in range(4):
            level = int(chosen[image, number])
            wanted = align_by_loops(levels[level][image], strides[level], boxes[image, number].tolist(), 5, 2)
            torch.testing.assert_close(found[image, number], wanted, rtol=1e-3, atol=1e-3)
