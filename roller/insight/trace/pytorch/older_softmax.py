"""Softmax as in PyTorch releases before 1.11, which save its input in addition to its result."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import Function


class _SavesInput(Function):
    """Softmax or log-softmax that keeps its input alive for the backward pass, which does not read it."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, axis: int, logarithmic: bool, widens: bool) -> torch.Tensor:
        """Return the result."""
        kernel = torch.ops.aten._log_softmax if logarithmic else torch.ops.aten._softmax
        result: torch.Tensor = kernel.default(tensor, axis, widens)
        ctx.save_for_backward(tensor, result)
        ctx.axis, ctx.logarithmic, ctx.dtype = axis, logarithmic, tensor.dtype
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:  # type: ignore[override]
        """Return the gradient with respect to the input."""
        _, result = ctx.saved_tensors
        aten = torch.ops.aten
        kernel = aten._log_softmax_backward_data if ctx.logarithmic else aten._softmax_backward_data
        return kernel.default(gradient, result, ctx.axis, ctx.dtype), None, None, None


def softmax_saving_input(name: str, tensor: torch.Tensor, axis: int, dtype: torch.dtype | None) -> Any:
    """Return the softmax or log-softmax (``name``) in ``dtype``; float16 becomes float32 without a separate cast."""
    widens = dtype is torch.float32 and tensor.dtype == torch.float16
    if dtype is not None and not widens:
        tensor = tensor.to(dtype)
    return _SavesInput.apply(tensor, axis, "log" in name, widens)
