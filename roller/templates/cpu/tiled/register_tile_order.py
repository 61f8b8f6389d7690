"""The order of a register tile's elements in a step of the reduction that needs the fewest operand registers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence


def count_operand_registers(order: Sequence[int], sizes: Sequence[int], uses: Collection[Collection[int]]) -> int:
    """Return the number of registers that hold operands at the same time, in addition to the accumulators.

    Examples
    --------
    For 2 by 12 products, either all 12 values of one operand are held during the loop over the other, or 2 values are:

    >>> count_operand_registers([0, 1], [2, 12], [{0}, {1}]), count_operand_registers([1, 0], [2, 12], [{0}, {1}])
    (13, 3)
    """
    # A value is loaded at its first use and held until its last, so an operand that is constant in a loop holds all
    # values that it takes inside that loop.
    found = 0
    for loops in uses:
        through = next((n for n, loop in enumerate(order) if loop not in loops and sizes[loop] > 1), len(order))
        found += math.prod(sizes[loop] for loop in order[through:] if loop in loops)
    return found


def loop_order_with_fewest_registers(sizes: Sequence[int], uses: Collection[Collection[int]]) -> tuple[int, ...]:
    """Return the loops of a register tile, outermost first, such that the fewest registers hold operands.

    Examples
    --------
    >>> (loop_order_with_fewest_registers([2, 12], [{0}, {1}]), loop_order_with_fewest_registers([12, 2], [{0}, {1}]),
    ...  loop_order_with_fewest_registers([4, 4], [{0}, {1}]))
    ((1, 0), (0, 1), (0, 1))
    """
    # Among equal orders, the lexicographically first one is taken; compilers keep the order in which operands are used.
    loops = range(len(sizes))
    long = [n for n in loops if sizes[n] > 1]
    short = tuple(n for n in loops if sizes[n] <= 1)
    best = min(itertools.permutations(long), key=lambda order: (count_operand_registers(order, sizes, uses), order))
    return (*short, *best)
