"""Random inputs for checking and timing a kernel."""

from __future__ import annotations

import numpy as np

from roller.backends.dtypes import numpy_dtype
from roller.expr import Tensor, TensorExpr
from roller.expr.exact_sums import coarse, sums_deeply


def random_inputs(expression: TensorExpr, seed: int = 0) -> list[np.ndarray]:
    """Return one array per input of ``expression``.

    Floats are standard normal (exponents vary, sums cancel), and those of deep sums few digits of such: then sums are
    exact in every order, and no bound hides a term that is missing. Integers are small, so that an int32
    accumulator is exact whatever the reduction.

    Parameters
    ----------
    seed
        Seed of the generator: equal seeds give equal arrays.

    Raises
    ------
    LaunchError
        Where NumPy has no such dtype.

    Examples
    --------
    >>> import roller
    >>> [a.shape for a in random_inputs(roller.ops.matmul(2, 3, 4))]
    [(2, 4), (4, 3)]
    """
    rng = np.random.default_rng(seed)
    found = [_random(t, rng) for t in expression.inputs]
    if not sums_deeply(expression):
        return found
    return [coarse(a) if "float" in t.dtype else a for t, a in zip(expression.inputs, found, strict=True)]


def _random(t: Tensor, rng: np.random.Generator) -> np.ndarray:
    if t.dtype == "bool":
        return rng.integers(0, 2, t.shape).astype(np.bool_)
    if "int" in t.dtype:
        low, high = (0, 16) if t.dtype.startswith("u") else (-8, 8)
        return rng.integers(low, high, t.shape).astype(t.dtype)
    dtype = numpy_dtype(t.dtype)
    if dtype in (np.dtype(np.float32), np.dtype(np.float64)):
        return np.asarray(rng.standard_normal(t.shape, dtype=dtype.type))
    return np.asarray(rng.standard_normal(t.shape, dtype=np.float32)).astype(dtype)
