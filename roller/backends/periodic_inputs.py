"""Periodic random inputs, any element of which can be computed without the whole array.

The reference reads a few hundred thousand elements of inputs that may contain billions. An input repeats one random
block of prime length: the device tiles it with plain copies, without a compiler, and the reference computes elements
from their indices.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from roller.expr import Tensor, TensorExpr
from roller.expr.random_inputs_for_products import InputDrawing
from roller.expr.random_inputs_with_exact_sums import choose_exact_inputs
from roller_runtime.core.dtypes import decode_stored_values, encode_stored_values

#: Number of elements of the block; a prime, so that rows and channels of usual sizes never coincide with its period.
PERIOD = 4_194_301
#: Offset in elements between successive inputs of one expression.
_SHIFT = 1_000_003


@functools.lru_cache(maxsize=8)
def repeated_random_block(dtype: str, seed: int, digits: InputDrawing | None = None) -> np.ndarray:
    """Return the repeated block in its storage dtype, as ``PERIOD`` read-only elements."""
    # Floats are standard normal, and integers are small, so that an int32 accumulator is exact; digits replaces them
    # for sums and products that need it (expr/exact_inputs.py, expr/product_inputs.py).
    rng = np.random.default_rng([seed, 0x0B10C])
    out: np.ndarray
    if dtype == "bool":
        out = rng.integers(0, 2, PERIOD).astype(np.bool_)
    elif "int" in dtype:
        low, high = (0, 16) if dtype.startswith("u") else (-8, 8)
        out = rng.integers(low, high, PERIOD).astype(dtype)
        out = digits.of(out, rng) if digits else out
    elif dtype == "float64":
        out = rng.standard_normal(PERIOD)
        out = digits.of(out, rng) if digits else out
    else:
        normal = rng.standard_normal(PERIOD, dtype=np.float32)
        out = encode_stored_values(digits.of(normal, rng) if digits else normal, dtype)
    out.flags.writeable = False
    return out


class PeriodicInput:
    """Input that is indexed like an array but stores only the block.

    Parameters
    ----------
    position
        Index among the expression's inputs; each input starts at a different offset in the block.
    seed
        Seed of the random block; equal seeds give equal elements on every machine.
    digits
        Set of element values to use if the usual ones would hide a term of a sum or a factor of a product.

    Examples
    --------
    >>> x = PeriodicInput(Tensor("A", (3, 2_000_000)), 0, seed=1)
    >>> bool(x[np.array([2]), np.array([194_301])] == x[np.array([0]), np.array([0])])
    True
    """

    def __init__(self, tensor: Tensor, position: int, seed: int, digits: InputDrawing | None = None) -> None:
        self.tensor, self.digits = tensor, digits
        self.shape = tensor.shape
        self.seed = seed
        self.start = position * _SHIFT % PERIOD

    @functools.cached_property
    def _block(self) -> np.ndarray:
        """Repeated block; in sparse inputs of at most one period, the non-zero elements are spread over the shape."""
        dtype, digits, elements = self.tensor.dtype, self.digits, self.tensor.elements
        if digits is None or digits.density == 1 or elements > PERIOD:
            return repeated_random_block(dtype, self.seed, digits)
        out = repeated_random_block(dtype, self.seed).copy()
        at = (np.arange(elements) + self.start) % PERIOD
        usual = decode_stored_values(out[at], dtype).reshape(self.shape)
        out[at] = encode_stored_values(digits.of(usual, np.random.default_rng([self.seed, self.start])), dtype).ravel()
        out.flags.writeable = False
        return out

    def first(self) -> np.ndarray:
        """Return the stored elements for one period, or for the whole input if it is shorter."""
        return np.roll(self._block, -self.start)[: self.tensor.elements]

    def __getitem__(self, index: tuple[np.ndarray, ...]) -> np.ndarray:
        """Return the elements at indices given by broadcastable integer arrays, one per dimension."""
        flat: Any = np.int64(self.start)
        stride = 1
        for extent, i in zip(reversed(self.shape), reversed(index), strict=True):
            flat = flat + np.asarray(i, np.int64) * stride
            stride *= extent
        return decode_stored_values(self._block[flat % PERIOD], self.tensor.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the whole input as an array; only for small inputs."""
        del copy
        flat = self._block[(np.arange(self.tensor.elements) + self.start) % PERIOD]
        out = decode_stored_values(flat, self.tensor.dtype).reshape(self.shape)
        return out if dtype is None else out.astype(dtype)


def periodic_inputs(expression: TensorExpr, seed: int = 0) -> list[PeriodicInput]:
    """Return one :class:`PeriodicInput` for each input of ``expression``, in call order."""
    digits = choose_exact_inputs(expression)
    return [PeriodicInput(t, n, seed, digits.get(t.name)) for n, t in enumerate(expression.inputs)]
