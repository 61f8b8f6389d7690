"""Inputs of a decoder that its sessions supply: caches, and integers that follow the length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from roller.backends.cpu.check_caller_arrays import ArgumentSlot
from roller.core.dtypes import numpy_dtype
from roller.models.graph.program_steps import Value
from roller.models.session.cpu_kernel_loading import allocate_aligned


@dataclass(frozen=True)
class ResidentCache:
    """A cache that conversations keep.

    Parameters
    ----------
    past, present
        Names of the model's input and output that it replaces.
    axis
        Dimension along which calls append rows.
    """

    past: str
    present: str
    axis: int


@dataclass(frozen=True)
class LengthValue:
    """Integers that the session passes to the model: a linear function of the number of tokens, such as a position."""

    start: np.ndarray
    slope: np.ndarray

    def at(self, total: int) -> np.ndarray:
        """Return the integers at a number of tokens."""
        return np.asarray(self.start + self.slope * total, self.start.dtype)


def zeroed_cache(value: Value) -> np.ndarray:
    """Return aligned memory of a value; it is zero, so that a kernel that loads a row ahead of time loads a number."""
    flat = allocate_aligned(value.nbytes)
    flat[:] = 0
    return flat.view(numpy_dtype(value.dtype)).reshape(value.shape)


def needs_no_conversion(array: Any, slot: ArgumentSlot, shape: tuple[int, ...]) -> bool:
    """Return whether an array needs no conversion."""
    return type(array) is np.ndarray and array.dtype is slot.dtype and array.shape == shape and bool(array.flags.carray)
