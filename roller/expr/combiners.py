"""The table of combiners: the operations that reduce many elements to one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Combiner:
    """One reduction operation; associative and commutative on real numbers.

    Parameters
    ----------
    neutral
        Initial value of a reduction; padding may repeat it any number of times.
    instruction
        Instruction class of one step.
    selects
        Whether the result is one of the elements (an extremum), so that nothing is rounded.

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


#: The combiners by name.
COMBINERS = {
    row.name: row
    for row in (
        Combiner("sum", 0.0, np.add, "fma"),
        Combiner("max", float("-inf"), np.maximum, "add", selects=True),
        Combiner("min", float("inf"), np.minimum, "add", selects=True),
        Combiner("prod", 1.0, np.multiply, "fma"),
    )
}
