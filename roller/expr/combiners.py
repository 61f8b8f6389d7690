"""Combiners: what a reduction makes one value of many with, as one table of facts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Combiner:
    """What a stage combines the elements of a reduction with.

    Parameters
    ----------
    name
        As stages name it.
    neutral
        What changes no element it is combined with: what reductions start from, and padding may add.
    step
        Combines two values; it is associative and commutative on real numbers.
    instruction
        Class of the instruction of one step.
    selects
        Whether the result is one of the elements: an extremum, which rounds nothing.

    Examples
    --------
    >>> COMBINERS["max"].step(2.0, COMBINERS["max"].neutral)
    np.float64(2.0)
    """

    name: str
    neutral: float
    step: np.ufunc
    instruction: str
    selects: bool = False


#: By name.
COMBINERS = {
    row.name: row
    for row in (
        Combiner("sum", 0.0, np.add, "fma"),
        Combiner("max", float("-inf"), np.maximum, "add", selects=True),
        Combiner("min", float("inf"), np.minimum, "add", selects=True),
        Combiner("prod", 1.0, np.multiply, "fma"),
    )
}
