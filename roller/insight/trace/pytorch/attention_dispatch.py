"""Chooses the kernel for attention on a device and calls the operators around it.

As in ATen/native/transformers/cuda/sdp_utils.cpp, the first kernel that supports the arguments is chosen.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from roller.insight.trace.pytorch import older_softmax

_HALF = (torch.float16, torch.bfloat16)
#: Maximum number of elements per head in flash attention and in cuDNN's attention.
_MOST_FLASH_HEAD = 256
_MOST_CUDNN_HEAD = 128
#: Above this version of cuDNN, PyTorch prefers cuDNN's attention on devices of sm_90, sm_100 and sm_103.
_PREFERRED_CUDNN = 91500


def dispatch_attention(target: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Return the result of attention from the operators that the device runs; ``NotImplemented`` for host tensors."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    q, k, v = (given[name] for name in names[:3])
    mask, drop = given.get("attn_mask"), float(given.get("dropout_p") or 0.0)
    causal, scale = bool(given.get("is_causal")), given.get("scale")
    if not q.is_meta or q.dim() < 2:
        return NotImplemented
    if given.get("enable_gqa") and k.shape[-3] != q.shape[-3]:
        k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    if not target.release.has_fused_attention:
        return _attention_before_torch_2(target, q, k, v, mask, drop, causal, scale)
    kernel = choose_attention_kernel(target, q, k, v, mask)
    grads = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
    if kernel == "math":
        return _math_attention(q, k, v, mask, drop, causal, scale, widens=target.release.unfused_attention_widens)
    if kernel == "flash":
        if not target.release.flash_attention_keeps_layout:
            q, k, v = (_to_batch_length_heads_layout(t) for t in (q, k, v))
        return _flash_attention(q, k, v, drop, causal, scale)
    bias = None if mask is None else _mask_to_bias(mask, q)
    if kernel == "cudnn":
        bias = bias if bias is None else _expand_bias(bias, q, k)
        return torch.ops.aten._scaled_dot_product_cudnn_attention.default(
            q, k, v, bias, grads, drop, causal, False, scale=scale
        )[0]
    bias = bias if bias is None else _expand_bias(_align_bias(bias), q, k)
    return torch.ops.aten._scaled_dot_product_efficient_attention.default(
        q, k, v, bias, grads, drop, causal, scale=scale
    )[0]


def choose_attention_kernel(target: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any) -> str:
    """Return the attention kernel: ``"flash"``, ``"efficient"``, ``"cudnn"`` or ``"math"``."""
    return str(target.choose(lambda capability: _kernel_by_capability(target, capability, q, k, v, mask)))


def _kernel_by_capability(
    target: Any, capability: tuple[int, int], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any
) -> str:
    cudnn_first = target.cudnn > _PREFERRED_CUDNN and capability in ((9, 0), (10, 0), (10, 3))
    order: tuple[str, ...] = ("flash", "efficient", "cudnn")
    if cudnn_first:
        order = ("cudnn", "flash", "efficient")
    if target.attention != "auto":
        order = (target.attention,)
    head = q.shape[-1]
    fused = q.dim() == 4 and all(t.stride(-1) == 1 and t.numel() for t in (q, k, v)) and q.dtype == k.dtype == v.dtype
    bias_learns = mask is not None and mask.requires_grad
    takes = {
        "flash": fused and capability >= (8, 0) and q.dtype in _HALF and mask is None and head <= _MOST_FLASH_HEAD
        and v.shape[-1] == head,
        "efficient": fused and capability >= (5, 0) and not (q.dtype == torch.bfloat16 and capability < (8, 0))
        and q.dtype in (*_HALF, torch.float32) and head % _head_size_multiple(q.dtype, capability) == 0
        and v.shape[-1] % _head_size_multiple(q.dtype, capability) == 0
        and (mask is None or target.release.efficient_attention_takes_bias),
        "cudnn": fused and bool(target.cudnn) and capability >= (8, 0) and q.dtype in _HALF
        and head <= _MOST_CUDNN_HEAD and head % 8 == 0 and not bias_learns,
    }  # fmt: skip
    return next((kernel for kernel in order if takes.get(kernel)), "math")


def _head_size_multiple(dtype: torch.dtype, capability: tuple[int, int]) -> int:
    """Return the number that must divide the head size in the efficient kernel."""
    if capability >= (8, 0):
        return 8 if dtype in _HALF else 4
    if capability >= (7, 0) and dtype in _HALF:
        return 8
    return 1


def _flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, drop: float, causal: bool, scale: float | None
) -> Any:
    """Run flash attention with the head size padded to a multiple of 8, and remove the padding from the result."""
    head = q.shape[-1]
    if head % 8:
        scale = scale if scale is not None else 1 / math.sqrt(head)
        q, k, v = (torch.nn.functional.pad(t, (0, 8 - head % 8)) for t in (q, k, v))
    result = torch.ops.aten._scaled_dot_product_flash_attention.default(q, k, v, drop, causal, False, scale=scale)[0]
    return result[..., :head] if head % 8 else result


def _to_batch_length_heads_layout(tensor: torch.Tensor) -> torch.Tensor:
    """Return queries, keys or values in (batch, length, heads, head) memory order; copy them if the order differs."""
    batch, heads, length, head = tensor.shape
    rows = tensor.transpose(1, 2).reshape(batch * length, heads, head)
    return rows.view(batch, length, heads, head).transpose(1, 2)


def _mask_to_bias(mask: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Return the additive bias for a boolean mask; return any other mask unchanged."""
    if mask.dtype != torch.bool:
        return mask
    zeros = torch.zeros_like(mask, dtype=q.dtype)
    return zeros.masked_fill_(mask.logical_not(), -math.inf)


