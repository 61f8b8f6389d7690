"""NumPy dtypes of the names expressions use."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from roller.errors import LaunchError


def host_remedy(value: Any) -> str:
    """Return what to do with an array of another library that NumPy cannot view."""
    if str(getattr(value, "dtype", "")).endswith("bfloat16"):
        # Of dtypes NumPy has no view of, the one that models have; other libraries hold the same two bytes.
        return "NumPy has no bfloat16: pass x.detach().cpu().view(torch.uint16).numpy().view(ml_dtypes.bfloat16)."
    return "Move it to the CPU and detach it."


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return NumPy's dtype of a name; ``bfloat16`` comes from the optional package ml_dtypes.

    Raises
    ------
    LaunchError
        Where NumPy has no such dtype.

    Examples
    --------
    >>> numpy_dtype("float16").itemsize
    2
    """
    if name == "bfloat16":
        try:
            # By name: kernels of any other dtype run without this package.
            found: np.dtype[Any] = np.dtype(importlib.import_module("ml_dtypes").bfloat16)
            return found
        except ImportError as err:
            raise LaunchError(
                f"dtype 'bfloat16': expected the package ml_dtypes, got {err}. Install it, or use float16."
            ) from err
    try:
        return np.dtype(name)
    except TypeError as err:
        raise LaunchError(f"NumPy has no dtype '{name}'. Compile the expression with a dtype NumPy knows.") from err
