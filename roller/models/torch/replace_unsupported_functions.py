"""Replacements for functions that exporters do not support or compute differently from PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from roller.errors import RollerError

if TYPE_CHECKING:
    import torch


def replace_unsupported_calls(graph: torch.fx.Graph) -> None:
    """Replace calls to unsupported functions in a traced graph, in place."""
    import torch

    # For rounded quotients of integers, the exporter divides in float32, which cannot represent 16,777,217. Inference
    # fast paths of ``nn.TransformerEncoderLayer`` and ``nn.MultiheadAttention`` are one operator each. ONNX's ``Clip``
    # with one bound makes infinities on the other side finite, and ONNX leaves the sign of NaN open.
    known: dict[Any, Callable[..., Any]] = {
        torch._transformer_encoder_layer_fwd: encoder_layer,
        torch._native_multi_head_attention: attention,
        torch.div: divide_exactly,
        torch.divide: divide_exactly,
        **dict.fromkeys((torch.clamp, torch.clip, torch.clamp_min), clamp_keeping_infinities),
        torch.clamp_max: _clamp_max,
        **dict.fromkeys((torch.sign, torch.sgn), sign_with_zero_for_nan),
    }
    methods: dict[str, Callable[..., Any]] = {
        "div": divide_exactly, "divide": divide_exactly, "div_": divide_in_place, "divide_": divide_in_place,
        "clamp": clamp_keeping_infinities, "clip": clamp_keeping_infinities, "clamp_min": clamp_keeping_infinities,
        "clamp_max": _clamp_max,
        "sign": sign_with_zero_for_nan, "sgn": sign_with_zero_for_nan,
    }  # fmt: skip
    for node in graph.nodes:
        if node.op == "call_function" and node.target in known:
            node.target = known[node.target]
        elif node.op == "call_method" and node.target in methods:
            node.op, node.target = "call_function", methods[node.target]


def divide_exactly(input: Any, other: Any, *, rounding_mode: str | None = None, **options: Any) -> torch.Tensor:
    """Return ``torch.div``; rounded quotients of integers are computed in integers."""
    import torch

    if rounding_mode is None:
        return torch.div(input, other, **options)
    kind = torch.result_type(input, other)
    if options or kind.is_floating_point or kind.is_complex or kind == torch.bool:
        return torch.div(input, other, rounding_mode=rounding_mode, **options)
    below: torch.Tensor = torch.floor_divide(input, other)
    if rounding_mode == "floor":
        return below
    # To round towards zero, add one to a negative quotient with a remainder: only there does flooring differ.
    one_more: torch.Tensor = (below < 0) & (below * other != input)
    return below + one_more.to(below.dtype)


def clamp_keeping_infinities(input: Any, min: Any = None, max: Any = None, **options: Any) -> torch.Tensor:
    """Return ``torch.clamp``; a single numeric bound is complemented by an infinite one on the other side."""
    import torch

    alone = [b for b in (min, max) if b is not None]
    if options or len(alone) != 1 or not isinstance(alone[0], (int, float)) or not input.is_floating_point():
        return torch.clamp(input, min, max, **options)
    return torch.clamp(input, -math.inf if min is None else float(min), math.inf if max is None else float(max))


def _clamp_max(input: Any, max: Any, **options: Any) -> torch.Tensor:
    return clamp_keeping_infinities(input, None, max, **options)


def sign_with_zero_for_nan(input: Any, **options: Any) -> torch.Tensor:
    """Return ``torch.sign``, with 0 for NaN."""
    import torch

    if options or not input.is_floating_point():
        return torch.sign(input, **options)
    found: torch.Tensor = (input > 0).to(input.dtype) - (input < 0).to(input.dtype)
    return found


def divide_in_place(input: torch.Tensor, other: Any, **options: Any) -> torch.Tensor:
    """Return ``torch.Tensor.div_``."""
    return input.copy_(divide_exactly(input, other, **options))


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, embed_dim: int, heads: int, qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, mask: torch.Tensor | None = None,
    need_weights: bool = True, average: bool = True, mask_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """Return the result and weights of attention; arguments are as for ``torch._native_multi_head_attention``."""
    import torch
    from torch.nn import functional

    _refuse_mask(mask, mask_type)
    (batch, length, _), split = query.shape, qkv_weight.chunk(3)
    biases = qkv_bias.chunk(3)
    q, k, v = (functional.linear(x, w, b).view(batch, x.shape[1], heads, embed_dim // heads).transpose(1, 2)
               for x, w, b in zip((query, key, value), split, biases, strict=True))  # fmt: skip
    shares = torch.softmax(q @ k.transpose(2, 3) * (embed_dim // heads) ** -0.5, -1)
    mixed = (shares @ v).transpose(1, 2).reshape(batch, length, embed_dim)
    given = (shares.mean(1) if average else shares) if need_weights else None
    return functional.linear(mixed, weight, bias), given


def encoder_layer(
    x: torch.Tensor, embed_dim: int, heads: int, qkv_weight: torch.Tensor, qkv_bias: torch.Tensor, weight: torch.Tensor,
    bias: torch.Tensor, use_gelu: bool, norm_first: bool, eps: float, norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor, norm_weight_2: torch.Tensor, norm_bias_2: torch.Tensor, ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor, ffn_weight_2: torch.Tensor, ffn_bias_2: torch.Tensor, mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """Return the output of a transformer encoder layer; see ``torch._transformer_encoder_layer_fwd`` for arguments."""
    from torch.nn import functional

    def attend(y: torch.Tensor) -> torch.Tensor:
        return attention(y, y, y, embed_dim, heads, qkv_weight, qkv_bias, weight, bias, mask, False, True, mask_type)[0]

    def feed(y: torch.Tensor) -> torch.Tensor:
        hidden = functional.linear(y, ffn_weight_1, ffn_bias_1)
        return functional.linear(functional.gelu(hidden) if use_gelu else hidden.relu(), ffn_weight_2, ffn_bias_2)

    def first(y: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(y, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second(y: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(y, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = x + attend(first(x))
        return x + feed(second(x))
    x = first(x + attend(x))
    return second(x + feed(x))


def _refuse_mask(mask: Any, mask_type: Any) -> None:
    if mask is not None or mask_type is not None:
        raise RollerError(
            "a fast path of PyTorch with a mask is not taken apart. Switch it off before compiling: "
            "torch.backends.mha.set_fastpath_enabled(False)."
        )
