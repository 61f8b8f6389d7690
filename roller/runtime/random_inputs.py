"""Random inputs for checking and timing a kernel."""

from __future__ import annotations

from typing import Any

import numpy as np

from roller.expr import Tensor, TensorExpr
from roller.expr.random_inputs_with_exact_sums import choose_exact_inputs
from roller_runtime.core.dtypes import numpy_dtype
from roller_runtime.core.validation import validate_integer

#: Largest seed; NumPy's generators accept larger ones, but records and file formats do not.
MOST_SEED = 2**64 - 1


def random_inputs(expression: TensorExpr, seed: int = 0) -> list[np.ndarray]:
    """Return one random array per input of ``expression``.

    Examples
    --------
    >>> import roller
    >>> [a.shape for a in random_inputs(roller.ops.matmul(2, 3, 4))]
    [(2, 4), (4, 3)]
    """
    # Floats are standard normal (exponents vary, sums cancel). If the bound of a sum would hide a missing term, they
    # have so few digits that the sum is exact in every order (expr/exact_inputs.py); if products would vanish or
    # overflow, they stay in range (expr/product_inputs.py). Integers are small, so that an int32 accumulator is exact.
    rng = np.random.default_rng(checked_seed(seed))
    found = [_random_array(t, rng) for t in expression.inputs]
    digits = choose_exact_inputs(expression)
    return [digits[t.name].of(a, rng) if t.name in digits else a for t, a in zip(expression.inputs, found, strict=True)]


def checked_seed(seed: Any) -> int:
    """Return ``seed`` if it is a whole number from 0 to :data:`MOST_SEED`; otherwise raise a RollerError.

    Examples
    --------
    >>> checked_seed("text")
    Traceback (most recent call last):
    roller_runtime.errors.RollerError: seed: expected a whole number of at least 0, got 'text'. Use for example 0.
    """
    expected = "a whole number of at least 0"
    return validate_integer(seed, "seed", most=MOST_SEED, expected=expected, remedy="Use for example 0.")


def _random_array(t: Tensor, rng: np.random.Generator) -> np.ndarray:
    if t.dtype == "bool":
        return rng.integers(0, 2, t.shape).astype(np.bool_)
    if "int" in t.dtype:
        low, high = (0, 16) if t.dtype.startswith("u") else (-8, 8)
        return rng.integers(low, high, t.shape).astype(t.dtype)
    dtype = numpy_dtype(t.dtype)
    if dtype in (np.dtype(np.float32), np.dtype(np.float64)):
        return np.asarray(rng.standard_normal(t.shape, dtype=dtype.type))
    return np.asarray(rng.standard_normal(t.shape, dtype=np.float32)).astype(dtype)