def _expand_bias(bias: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Return a view of a bias that is expanded to all samples, heads, queries and keys."""
    return bias.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])


def _align_bias(bias: torch.Tensor) -> torch.Tensor:
    """Return a bias with rows padded to a multiple of 16 before expansion, so that only distinct rows are copied."""
    last = bias.shape[-1]
    if last % 16 == 0:
        return bias
    return torch.nn.functional.pad(bias, (0, 16 - last % 16))[..., :last]


def _math_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, drop: float, causal: bool, scale: float | None, *,
    widens: bool,
) -> Any:  # fmt: skip
    """Run attention as products and a softmax that autocast ignores; with ``widens``, 16-bit inputs become float32."""
    dtype = q.dtype
    if dtype in _HALF and widens:
        q, k, v = q.float(), k.float(), v.float()
    factor = math.sqrt(scale if scale is not None else 1 / math.sqrt(q.shape[-1]))
    if causal:
        allowed = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        mask = torch.zeros_like(allowed, dtype=q.dtype).masked_fill_(allowed.logical_not(), -math.inf)
    elif mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(mask.logical_not(), -math.inf)
    scores = torch.matmul(q * factor, k.transpose(-2, -1) * factor)
    if mask is not None:
        scores = scores.add_(mask)
        # Before 2.5, this is a plain softmax, even for fully masked rows.
        weights = torch.ops.aten._safe_softmax.default(scores, -1) if widens else _softmax(scores)
    else:
        weights = _softmax(scores)
    if drop:
        weights = torch.native_dropout(weights, drop, True)[0]
    return torch.matmul(weights, v).to(dtype)


def _softmax(scores: torch.Tensor) -> torch.Tensor:
    """Return a softmax in the dtype of its input, computed by an operator that autocast does not widen."""
    weights: torch.Tensor = torch.ops.aten._softmax.default(scores, -1, False)
    return weights


def _attention_before_torch_2(
    target: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, drop: float, causal: bool,
    scale: float | None,
) -> Any:  # fmt: skip
    """Run attention as before fused kernels existed: scale the query, multiply, apply a softmax, and multiply again."""
    scores = torch.matmul(q * (scale if scale is not None else 1 / math.sqrt(q.shape[-1])), k.transpose(-2, -1))
    if causal:
        mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(mask.logical_not(), -math.inf)
    if mask is not None:
        scores = scores + mask
    wide = torch.float32 if torch.is_autocast_enabled("cuda") and scores.dtype in _HALF else None
    if target.release.softmax_saves_input:
        weights = older_softmax.softmax_saving_input("softmax", scores, -1, wide)
    elif wide and scores.dtype == torch.float16:
        weights = torch.ops.aten._softmax.default(scores, -1, True)
    else:
        weights = torch.softmax(scores, -1, wide)
    if drop:
        weights = torch.native_dropout(weights, drop, True)[0]
    return torch.matmul(weights.to(v.dtype), v)
