"""Rewrites ONNX Runtime's fused attention operators; earlier keys and values are joined with the new ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from roller.models.onnx.lowering_registry import Unsupported
from roller.models.onnx.runtime_operators.rewrites import NodeRewrite, register_rewrite


def _split_heads(s: NodeRewrite, x: str, count: int) -> str:
    """Return ``x``, shape ``(batch, length, heads * size)``, as ``(batch, heads, length, size)``."""
    batch, length, width = s.shape(x)
    return s.add("Transpose", s.reshape(x, (batch, length, count, width // count)), perm=[0, 2, 1, 3])


def _attend_and_merge_heads(s: NodeRewrite, query: str, key: str, value: str, masks: Sequence[str]) -> str:
    """Return the attention outputs of all heads, merged into shape ``(batch, length, heads * size)``."""
    scale = float(s.attribute("scale", 0.0) or 0.0) or 1 / math.sqrt(s.shape(query)[-1])
    scores = s.add("MatMul", query, s.add("Transpose", key, perm=[0, 1, 3, 2]))
    scores = s.add("Mul", scores, s.number(scale, scores))
    for mask in masks:
        scores = s.add("Add", scores, mask)
    y = s.add("Transpose", s.add("MatMul", s.add("Softmax", scores, axis=-1), value), perm=[0, 2, 1, 3])
    batch, length, heads, size = s.shape(y)
    return s.reshape(y, (batch, length, heads * size))


def _additive_mask(s: NodeRewrite, keep: str, like: str) -> str:
    """Return the term added to scores: 0 where ``keep`` is positive, otherwise the node's mask value."""
    hidden = float(s.attribute("mask_filter_value", -10000.0))
    seen = s.add("Greater", keep, s.number(0, keep))
    return s.add("Where", seen, s.number(0, like), s.number(hidden, like))


def _additive_score_terms(s: NodeRewrite, query: str, length: int, mask: str, bias: str) -> list[str]:
    """Return the terms added to scores: those of the mask and of later steps, and the bias."""
    found, (batch, _, rows, _) = [], s.shape(query)
    if mask:
        shape = s.shape(mask)
        if shape == (batch,):  # the number of keys in each sequence
            at = s.constant(np.arange(length, dtype=np.int32)[None])
            keep = s.add("Sub", s.reshape(s.cast(mask, "int32"), (batch, 1)), at)
        elif shape in ((batch, length), (batch, rows, length)):
            keep = mask
        else:
            raise Unsupported(f"{s.node.op} with a mask of shape {list(shape)}")
        keep = s.reshape(keep, (batch, 1, 1, length) if len(shape) < 3 else (batch, 1, rows, length))
        found.append(_additive_mask(s, keep, query))
    if s.attribute("unidirectional", 0):
        later = np.triu(np.ones((rows, length), bool), 1 + length - rows)
        number = np.finfo(np.float16).min if s.type(query).dtype == "float16" else np.finfo(np.float32).min / 4
        found.append(s.cast(s.constant(np.where(later, number, 0).astype(np.float32)), s.type(query).dtype))
    return [*found, bias] if bias else found


@register_rewrite("Attention")
def rewrite_attention(s: NodeRewrite) -> Sequence[str]:
    """Rewrite attention on one input as projections, a split into heads, and the attention itself."""
    s.refuse_inputs(a_length_of_earlier_steps=6)
    if s.attribute("do_rotary", 0):
        raise Unsupported("Attention with rotary embeddings")
    x, weights = s.required(0), s.required(1)
    width, count = s.shape(weights)[1], int(s.attribute("num_heads"))
    sizes = list(s.attribute("qkv_hidden_sizes", ()) or (width // 3,) * 3)
    projected = s.add("MatMul", x, weights)
    if s.input(2):
        projected = s.add("Add", projected, s.input(2))
    parts = s.add_with_results("Split", [projected, s.constant(np.array(sizes, np.int64))], 3, axis=2)
    query, key, value = (_split_heads(s, p, count) for p in parts)
    present = []
    if s.input(4):  # the keys and values of earlier steps, one after the other
        several = [s.reshape(n, (1, *s.shape(n))) for n in (key, value)]
        present = [s.add("Concat", s.input(4), s.add("Concat", *several, axis=0), axis=3)]
        both = s.add_with_results("Split", [present[0]], 2, axis=0, num_outputs=2)
        key, value = (s.reshape(n, s.shape(n)[1:]) for n in both)
    masks = _additive_score_terms(s, query, s.shape(key)[2], s.input(3), s.input(5))
    return [_attend_and_merge_heads(s, query, key, value, masks), *present]


@register_rewrite("MultiHeadAttention")
def rewrite_multi_head_attention(s: NodeRewrite) -> Sequence[str]:
    """Rewrite attention on queries, keys and values as a split into heads and the attention itself."""
    s.refuse_inputs(a_length_of_earlier_steps=8, a_cache=9)
    query, key, value = s.required(0), s.input(1), s.input(2)
    if not key or not value or any(len(s.shape(n)) != 3 for n in (query, key, value)):
        raise Unsupported("MultiHeadAttention of packed queries, keys or values")
    count = int(s.attribute("num_heads"))
    if s.input(3):
        sizes = np.array([s.shape(n)[2] for n in (query, key, value)], np.int64)
        biases = s.add_with_results("Split", [s.input(3), s.constant(sizes)], 3, axis=0)
        query, key, value = (s.add("Add", n, b) for n, b in zip((query, key, value), biases, strict=True))
    query, key, value = (_split_heads(s, n, count) for n in (query, key, value))
    if bool(s.input(6)) != bool(s.input(7)):
        raise Unsupported("MultiHeadAttention with earlier keys or values, but not both")
    if s.input(6):
        key, value = (s.add("Concat", s.input(at), n, axis=2) for at, n in ((6, key), (7, value)))
    masks = _additive_score_terms(s, query, s.shape(key)[2], s.input(4), s.input(5))
    return [_attend_and_merge_heads(s, query, key, value, masks), key, value]
