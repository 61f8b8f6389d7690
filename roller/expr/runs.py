"""Runs: how far a grouped axis walks a tensor at a constant distance.

An axis ``n*ho*wo`` of a grouped form is quasi-affine in memory: inside one image its elements are neighbours, at the
next image the address jumps. Code that knows the length of a run copies and stores whole vectors between the jumps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roller.expr.scalar import Index


@dataclass(frozen=True)
class Run:
    """``length`` elements of an axis, from every multiple of ``length``, are ``step`` elements apart in memory."""

    length: int
    step: int


def run_along(index: Sequence[Index], shape: Sequence[int], axis: str, extent: int) -> Run | None:
    """Return the longest runs of ``axis`` through a tensor; ``None`` where the tensor does not depend on it.

    Parameters
    ----------
    index, shape
        Access and extents of the tensor (elements, row-major).
    axis, extent
        The axis and its elements.

    Examples
    --------
    Four images of two channels of 3 x 5 points, the axis passing images and points:

    >>> from roller.expr import Term, axis_index
    >>> x = (Index((Term("v", 1, 15),)), axis_index("c"), Index((Term("v", 1, 5, 3),)), Index((Term("v", 1, 1, 5),)))
    >>> run_along(x, (4, 2, 3, 5), "v", 60)
    Run(length=15, step=1)
    """
    pitch, terms = 1, []
    for i, size in zip(reversed(index), reversed(shape), strict=True):
        terms += [(t.div, t.mod, t.coef * pitch) for t in i.terms if t.axis == axis]
        pitch *= size
    if not terms:
        return None
    terms.sort()
    div, mod, step = terms[0]
    if div != 1:  # the address stands still for the first ``div`` elements
        return Run(div, 0)
    length = mod or extent
    for div, mod, coef in terms[1:]:
        if div != length or coef != step * length:
            break
        length = div * mod if mod else extent
    return Run(min(length, extent), step)
