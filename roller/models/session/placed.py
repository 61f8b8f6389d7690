"""Inputs of a call that are known by where they lie."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np


class Placed(ABC):
    """Inputs of one call that a native frame takes by their addresses; as arrays only where a step runs in Python."""

    @abstractmethod
    def place(self, addresses: int) -> None:
        """Write the address of every input, 8 bytes each, to where ``addresses`` points."""

    @abstractmethod
    def __getitem__(self, number: int) -> np.ndarray:
        """Return an input as a contiguous array."""
