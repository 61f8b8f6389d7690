"""Normalisations against onnx's reference or NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from roller.expr.canonical import fuse_axes
from roller.models.onnx.lowering_registry import Unsupported
from tests.models.onnx.lowering_oracle import agrees, expressions, node
from tests.offenders import every


def _array(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _batch(shape):
    parameters = [_array(shape[1], i) for i in (1, 2, 3)] + [np.abs(_array(shape[1], 4)) + 0.1]
    return [_array(shape), *parameters]


@pytest.mark.parametrize("constants", [(), (1, 2, 3, 4)])
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4, 5)])
def test_by_given_statistics(shape, constants):
    agrees(node("BatchNormalization", 5, epsilon=1e-3), _batch(shape), constants)


def test_training_is_refused():
    with pytest.raises(Unsupported, match="training"):
        x = _batch((2, 3))
        agrees(node("BatchNormalization", 5, training_mode=1), x, wanted=[x[0]])


@every("axis", [-1, 1, 2, 0])
@every("outputs", [1, 2, 3])
@every("shift", [True, False])
def test_rows(axis, outputs, shift):
    shape = (3, 4, 5)
    scale, bias = _array(shape[axis:], 1), _array(shape[axis:], 2) if shift else None
    layer = node("LayerNormalization", 3, outputs=outputs, axis=axis, epsilon=1e-2)
    agrees(layer, [_array(shape), scale, bias])


def test_joint_dimensions_of_a_row_become_one():
    x = _array((3, 4, 5))
    for op, inputs in (
        (node("LayerNormalization", 3, axis=1), [x, _array((4, 5), 1), _array((4, 5), 2)]),
        (node("InstanceNormalization", 3), [_array((2, 3, 4, 5)), _array(3), _array(3)]),
    ):
        ((expr, _),) = expressions(op, inputs)
        assert [len(s.reduction_axes) for s in fuse_axes(expr).stages] == [1, 1, 0]


@pytest.mark.parametrize("axis", [-1, 1])
def test_root_mean_squares(axis):
    x, scale = _array((3, 4, 5)), _array((3, 4, 5)[axis:], 1)
    square = np.mean(x**2, axis=tuple(range(axis % 3, 3)), keepdims=True)
    agrees(node("RMSNormalization", 2, axis=axis), [x, scale], wanted=[x / np.sqrt(square + 1e-5) * scale])


def test_channels_of_images():
    agrees(node("InstanceNormalization", 3, epsilon=1e-2), [_array((2, 3, 4, 5)), _array(3, 1), _array(3, 2)])


@pytest.mark.parametrize("version", [18, 21])
def test_groups_of_channels(version):
    width = 2 if version == 18 else 6
    x, scale, shift = _array((2, 6, 3, 4)), _array(width, 1), _array(width, 2)
    rows = x.reshape(2, 2, -1)
    normal = (rows - rows.mean(2, keepdims=True)) / np.sqrt(rows.var(2, keepdims=True) + 1e-5)
    repeat = 6 // width
    per = [np.repeat(p, repeat)[None, :, None, None] for p in (scale, shift)]
    wanted = normal.reshape(x.shape) * per[0] + per[1]
    agrees(node("GroupNormalization", 3, num_groups=2, version=version), [x, scale, shift], wanted=[wanted])


@pytest.mark.parametrize("axes", [None, [0, 1], [2]])
def test_mean_and_variance(axes):
    x = _array((2, 3, 4, 5))
    over = tuple(axes or (0, 2, 3))
    wanted = (x - x.mean(over, keepdims=True)) / (x.std(over, keepdims=True) + 1e-9)
    agrees(node("MeanVarianceNormalization", 1, axes=axes), [x], wanted=[wanted])


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [0, -1])
def test_unit_rows(p, axis):
    x = _array((3, 4, 5))
    x[0] = 0
    norm = np.linalg.norm(x, p, axis, keepdims=True)
    agrees(node("LpNormalization", 1, p=p, axis=axis), [x], wanted=[x / np.where(norm == 0, 1, norm)])


@every("size", [1, 3, 4, 5])
@every("beta", [0.75, 0.5, 1.0, 0.3])
def test_neighbouring_channels(size, beta):
    op = node("LRN", 1, size=size, alpha=0.5, beta=beta, bias=2.0)
    x = _array((2, 7, 3, 4))
    before, after = (size - 1) // 2, size // 2
    square = np.stack([(x[:, max(0, c - before) : c + after + 1] ** 2).sum(1) for c in range(7)], 1)
    agrees(op, [x], wanted=[x / (2 + 0.5 / size * square) ** beta])
    ((expr, _),) = expressions(op, [_array((2, 7, 3, 4))])
    assert expr.epilogue is not None
