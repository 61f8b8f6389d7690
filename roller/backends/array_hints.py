"""What to say of arrays of other libraries."""

from __future__ import annotations

from typing import Any


def host_remedy(value: Any) -> str:
    """Return what to do with an array of another library that NumPy cannot view."""
    if str(getattr(value, "dtype", "")).endswith("bfloat16"):
        # Of dtypes NumPy has no view of, the one that models have; other libraries hold the same two bytes.
        return "NumPy has no bfloat16: pass x.detach().cpu().view(torch.uint16).numpy().view(ml_dtypes.bfloat16)."
    return "Move it to the CPU and detach it."


def check_memory(value: Any) -> None:
    """Refuse a tensor whose memory alone does not say what it is.

    PyTorch notes negations and conjugates beside a tensor, and has zeros without memory (of forward differentiation).
    """
    if _says(value, "is_neg") or _says(value, "is_conj"):
        raise BufferError("its negation or conjugate is only noted beside it: pass x.resolve_conj().resolve_neg()")
    if _says(value, "_is_zerotensor"):
        raise BufferError("it is zero and has no memory: pass torch.zeros(x.shape, dtype=x.dtype)")


def _says(value: Any, name: str) -> bool:
    method = getattr(value, name, None)
    return callable(method) and bool(method())
