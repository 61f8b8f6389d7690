"""What no tensor expression is, computed by the array module of a device: NumPy, or CuPy with the same code.

Every function takes the array module, the input arrays and the attributes of its step, and returns its outputs with the
very shapes and dtypes that the step declares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

Function: TypeAlias = Callable[[Any, Sequence[Any], Mapping[str, Any]], tuple[Any, ...]]

#: Function by the name steps call it.
FUNCTIONS: dict[str, Function] = {}


def library_function(function: Function) -> Function:
    """Register the decorated function under its own name."""
    FUNCTIONS[function.__name__] = function
    return function


def _inside(xp: Any, indices: Any, size: int) -> Any:
    """Return indices counted from the front; negative ones count from the end.

    Raises
    ------
    IndexError
        Where one is outside.
    """
    wrapped = xp.where(indices < 0, indices + size, indices)
    if wrapped.size and (int(wrapped.min()) < 0 or int(wrapped.max()) >= size):
        raise IndexError(f"indices: expected -{size} to {size - 1}, got {int(indices.min())} to {int(indices.max())}")
    return wrapped


@library_function
def gather(xp: Any, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    """Slices of ``inputs[0]`` along ``axis``, chosen by the indices ``inputs[1]``."""
    data, indices = inputs
    axis = attributes["axis"]
    return (xp.take(data, _inside(xp, indices, data.shape[axis]), axis=axis),)
