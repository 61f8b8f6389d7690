"""What to say of arrays of other libraries."""

from __future__ import annotations

from typing import Any


def host_remedy(value: Any) -> str:
    """Return what to do with an array of another library that NumPy cannot view."""
    if str(getattr(value, "dtype", "")).endswith("bfloat16"):
        # Of dtypes NumPy has no view of, the one that models have; other libraries hold the same two bytes.
        return "NumPy has no bfloat16: pass x.detach().cpu().view(torch.uint16).numpy().view(ml_dtypes.bfloat16)."
    return "Move it to the CPU and detach it."
