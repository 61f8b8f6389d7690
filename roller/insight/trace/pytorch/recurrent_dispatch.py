"""Dispatch of recurrent layers to cuDNN, with one operator for all steps and layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

#: Maps PyTorch's name of a recurrent layer to cuDNN's mode.
MODES: Mapping[str, int] = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}


def dispatch_rnn(name: str, target: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Return recurrent layers' output and last state from cuDNN's operator; ``NotImplemented`` if it is unavailable."""
    packed = not isinstance(args[3], bool)
    if packed:
        inputs, sizes, state, weights, _, layers, dropout, train, both = args
        batch_first = False
    else:
        inputs, state, weights, _, layers, dropout, train, both, batch_first = args
        sizes = None
    hx, cx = state if name == "lstm" else (state, None)
    if not (target.cudnn and torch.backends.cudnn.enabled and inputs.is_meta):
        return NotImplemented
    projected = hx.shape[-1] if cx is not None and hx.shape[-1] != cx.shape[-1] else 0
    hidden = cx.shape[-1] if cx is not None else hx.shape[-1]
    each = len(weights) // (layers * (2 if both else 1))
    # Modules of recurrent layers flatten their weights on the device; the buffer is on the device of the first weight.
    buffer = weights[0].detach()
    output, hy, cy, _, _ = torch.ops.aten._cudnn_rnn.default(
        inputs, list(weights), each, buffer, hx.contiguous(), None if cx is None else cx.contiguous(), MODES[name],
        hidden, projected, layers, batch_first, float(dropout), bool(train), bool(both),
        [] if sizes is None else sizes.tolist(), _dropout_generator_state(inputs, dropout, train),
    )  # fmt: skip
    return (output, hy, cy) if name == "lstm" else (output, hy)


def _dropout_generator_state(inputs: torch.Tensor, dropout: float, train: bool) -> torch.Tensor | None:
    """Return the state of cuDNN's dropout generator for layers with dropout in training; otherwise ``None``."""
    return torch.empty(0, dtype=torch.uint8, device=inputs.device) if dropout and train else None


def dispatch_lstm_cell(target: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Return the state of an LSTM cell, computing its element-wise part in one kernel."""
    inputs, (hx, cx), weight_in, weight_hidden, *biases = args
    if not inputs.is_meta:
        return NotImplemented
    bias_in, bias_hidden = (*biases, None, None)[:2]
    gates = torch.nn.functional.linear(inputs, weight_in)
    hidden = torch.nn.functional.linear(hx, weight_hidden)
    return torch.ops.aten._thnn_fused_lstm_cell.default(gates, hidden, cx, bias_in, bias_hidden)[:2]
