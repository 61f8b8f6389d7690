"""Checks and hints for arrays from other libraries."""

from __future__ import annotations

from typing import Any


def host_copy_hint(value: Any) -> str:
    """Return advice on converting ``value``, an array from another library that NumPy cannot view."""
    if str(getattr(value, "dtype", "")).endswith("bfloat16"):
        # The only dtype of models that NumPy cannot view; other libraries store the same two bytes.
        return "NumPy has no bfloat16: pass x.detach().cpu().view(torch.uint16).numpy().view(ml_dtypes.bfloat16)."
    return "Move it to the CPU and detach it."


def check_tensor_has_values(value: Any) -> None:
    """Raise an error if a tensor's memory does not contain its values."""
    # PyTorch has lazy negation and conjugation, and zeros without memory (forward-mode differentiation).
    if _method_returns_true(value, "is_neg") or _method_returns_true(value, "is_conj"):
        raise BufferError("its negation or conjugation is lazy: pass x.resolve_conj().resolve_neg()")
    if _method_returns_true(value, "_is_zerotensor"):
        raise BufferError("it is zero and has no memory: pass torch.zeros(x.shape, dtype=x.dtype)")


def _method_returns_true(value: Any, name: str) -> bool:
    method = getattr(value, name, None)
    return callable(method) and bool(method())
