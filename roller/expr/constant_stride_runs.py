"""Runs: how far a grouped axis moves through a tensor at a constant stride.

An axis ``n*ho*wo`` of a grouped form is contiguous within one image and jumps at the next. Code that knows the length
of a run copies and stores whole vectors between the jumps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from roller.expr.index_arithmetic import row_major_address, simplify_index
from roller.expr.scalar import Index


@dataclass(frozen=True)
class StridedRun:
    """Runs of ``length`` elements, ``step`` elements apart in memory, that begin at every multiple of ``length``."""

    length: int
    step: int


def strided_run_along(index: Sequence[Index], shape: Sequence[int], axis: str, extent: int) -> StridedRun | None:
    """Return the runs of ``axis`` through a tensor for any values of the other axes; ``None`` if it is not indexed.

    Examples
    --------
    Four images of two channels of 3 x 5 points, with an axis over images and points:

    >>> from roller.expr import Term, axis_index
    >>> x = (Index((Term("v", 1, 15),)), axis_index("c"), Index((Term("v", 1, 5, 3),)), Index((Term("v", 1, 1, 5),)))
    >>> strided_run_along(x, (4, 2, 3, 5), "v", 60)
    StridedRun(length=15, step=1)
    >>> strided_run_along((Index((Term("v", 1), Term("v", 1, 6), Term("v", -1, 9))),), (60,), "v", 60)
    StridedRun(length=3, step=1)
    """
    place = row_major_address(index, shape)
    if axis not in place.axes:
        return None
    terms = simplify_index(Index(tuple(t for t in place.terms if t.axis == axis)), {axis: extent}).terms
    # A quotient is constant between multiples of its divisor, and a remainder is affine between multiples of its
    # modulus, so the address is affine between multiples of their greatest common divisor: in ``a//6 - a//9``, both
    # terms jump.
    jumps = (t.div if t.div > 1 else t.mod for t in terms)
    length = math.gcd(*jumps) or extent
    return StridedRun(min(length, extent), sum(t.coef for t in terms if t.div == 1))


def stride_between_neighbours(index: Sequence[Index], shape: Sequence[int], axis: str) -> int | None:
    """Return the distance, in elements, between two neighbours along ``axis``, or ``None`` if it varies.

    Examples
    --------
    >>> from roller.expr import axis_index
    >>> stride_between_neighbours((axis_index("i"), axis_index("j", 2)), (4, 8), "j")
    2
    """
    terms = [t for t in row_major_address(index, shape).terms if t.axis == axis]
    return sum(t.coef for t in terms) if all(t.is_affine for t in terms) else None
