"""Rewrites ONNX Runtime's attention with groups of heads that share keys and values, with a cache of earlier steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from roller.models.onnx.lowering_registry import Unsupported
from roller.models.onnx.runtime_operators.rewrites import NodeRewrite, register_rewrite


@register_rewrite("GroupQueryAttention")
def rewrite_grouped_attention(s: NodeRewrite) -> Sequence[str]:
    """Rewrite attention over the earlier and the new keys and values.

    All sequences of a batch must have the length of the cache: results of others, whose rows ONNX Runtime would write
    elsewhere, are NaN.
    """
    s.refuse_inputs(an_attention_bias=10, attention_sinks=11, scales_of_keys=12, scales_of_values=13)
    for name, off in (("local_window_size", -1), ("smooth_softmax", 0), ("qk_output", 0)):
        if s.attribute(name, off) not in (off, None):
            raise Unsupported(f"GroupQueryAttention with {name}={s.attribute(name)}")
    heads, shared = int(s.attribute("num_heads")), int(s.attribute("kv_num_heads"))
    query, key, value = _queries_keys_values(s, heads, shared)
    batch, _, rows, size = s.shape(query)
    lengths = s.reshape(s.required(5), (batch, 1))  # positions of the last rows
    if s.attribute("do_rotary", 0):
        at = s.input(9) or s.add("Add", s.cast(lengths, "int64"), s.constant(np.arange(1 - rows, 1)[None]))
        query, key = _rotated(s, query, at), _rotated(s, key, at)
    if bool(s.input(3)) != bool(s.input(4)):
        raise Unsupported("GroupQueryAttention with earlier keys or values, but not both")
    if s.input(3):
        key, value = (s.add("Concat", s.input(at), n, axis=2) for at, n in ((3, key), (4, value)))
    total = s.shape(key)[2]
    # The rows of the heads that share keys lie side by side, so that one product reads the keys once.
    query = s.reshape(query, (batch, shared, heads // shared * rows, size))
    scores = s.add("MatMul", query, s.add("Transpose", key, perm=[0, 1, 3, 2]))
    scores = s.add("Mul", scores, s.number(float(s.attribute("scale", 0.0) or 0.0) or 1 / math.sqrt(size), scores))
    cap = float(s.attribute("softcap", 0.0) or 0.0)
    if cap:
        scores = s.add("Tanh", s.add("Mul", scores, s.number(1 / cap, scores)))
        scores = s.add("Mul", scores, s.number(cap, scores))
    if rows > 1:
        later = np.triu(np.ones((rows, total), bool), 1 + total - rows)
        hidden = np.tile(np.where(later, -np.inf, 0), (heads // shared, 1)).astype(np.float32)
        scores = s.add("Add", scores, s.cast(s.constant(hidden), s.type(scores).dtype))
    whole = s.add("Equal", lengths, s.constant(np.array(total - 1, np.int32)))
    scores = s.add("Where", s.reshape(whole, (batch, 1, 1, 1)), scores, s.number(math.nan, scores))
    y = s.reshape(s.add("MatMul", s.add("Softmax", scores, axis=-1), value), (batch, heads, rows, size))
    return [s.reshape(s.add("Transpose", y, perm=[0, 2, 1, 3]), (batch, rows, heads * size)), key, value]


def _queries_keys_values(s: NodeRewrite, heads: int, shared: int) -> tuple[str, str, str]:
    """Return the projections of all heads, shape ``(batch, heads, rows, size)``, from three inputs or a packed one."""
    query = s.required(0)
    if not s.input(1) and not s.input(2):
        size = s.shape(query)[2] // (heads + 2 * shared)
        sizes = s.constant(np.array([heads * size, shared * size, shared * size], np.int64))
        parts = s.add_with_results("Split", [query, sizes], 3, axis=2)
    else:
        parts = [query, s.required(1), s.required(2)]

    def split(name: str, count: int) -> str:
        batch, rows, width = s.shape(name)
        return s.add("Transpose", s.reshape(name, (batch, rows, count, width // count)), perm=[0, 2, 1, 3])

    return split(parts[0], heads), split(parts[1], shared), split(parts[2], shared)


def _rotated(s: NodeRewrite, x: str, at: str) -> str:
    """Return ``x`` with rotary position embeddings for the positions ``at``, shape ``(batch, rows)``."""
    batch, heads, rows, size = s.shape(x)
    half = s.shape(s.required(7))[1]
    cosine, sine = (s.reshape(s.add("Gather", s.required(n), at), (batch, 1, rows, half)) for n in (7, 8))
    sizes = s.constant(np.array([2 * half, size - 2 * half], np.int64))
    turned, rest = s.add_with_results("Split", [x, sizes], 2, axis=3) if size > 2 * half else (x, "")
    pairs = bool(s.attribute("rotary_interleaved", 0))
    shape = (batch, heads, rows, half, 2) if pairs else (batch, heads, rows, 2, half)
    axis = 4 if pairs else 3
    both = s.add_with_results("Split", [s.reshape(turned, shape)], 2, axis=axis, num_outputs=2)
    first, second = (s.reshape(n, (batch, heads, rows, half)) for n in both)
    one = s.add("Sub", s.add("Mul", first, cosine), s.add("Mul", second, sine))
    two = s.add("Add", s.add("Mul", second, cosine), s.add("Mul", first, sine))
    several = [s.reshape(n, (batch, heads, rows, *((half, 1) if pairs else (1, half)))) for n in (one, two)]
    y = s.reshape(s.add("Concat", *several, axis=axis), (batch, heads, rows, 2 * half))
    return s.add("Concat", y, rest, axis=3) if rest else y
