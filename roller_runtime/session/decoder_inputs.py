"""Inputs of a decoder that its sessions supply: caches, and integers that follow the length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from roller_runtime.core.dtypes import numpy_dtype
from roller_runtime.cpu.check_caller_arrays import ArgumentSlot
from roller_runtime.plan.program_steps import Value
from roller_runtime.session.cpu_kernel_loading import allocate_aligned


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


@dataclass(frozen=True)
class DecoderInputs:
    """All inputs of a decoder that its sessions supply.

    Parameters
    ----------
    caches
        The caches that conversations keep.
    tokens_per_call
        Number of tokens per call.
    lengths
        Integers that follow the number of tokens, by input.
    """

    caches: tuple[ResidentCache, ...]
    tokens_per_call: int
    lengths: Mapping[str, LengthValue]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON data."""
        return {
            "caches": [[c.past, c.present, c.axis] for c in self.caches],
            "new": self.tokens_per_call,
            "lengths": {
                n: [x.start.dtype.name, list(x.start.shape), x.start.ravel().tolist(), x.slope.ravel().tolist()]
                for n, x in self.lengths.items()
            },
        }

    @classmethod
    def from_dict(cls, data: Any) -> DecoderInputs:
        """Rebuild from :meth:`to_dict` data; raise ``LookupError``, ``TypeError`` or ``ValueError`` if malformed."""
        caches = tuple(ResidentCache(str(past), str(present), int(axis)) for past, present, axis in data["caches"])
        lengths = {}
        for name, (dtype, shape, start, slope) in data["lengths"].items():
            arrays = [np.array(x, np.int64).reshape(shape).astype(dtype) for x in (start, slope)]
            lengths[str(name)] = LengthValue(*arrays)
        return cls(caches, int(data["new"]), lengths)


def allocate_cache(value: Value) -> np.ndarray:
    """Return aligned memory of a value, filled with zeros: a kernel that loads a row ahead of time loads a number."""
    flat = allocate_aligned(value.nbytes)
    flat[:] = 0
    return flat.view(numpy_dtype(value.dtype)).reshape(value.shape)


def needs_no_conversion(array: Any, slot: ArgumentSlot, shape: tuple[int, ...]) -> bool:
    """Return whether an array needs no conversion."""
    return type(array) is np.ndarray and array.dtype is slot.dtype and array.shape == shape and bool(array.flags.carray)
