"""Quantised products against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.onnx.lowering_oracle import agrees, node, runtime


def _bytes(shape, seed=0, dtype=np.uint8):
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max, shape, endpoint=True).astype(dtype)


def _scale(value):
    return np.asarray(value, np.float32)


def test_products():
    arrays = [_bytes((3, 4)), _scale(0.02), np.uint8(120), _bytes((4, 5), 1), _scale(0.03), np.uint8(100), _scale(0.1),
              np.uint8(110)]  # fmt: skip
    agrees(node("QLinearMatMul", 8), arrays, wanted=runtime(node("QLinearMatMul", 8), arrays), atol=1)


@pytest.mark.parametrize("constants", [(), (2,)])
@pytest.mark.parametrize("bias", [True, False])
def test_convolutions(bias, constants):
    per_filter = _scale([0.02, 0.03, 0.01])
    arrays = [_bytes((1, 2, 5, 5)), _scale(0.02), np.uint8(7), _bytes((3, 2, 3, 3), 1, np.int8), per_filter,
              np.zeros(3, np.int8), _scale(0.3), np.uint8(90),
              np.array([100, -50, 3], np.int32) if bias else None]  # fmt: skip
    op = node("QLinearConv", 9, pads=[1, 1, 1, 1], version=10)
    agrees(op, arrays, constants, wanted=runtime(op, arrays), atol=1)
