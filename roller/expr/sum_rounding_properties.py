"""Properties of terms that determine how a sum rounds: products of inputs, repeated terms, terms with few digits."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np

from roller.expr.rounded_enclosures import EPS, computation_dtype
from roller.expr.scalar import Call, Cast, Load, walk_scalar_tree
from roller.expr.tensor_expr import Stage
from roller_runtime.core.dtypes import is_float


def sums_input_products(s: Stage, inputs: Collection[str], dtypes: Mapping[str, str]) -> bool:
    """Return whether a stage sums products of inputs, which have exact operands and relative rounding errors."""
    return s.combiner == "sum" and is_float(s.acc_dtype) and all(
        (isinstance(n, Load) and n.tensor in inputs and not math.isinf(n.outside))
        or (isinstance(n, Cast) and isinstance(n.arg, Load) and _represents_all_numbers_of(dtypes[n.arg.tensor],
                                                                                           n.dtype))
        or (isinstance(n, Call) and n.fn == "mul" and is_float(computation_dtype(n, dtypes)))
        for n in walk_scalar_tree(s.body)
    )  # fmt: skip


def power_of_two_to_integers(values: np.ndarray) -> float:
    """Return the smallest power of four whose product with every value is an integer, or infinity above 2**16."""
    for some in (values[:1, :64], values):
        if not np.all(np.isfinite(some)):
            return np.inf
        steps = next((2.0**n for n in range(0, 17, 2) if not np.any(_distance_to_integer(some * 2.0**n))), np.inf)
        if steps == np.inf:
            break
    return steps


def count_equal_pairs(values: np.ndarray) -> np.ndarray:
    """Count each row's ordered pairs of equal elements, minus pairs of opposite ones; zeros if a sample has few pairs.

    Examples
    --------
    >>> count_equal_pairs(np.array([[1.0, 2.0, 1.0, 1.0, 0.0, 0.0], [1.0, 2.0, 1.0, -1.0, -1.0, 3.0]]))
    array([6, 0])
    """
    # The roundings of equal terms add up, the roundings of opposite terms cancel, and zeros do not round.
    some = values[[0, len(values) // 2, -1]] if len(values) > 3 else values
    if np.max(_count_equal_pairs(some), initial=0) * 8 < values.shape[1]:  # too few to affect a bound
        return np.zeros(len(values), np.int64)
    return _count_equal_pairs(values)


def _count_equal_pairs(values: np.ndarray) -> np.ndarray:
    rows, terms = values.shape
    order = np.argsort(np.abs(values), axis=1)
    signed = np.take_along_axis(values, order, axis=1).ravel()
    sizes = np.abs(signed)
    begins = np.ones(rows * terms, bool)
    begins[1:] = sizes[1:] != sizes[:-1]
    begins[::terms] = True
    at = np.flatnonzero(begins)
    surplus = np.add.reduceat(np.sign(np.nan_to_num(signed)), at)
    pairs = np.bincount(at // terms, np.square(surplus), rows) - np.count_nonzero(values, axis=1)
    return np.asarray(np.maximum(pairs, 0), np.int64)


def _distance_to_integer(values: np.ndarray) -> np.ndarray:
    """Return the signed distance of values to the nearest integer, in a tenth of the time that a remainder takes."""
    found: np.ndarray = values - np.rint(values)
    return found


def distinct_elements_read(s: Stage, axis: str, extent: int) -> int:
    """Return the largest number of distinct elements that one load reads along a reduction axis."""
    found = 1
    for ld in s.loads:
        for t in (t for i in ld.index for t in i.terms if t.axis == axis):
            steps = -(-extent // t.div)
            found = max(found, min(steps, t.mod or steps))
    return found


def _represents_all_numbers_of(source: str, to: str) -> bool:
    """Return whether float dtype ``to`` represents every number of float dtype ``source``."""
    return is_float(to) and is_float(source) and EPS[to] <= EPS[source] and (source, to) != ("bfloat16", "float16")
