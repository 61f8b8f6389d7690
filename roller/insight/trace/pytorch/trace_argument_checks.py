"""Checks the arguments of :func:`roller.trace` before anything is traced."""

from __future__ import annotations

from typing import Any

from roller.errors import ModelError, shown
from roller.insight.trace.pytorch.transform_step_inputs import iterate_tensors


def check_trace_arguments(request: Any) -> None:
    """Raise an error for numbers out of range, unknown attention kernels and inputs without samples."""
    for name, least in (("accumulate", 1), ("batch_axis", 0)):
        value = getattr(request, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ModelError(
                f"trace: {name}: expected a whole number of at least {least}, got {shown(value)}. Raise it."
            )
    share = request.share_nonzero
    if share is not None and (not isinstance(share, (int, float)) or not 0 <= share <= 1):
        raise ModelError(f"trace: share_nonzero: expected a number from 0 to 1, got {shown(share)}. Correct it.")
    if request.attention not in ("auto", "flash", "efficient", "cudnn", "math"):
        raise ModelError(
            f"trace: attention: expected auto, flash, efficient, cudnn or math, got {shown(request.attention)}. "
            f"Choose one of them."
        )
    tensors = list(iterate_tensors(request.inputs))
    if any(tensor.numel() == 0 for tensor in tensors):
        raise ModelError(
            f"trace: inputs: expected at least one sample, got a tensor of shape "
            f"{next(tuple(t.shape) for t in tensors if t.numel() == 0)}. Pass a batch that is not empty."
        )
