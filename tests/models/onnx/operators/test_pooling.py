"""Pooling against onnx's reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from roller_runtime.plan.program_steps import Value
from tests.models.onnx.lowering_oracle import agrees, expressions, node, runtime
from tests.offenders import every


def _array(shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def _window(data, rank, dilated=True):
    per = st.tuples(*[st.integers(1, 3)] * rank)
    size, kernel, strides = data.draw(st.tuples(*[st.integers(3, 7)] * rank)), data.draw(per), data.draw(per)
    dilations = data.draw(per) if dilated else (1,) * rank
    pads = [data.draw(st.integers(0, k - 1)) for k in kernel * 2]
    spare = (a + b for a, b in zip(pads[:rank], pads[rank:], strict=True))
    sides = zip(size, spare, dilations, kernel, strict=True)
    assume(all(s + p - d * (k - 1) >= 1 for s, p, d, k in sides))
    return size, {"kernel_shape": list(kernel), "strides": list(strides), "dilations": list(dilations), "pads": pads}


@given(rank=st.integers(1, 3), ceil=st.booleans(), data=st.data())
def test_maxima(rank, ceil, data):
    size, how = _window(data, rank)
    pool, x = node("MaxPool", 1, ceil_mode=int(ceil), **how), [_array((2, 2, *size))]
    agrees(pool, x, wanted=runtime(pool, x))


@given(rank=st.integers(1, 3), ceil=st.booleans(), counts=st.booleans(), data=st.data())
def test_averages(rank, ceil, counts, data):
    size, how = _window(data, rank)
    pool, x = node("AveragePool", 1, ceil_mode=int(ceil), count_include_pad=int(counts), **how), [_array((1, 2, *size))]
    agrees(pool, x, wanted=runtime(pool, x))


@pytest.mark.parametrize("order", [0, 1])
def test_positions_of_maxima(order):
    x = np.random.default_rng(0).integers(0, 3, (1, 2, 5, 6)).astype(np.float32)  # with ties
    how = {"kernel_shape": [2, 3], "strides": [1, 2], "storage_order": order}
    pool = node("MaxPool", 1, outputs=2, **how)
    windows = np.lib.stride_tricks.sliding_window_view(x, (2, 3), axis=(2, 3))[:, :, :, ::2]
    flat = windows.reshape(*windows.shape[:4], 6)
    first = flat.argmax(-1)
    rows = np.arange(4)[:, None] + first // 3
    columns = np.arange(0, 4, 2)[None, :] + first % 3
    place = columns * 5 + rows if order else rows * 6 + columns
    place = place + 30 * np.arange(2)[None, :, None, None]
    agrees(pool, [x], wanted=[flat.max(-1), place.astype(np.int64)])


def test_padding_is_never_a_position():
    x = np.full((1, 1, 3, 3), -np.inf, np.float32)
    pool = node("MaxPool", 1, outputs=2, kernel_shape=[2, 2], pads=[1, 1, 0, 0])
    want = np.array([[0, 0, 1], [0, 0, 1], [3, 3, 4]], np.int64)[None, None]
    agrees(pool, [x], wanted=[x, want])


@pytest.mark.parametrize("p", [1, 2, 3])
def test_norms_of_windows(p):
    agrees(node("LpPool", 1, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1], p=p), [_array((2, 3, 6, 5))])


@every("op", ["GlobalAveragePool", "GlobalMaxPool"])
@every("size", [(5,), (4, 3), (2, 3, 4)])
def test_whole_images(op, size):
    agrees(node(op, 1), [_array((2, 3, *size))], wanted=runtime(node(op, 1), [_array((2, 3, *size))]))
    types = [Value("o0", (2, 3, *(1,) * len(size)))]
    ((expr, _),) = expressions(node(op, 1), [_array((2, 3, *size))], types=types)
    assert len(expr.stages) == (2 if op == "GlobalAveragePool" else 1)


def test_norms_of_whole_images():
    x = _array((2, 3, 4, 5))
    agrees(node("GlobalLpPool", 1, p=2), [x], wanted=[np.sqrt((x**2).sum((2, 3), keepdims=True))])
