"""Inputs of a call that are given by address."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np


class AddressedInputs(ABC):
    """Inputs of a call that are given by address; they become arrays only for steps that run in Python."""

    @abstractmethod
    def place(self, addresses: int) -> None:
        """Write the 8-byte address of every input to the array at ``addresses``."""

    @abstractmethod
    def __getitem__(self, number: int) -> np.ndarray:
        """Return the input at index ``number`` as a contiguous array."""
