"""Whole nodes compiled and run: what several kernels, views and joins become."""

from __future__ import annotations

import numpy as np
import pytest

import roller
from tests.models.onnx.lowering_oracle import model_of, node, runtime


def _array(shape, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def _cases():
    images = [_array((1, 4, 5, 5)), _array((4, 3, 4, 4), 1), _array(3, 2)]
    yield node("ConvTranspose", 3, strides=[2, 2], pads=[1, 1, 1, 1], version=11), images
    yield node("MaxPool", 1, outputs=2, kernel_shape=[2, 2]), [_array((1, 3, 6, 6))]
    yield node("Einsum", 3, equation="ij,jk,kl->il"), [_array((3, 4)), _array((4, 5), 1), _array((5, 6), 2)]


def _larger_cases():
    states = [_array((5, 2, 3)), _array((2, 16, 3), 1), _array((2, 16, 4), 2), _array((2, 32), 3)]
    yield node("LSTM", 4, outputs=3, version=14, hidden_size=4, direction="bidirectional"), states
    lengths = np.array([5, 3], np.int32)
    states = [_array((5, 2, 3)), _array((1, 12, 3), 1), _array((1, 12, 4), 2), _array((1, 24), 3), lengths]
    yield node("GRU", 5, outputs=2, version=14, hidden_size=4), states
    yield node("LRN", 1, size=3), [_array((1, 8, 4, 4))]


def _of(cases, *marks):
    return [pytest.param(op, arrays, id=op.op, marks=marks) for op, arrays in cases]


@pytest.mark.parametrize(("op", "arrays"), [*_of(_cases()), *_of(_larger_cases(), pytest.mark.slow)])
def test_sessions(op, arrays, tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLER_CACHE_DIR", str(tmp_path))
    session = roller.compile_model(model_of(op, arrays), device="cpu")
    feeds = dict(zip(op.inputs, arrays, strict=True))
    for got, wanted in zip(session.run(None, feeds), runtime(op, arrays), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
