"""Launches of fused attention and of cuDNN's recurrent layers, in the forward and the backward pass."""

from __future__ import annotations

import math

from roller import ops
from roller.expr import TensorExpr
from roller.insight.cost.gpu.operator_view import OperatorView, itemsize, total_bytes
from roller.insight.cost.kernel_launch_types import FusedKernel, Kernel, Launch, MemoryKernel
from roller.insight.trace.trace import TensorRecord

#: Number of kernels for fused attention's gradient: sums of gradient times result, the gradient, and its conversion.
_BACKWARD_KERNELS = 3


def attention_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernel for fused attention, which never stores the attention weights."""
    query, key, value = (view.required_tensor(n, i) for i, n in enumerate(("query", "key", "value")))
    heads, rows, columns = _count_heads_queries_keys(view, query, key)
    products = (
        _score_product_expression(heads, rows, columns, query),
        _value_product_expression(heads, rows, value.shape[-1], columns, query),
    )
    share = _causal_mask_kept_share(view, rows, columns)
    return (
        FusedKernel(
            products, share * heads * rows * columns, total_bytes(view.inputs), total_bytes(view.outputs), share
        ),
    )


def _causal_mask_kept_share(view: OperatorView, rows: int, columns: int) -> float:
    """Return the share of query-key pairs that a causal mask leaves; 1 without a causal mask."""
    # The mask is aligned with the first query and key (``is_causal``, or ``custom_mask_type`` 1) or with the last ones
    # (2).
    kind = int(view.argument("custom_mask_type", 0)) or int(bool(view.argument("is_causal", False)))
    if not kind:
        return 1.0
    least, most = min(rows, columns), max(rows, columns)
    triangle = least * (least + 1) / 2
    if kind == 1:  # queries after the last key see every key
        seen = triangle + max(0, rows - columns) * columns
    else:  # every query also sees the keys before the first query
        seen = triangle + (max(0, columns - rows) * rows if rows < columns else 0)
    return seen / (least * most)


def attention_backward_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernels for fused attention's gradient: one product recomputes the weights, four compute gradients."""
    names = ("query", "key", "value")
    query, key, value = (view.required_tensor(n, i + 1) for i, n in enumerate(names))
    heads, rows, columns = _count_heads_queries_keys(view, query, key)
    depth = query.shape[-1]
    weights = _score_product_expression(heads, rows, columns, query)
    products = (
        weights,
        weights,
        _value_product_expression(heads, rows, depth, columns, query),
        _value_product_expression(heads, columns, depth, rows, query),
        _value_product_expression(heads, columns, value.shape[-1], rows, query),
    )
    share = _causal_mask_kept_share(view, rows, columns)
    return (
        FusedKernel(
            products, share * heads * rows * columns, total_bytes(view.inputs), total_bytes(view.outputs), share,
            _BACKWARD_KERNELS,
        ),
    )  # fmt: skip


def _count_heads_queries_keys(view: OperatorView, query: TensorRecord, key: TensorRecord) -> tuple[int, int, int]:
    """Return the numbers of heads in the whole batch, of queries and of keys."""
    # Tensors are ``(batch, heads, length, depth)``; operators on ``(batch, length, heads, depth)`` have different
    # names.
    if not view.packet.startswith(("aten._efficient_attention", "aten._flash_attention")):
        return math.prod(query.shape[:-2]), query.shape[-2], key.shape[-2]
    starts = view.tensor("cum_seq_q") or view.tensor("cu_seqlens_q")
    if starts is None or len(starts.shape) != 1 or starts.shape[0] < 2:
        return query.shape[0] * query.shape[-2], query.shape[-3], key.shape[-3]
    samples = starts.shape[0] - 1  # concatenated samples; the trace has no values, so equal lengths are assumed
    rows, columns = (max(1, math.ceil(t.shape[-3] / samples)) for t in (query, key))
    return samples * query.shape[-2], rows, columns


def _score_product_expression(heads: int, rows: int, columns: int, query: TensorRecord) -> TensorExpr:
    return ops.matmul(rows, columns, query.shape[-1], heads, False, True, dtype=query.dtype)


def _value_product_expression(heads: int, rows: int, depth: int, columns: int, query: TensorRecord) -> TensorExpr:
    return ops.matmul(rows, depth, columns, heads, dtype=query.dtype)


#: Number of gates of a recurrent cell, indexed by cuDNN's mode: two plain cells, LSTM, GRU.
_GATES = (1, 1, 4, 3)


def recurrent_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernels for recurrent layers: per layer, one product for all inputs, then one product per step."""
    return _recurrent_layer_launches(view, view.required_tensor("input", 0), 1)


def recurrent_backward_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernels for recurrent layers' gradients, with products for the gradients of inputs and of weights."""
    return _recurrent_layer_launches(view, view.required_tensor("input", 0), 2)


def _recurrent_layer_launches(view: OperatorView, x: TensorRecord, times: int) -> tuple[Launch, ...]:
    steps, batch = _count_steps_and_batch(view, x)
    hidden, layers = int(view.argument("hidden_size")), int(view.argument("num_layers", 1))
    gates, kept = _GATES[int(view.argument("mode", 2))] * hidden, int(view.argument("proj_size", 0)) or hidden
    directions = 2 if view.argument("bidirectional", False) else 1
    found: list[Launch] = []
    width = x.shape[-1]
    cell = (gates + 2 * hidden) * batch * itemsize(x.dtype)
    for _ in range(layers):
        found.append(
            Kernel(ops.matmul(steps * batch, gates, width, transpose_b=True, dtype=x.dtype), times * directions)
        )
        step = ops.matmul(batch, gates, kept, transpose_b=True, dtype=x.dtype)
        found.append(Kernel(step, steps * directions))
        if kept != hidden:
            shrunk = ops.matmul(batch, kept, hidden, transpose_b=True, dtype=x.dtype)
            found.append(Kernel(shrunk, times * steps * directions))
        found.append(MemoryKernel(steps * directions * cell, steps * directions * cell / 2, steps * directions))
        if times > 1:
            found.append(Kernel(ops.matmul(gates, kept, steps * batch, transpose_a=True, dtype=x.dtype), directions))
        width = kept * directions
    return tuple(found)


def _count_steps_and_batch(view: OperatorView, x: TensorRecord) -> tuple[int, int]:
    """Return the number of steps and the number of samples per step, averaged for packed sequences."""
    packed = view.argument("batch_sizes", ())
    if packed:
        return len(packed), max(1, math.ceil(x.shape[0] / len(packed)))
    return (x.shape[1], x.shape[0]) if view.argument("batch_first", False) else (x.shape[0], x.shape[1])
