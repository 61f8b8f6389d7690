"""The order in which a register tile's elements are computed at a step of the reduction: that which holds least."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence


def held(order: Sequence[int], sizes: Sequence[int], uses: Collection[Collection[int]]) -> int:
    """Return how many registers hold operands at a time, beside the accumulators.

    A value is loaded where it is used first and held until it is used last. So an operand that does not change along
    a loop is held once for all values it takes inside of that loop.

    Examples
    --------
    Of 2 by 12 products, all 12 of the one operand are held through the loop over the other, or 2 of that:

    >>> held([0, 1], [2, 12], [{0}, {1}]), held([1, 0], [2, 12], [{0}, {1}])
    (13, 3)
    """
    found = 0
    for loops in uses:
        through = next((n for n, loop in enumerate(order) if loop not in loops and sizes[loop] > 1), len(order))
        found += math.prod(sizes[loop] for loop in order[through:] if loop in loops)
    return found


def least_held(sizes: Sequence[int], uses: Collection[Collection[int]]) -> tuple[int, ...]:
    """Return the loops of a register tile, outermost first, such that fewest registers hold operands.

    Of orders that hold as many it is the first by number: compilers keep to the order in which operands are used.

    Examples
    --------
    >>> least_held([2, 12], [{0}, {1}]), least_held([12, 2], [{0}, {1}]), least_held([4, 4], [{0}, {1}])
    ((1, 0), (0, 1), (0, 1))
    """
    loops = range(len(sizes))
    long = [n for n in loops if sizes[n] > 1]
    short = tuple(n for n in loops if sizes[n] <= 1)
    best = min(itertools.permutations(long), key=lambda order: (held(order, sizes, uses), order))
    return (*short, *best)
