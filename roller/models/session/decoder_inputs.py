"""Inputs of a decoder that its sessions supply: caches, and integers that follow the length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


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
