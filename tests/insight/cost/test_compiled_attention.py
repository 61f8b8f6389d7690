"""Attention that is written out becomes a call of a fused kernel, where the compiler matches it."""

from __future__ import annotations

import math

import pytest

from roller.insight.cost.compiled import compile_trace
from roller.insight.cost.compiled.attention_patterns import fusible_attention_dtypes
from roller.insight.trace.trace import AllocEvent, FreeEvent, Operator, Storage, TensorRecord, Trace

BATCH, HEADS, ROWS, DEPTH = 2, 4, 128, 64
SCORES = (BATCH, HEADS, ROWS, ROWS)
FLAT = (BATCH * HEADS, ROWS, ROWS)


def tensor(storage, shape, dtype="float32", stride=None):
    stride = stride or tuple(math.prod(shape[n + 1 :]) for n in range(len(shape)))
    return TensorRecord(tuple(shape), tuple(stride), dtype, storage)


def heads(storage, dtype, turned=False):
    """Return the heads of a linear layer's result: a view, tokens outside of heads."""
    shape, stride = (BATCH, HEADS, ROWS, DEPTH), (ROWS * HEADS * DEPTH, DEPTH, HEADS * DEPTH, 1)
    if turned:
        shape, stride = (BATCH, HEADS, DEPTH, ROWS), (*stride[:2], 1, HEADS * DEPTH)
    return tensor(storage, shape, dtype, stride)


def operator(name, inputs, out, **arguments):
    return Operator(0, f"aten.{name}", "forward", tuple(inputs), (out,), arguments)


def attention(dtype="float32", mask=False, selects=False, also_read=False):
    """Return a step whose attention is written out, with the copies that its batched products need."""
    q, k, v = heads(0, dtype), heads(1, dtype, turned=True), heads(2, dtype)
    flat = [tensor(3, (BATCH * HEADS, ROWS, DEPTH), dtype), tensor(4, (BATCH * HEADS, DEPTH, ROWS), dtype),
            tensor(5, (BATCH * HEADS, ROWS, DEPTH), dtype)]  # fmt: skip
    copies = [operator("clone.default", [x], tensor(y.storage, x.shape, dtype), self={"tensor": 0})
              for x, y in zip((q, k, v), flat, strict=True)]  # fmt: skip
    steps = [*copies[:2], operator("bmm.default", flat[:2], tensor(10, FLAT, dtype))]
    steps.append(operator("div.Tensor", [tensor(10, SCORES, dtype)], tensor(11, SCORES, dtype), other=8.0))
    last = 11
    if mask:
        own = tensor(20, (BATCH, 1, 1, ROWS), dtype)
        steps.append(operator("add.Tensor", [tensor(last, SCORES, dtype), own], tensor(12, SCORES, dtype)))
        last = 12
    if selects:
        own = tensor(21, (1, 1, ROWS, ROWS), "bool")
        steps.append(operator("where.self", [own, tensor(last, SCORES, dtype)], tensor(13, SCORES, dtype)))
        last = 13
    steps.append(operator("_softmax.default", [tensor(last, SCORES, dtype)], tensor(14, SCORES, dtype), dim=-1))
    if also_read:
        steps.append(operator("exp.default", [tensor(14, SCORES, dtype)], tensor(15, SCORES, dtype)))
    result = tensor(16, (BATCH * HEADS, ROWS, DEPTH), dtype)
    steps += [copies[2], operator("bmm.default", [tensor(14, FLAT, dtype), flat[2]], result)]
    numbered = [Operator(n, o.name, o.phase, o.inputs, o.outputs, o.arguments) for n, o in enumerate(steps)]
    return Trace(tuple(numbered), (), {}, (0, len(numbered)), {"batch": BATCH})


def names(trace):
    return [o.name.removesuffix(".default") for o in compile_trace(trace).operators]


@pytest.mark.parametrize(
    ("dtype", "mask", "expected"),
    [
        ("float16", False, "aten._scaled_dot_product_flash_attention"),
        ("bfloat16", True, "aten._scaled_dot_product_efficient_attention"),
    ],
)
def test_sixteen_bits_are_fused_without_copies_of_the_heads(dtype, mask, expected):
    step = attention(dtype, mask)
    assert names(step) == [expected]
    (found,) = compile_trace(step).operators
    assert [t.storage for t in found.inputs] == [0, 1, 2, *([20] if mask else [])]
    assert [t.shape for t in found.inputs[:3]] == [(BATCH, HEADS, ROWS, DEPTH)] * 3
    assert found.outputs[0].storage == 16 and found.outputs[0].stride[1] == DEPTH  # heads of a token side by side


def test_float32_is_fused_by_older_releases_and_where_products_round():
    step = attention()
    assert "float32" not in fusible_attention_dtypes(step) and len(names(step)) > 1
    older = Trace(step.operators, (), {}, step.iterations, {"batch": BATCH, "torch_release": "2.4"})
    rounding = Trace(step.operators, (), {}, step.iterations, {"batch": BATCH, "tf32": ["convolution", "product"]})
    assert names(older) == names(rounding) == ["aten._scaled_dot_product_efficient_attention"]


@pytest.mark.parametrize("change", [{"selects": True}, {"also_read": True}])
def test_a_mask_that_selects_and_weights_that_are_read_elsewhere_are_not_fused(change):
    found = names(attention("float16", **change))
    assert found.count("aten.bmm") == 2 and not any("scaled_dot_product" in name for name in found)


def test_memory_between_the_products_is_gone():
    step = attention("float16")
    written = {t.storage: n for n, o in enumerate(step.operators) for t in o.outputs}
    last = {t.storage: n for n, o in enumerate(step.operators) for t in o.inputs}
    events = [AllocEvent(s, 512, n) for s, n in written.items()]
    events += [FreeEvent(s, last[s]) for s in written if s in last]
    events.sort(key=lambda e: (e.operator, isinstance(e, FreeEvent)))
    storages = {s: Storage("activation", size_bytes=512) for s in written}
    found = compile_trace(Trace(step.operators, tuple(events), storages, step.iterations, {"batch": BATCH}))
    assert {e.storage for e in found.events} == {16}
