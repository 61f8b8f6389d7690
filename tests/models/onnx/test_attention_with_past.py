"""ONNX Runtime's attention operators with the keys and values of earlier steps, each against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.onnx_backend import RollerBackend
from roller.errors import ModelError
from tests.models.onnx.runtime_models import values
from tests.models.onnx.test_runtime_operators import agree, single

MASKS = (None, np.array([[1, 1, 1, 0, 0, 1, 1], [1] * 7], np.int32))
PAST = 5


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("bias", [None, values(36, seed=7)])
def test_multi_head_attention(mask, bias):
    rows = (values(2, 1, 12, seed=n) for n in range(3))
    inputs = (*rows, bias, mask, None, values(2, 3, 6, 4, seed=3), values(2, 3, 6, 4, seed=4))
    agree(*single("MultiHeadAttention", inputs, outputs=3, num_heads=3), atol=1e-5)


@pytest.mark.parametrize("rows", [1, 2])
def test_attention_with_both_in_one_cache(rows):
    mask = MASKS[1] if rows == 1 else None
    weights = values(12, 36, seed=1, scale=0.4), values(36, seed=2)
    inputs = (values(2, rows, 12), *weights, mask, values(2, 2, 3, 6, 4, seed=3))
    agree(*single("Attention", inputs, outputs=2, weights=(1, 2), num_heads=3, unidirectional=1), atol=1e-5)


def grouped(rows=1, *, packed=False, rotate=False, size=16, half=8, lengths=None, **attributes):
    """Return a GroupQueryAttention of four heads, of which two share keys and values."""
    batch = 2 if rows == 1 else 1  # as ONNX Runtime asks for
    parts = [values(batch, rows, n * size, seed=n) for n in (4, 2)] + [values(batch, rows, 2 * size, seed=9)]
    inputs = [np.concatenate(parts, 2), None, None] if packed else parts
    inputs += [values(batch, 2, PAST, size, seed=n) for n in (5, 6)]
    total = PAST + rows
    lengths = np.full(batch, total - 1, np.int32) if lengths is None else np.array(lengths, np.int32)
    inputs += [lengths, np.array(total, np.int32)]
    if rotate:
        angles = np.outer(np.arange(16), 100.0 ** (-np.arange(half) / half))
        inputs += [f(angles).astype(np.float32) for f in (np.cos, np.sin)]
    return single("GroupQueryAttention", inputs, outputs=3, weights=(6, 7, 8), num_heads=4, kv_num_heads=2,
                  do_rotary=int(rotate), **attributes)  # fmt: skip


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    "details",
    [
        {}, {"packed": True}, {"scale": 0.3}, {"softcap": 2.0}, {"rotate": True},
        {"rotate": True, "rotary_interleaved": 1, "packed": True}, {"rotate": True, "size": 32},
    ],
)  # fmt: skip
def test_grouped_attention(rows, details):
    agree(*grouped(rows, **details), atol=1e-5)


def test_sequences_of_another_length_are_not_numbers():
    """ONNX Runtime writes their rows elsewhere: silence would be a wrong result."""
    model, feeds = grouped(lengths=[PAST, PAST - 1])
    y, *_ = RollerBackend.prepare(model, evaluated=True).run(list(feeds.values()))
    assert np.isfinite(y[0]).all() and np.isnan(y[1]).all()


@pytest.mark.parametrize(
    ("attributes", "message"), [({"local_window_size": 4}, "local_window_size=4"), ({"smooth_softmax": 1}, "smooth")]
)
def test_refused_forms(attributes, message):
    model, feeds = grouped(**attributes)
    with pytest.raises(ModelError, match=message):
        RollerBackend.prepare(model, evaluated=True).run(list(feeds.values()))


def test_keys_without_values_are_refused():
    inputs = (*(values(2, 1, 12, seed=n) for n in range(3)), None, None, None, values(2, 3, 6, 4))
    model, feeds = single("MultiHeadAttention", inputs, outputs=3, num_heads=3)
    with pytest.raises(ModelError, match="earlier keys or values, but not both"):
        RollerBackend.prepare(model, evaluated=True).run(list(feeds.values()))
