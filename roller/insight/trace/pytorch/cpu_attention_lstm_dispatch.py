"""PyTorch's C++ dispatch on a CPU: blocked attention, and oneDNN's recurrent layers.

Other operators that differ on a GPU (dropout, batch norm, optimizers) run on meta tensors as on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
#: Mode that selects an LSTM in oneDNN's operator.
_LSTM = 2
#: Functions that create a tensor on the CPU if no device is named; ``tensor`` is excluded, since its values are often
#: read.
FACTORIES = frozenset(
    ("arange", "empty", "eye", "full", "linspace", "logspace", "normal", "ones", "rand", "randint", "randn", "randperm",
     "zeros")
)  # fmt: skip


def dispatch_attention(target: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Run blocked attention if ATen's sdp_utils_cpp.cpp would choose it; otherwise return ``NotImplemented``."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    q, k, v = (given[name] for name in names[:3])
    if not q.is_meta or not _supports_blocked_attention(target, q, k, v, given):
        return NotImplemented
    mask = given.get("attn_mask")
    if mask is not None and mask.dtype == torch.bool:
        off, on = (torch.scalar_tensor(x, dtype=q.dtype, device=q.device) for x in (-torch.inf, 0.0))
        mask = torch.where(mask, on, off)
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default(
        q, k, v, 0.0, bool(given.get("is_causal")), attn_mask=mask, scale=given.get("scale")
    )[0]


def _supports_blocked_attention(
    target: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, given: Mapping[str, Any]
) -> bool:
    mask = given.get("attn_mask")
    masked = mask is not None and (bool(given.get("is_causal")) or mask.requires_grad or mask.dim() not in (2, 4))
    return (
        target.attention in ("auto", "flash") and not given.get("dropout_p") and not given.get("enable_gqa")
        and not masked
        and all(t.dim() == 4 and t.stride(-1) == 1 and t.numel() for t in (q, k, v))
        and q.dtype == k.dtype == v.dtype and q.dtype in _FLOATS
        and q.shape[-1] == k.shape[-1] == v.shape[-1] and q.shape[:2] == k.shape[:2] == v.shape[:2]
    )  # fmt: skip


def dispatch_lstm(target: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Run an LSTM with one operator per layer and direction if oneDNN supports it, else return ``NotImplemented``."""
    if not isinstance(args[3], bool):  # packed sequences go cell by cell
        return NotImplemented
    inputs, (hx, cx), weights, biased, layers, dropout, train, both, batch_first = args
    if not inputs.is_meta or hx.shape[-1] != cx.shape[-1] or not torch.backends.mkldnn.enabled:
        return NotImplemented
    directions = 2 if both else 1
    each = 4 if biased else 2
    flow = inputs.transpose(0, 1) if batch_first else inputs
    flow = flow.contiguous()
    last: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    for n in range(layers):
        made = []
        for direction in range(directions):
            at = n * directions + direction
            own = list(weights[at * each : (at + 1) * each])
            states = (hx.select(0, at), cx.select(0, at))
            if not biased:
                # The operator requires biases; PyTorch passes zeros, of the weights' sizes.
                hidden, first = (torch.zeros(w.shape, dtype=w.dtype, device=w.device) for w in reversed(own))
                own += [first, hidden]
            y, h, c, _ = torch.ops.aten.mkldnn_rnn_layer.default(
                flow, *own, *states, bool(direction), [], _LSTM, hx.shape[-1], layers,
                biased, both, batch_first, train,
            )  # fmt: skip
            made.append(y)
            last[0].append(h)
            last[1].append(c)
        flow = made[0] if directions == 1 else torch.cat(made, -1)
        if dropout and train and n < layers - 1:
            flow = torch.dropout(flow, dropout, True)
    hy, cy = (torch.stack(each_layer) for each_layer in last)
    return flow.transpose(0, 1) if batch_first else flow, hy, cy


def _batch_norm_as_on_cpu(func: Any, tensor: torch.Tensor, *args: Any) -> Any:
    """Return the results of the CPU kernel, which does not return moments in inference."""
    normed, mean, deviation = func(tensor, *args)
    training = args[4]
    return (normed, mean, deviation) if training else (normed, mean.new_empty(0), deviation.new_empty(0))


def _rnn_layer_as_on_cpu(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the results of a recurrent layer, with oneDNN's workspace only if gradients are enabled."""
    y, h, c, workspace = func(*args, **kwargs)
    return y, h, c, workspace if torch.is_grad_enabled() else None


def _rnn_layer_backward_as_on_cpu(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Return contiguous gradients with the inputs' shapes, unlike PyTorch's meta kernel."""
    return tuple(torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in args[:7])


#: Maps each operator whose result on meta tensors differs from the CPU's to a function that returns the CPU's.
RULES: Mapping[Any, Callable[..., Any]] = {
    torch.ops.aten.native_batch_norm.default: _batch_norm_as_on_cpu,
    torch.ops.aten.mkldnn_rnn_layer.default: _rnn_layer_as_on_cpu,
    torch.ops.aten.mkldnn_rnn_layer_backward.default: _rnn_layer_backward_as_on_cpu,
}
#: The counterpart of ``device_dependent_dispatch.REPLACED`` for a CPU.
REPLACED: Mapping[str, Callable[[Any, Any, Any, Any], Any]] = {
    "scaled_dot_product_attention": dispatch_attention,
    "lstm": dispatch_lstm,
}
