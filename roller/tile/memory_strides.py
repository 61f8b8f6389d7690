"""Distances in memory between neighbours along an axis, for affine and quasi-affine (fused) indices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from roller.expr import Index

#: Maximum number of points sampled along an axis to find how often its rows wrap around.
_SAMPLE = 4096


def row_major_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the distance (elements) between neighbours along each dimension of a row-major array.

    Examples
    --------
    >>> row_major_strides((2, 3, 4))
    (12, 4, 1)
    """
    out, step = [], 1
    for n in reversed(shape):
        out.append(step)
        step *= n
    return tuple(out[::-1])


def mean_stride_elements(index: Sequence[Index], shape: Sequence[int], axis: str, extent: int) -> float:
    """Return the mean distance in memory (elements) between neighbours along ``axis``; infinite if it has one point."""
    n = min(extent, 257)
    if n < 2:
        return float("inf")
    return float(np.mean(np.abs(np.diff(_addresses(index, shape, axis, n)))))


def tile_positions_along_dimension(
    start: int, moves: Sequence[tuple[int, int, int]], lattice: int, size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each tile's first position along one dimension, and the number of positions, which are ``lattice`` apart.

    Examples
    --------
    A window of three in a row of eight, tiles of four positions, one element of border:

    >>> [x.tolist() for x in tile_positions_along_dimension(-1, [(4, 1, 8), (3, 1, 3)], 1, 8)]
    [[0, 3], [5, 5]]
    """
    # There is one result per tile position over the axes of ``moves``: each ``(tile extent, coefficient, extent)``.
    # Positions outside the tensor (``size``) or outside the whole axes do not count: the last tile loads nothing beyond
    # its axis.
    starts = np.array([start], np.int64)
    span, first, last = 0, start, start
    for t, c, extent in moves:
        first += min(0, c * (extent - 1))
        last += max(0, c * (extent - 1))
        starts = (starts[:, None] + c * t * np.arange(-(-extent // t), dtype=np.int64)[None, :]).ravel()
        if c < 0:
            starts = starts + c * (t - 1)
        span += abs(c) * (t - 1)
    low = np.maximum(0, (max(0, first) + lattice - 1 - starts) // lattice)  # first lattice step inside
    high = np.minimum(span // lattice, (min(size - 1, last) - starts) // lattice)
    return starts + low * lattice, np.asarray(np.maximum(0, high - low + 1))


def nonadjacent_share(index: Sequence[Index], shape: Sequence[int], axis: str, extent: int) -> float:
    """Return the fraction of neighbours along ``axis`` that are not adjacent in memory because rows wrap around.

    Examples
    --------
    Columns and rows of an image as one axis: contiguous if all columns are read, otherwise broken at every row.

    >>> from roller.expr import Term
    >>> rows, columns = Index((Term("p", 1, 4),)), Index((Term("p", 1, 1, 4),))
    >>> nonadjacent_share((rows, columns), (4, 4), "p", 16), nonadjacent_share((rows, columns), (4, 8), "p", 16)
    (0.0, 0.2)
    """
    steps = np.abs(np.diff(_addresses(index, shape, axis, min(extent, _SAMPLE))))
    return float((steps != 1).mean()) if len(steps) else 0.0


def _addresses(index: Sequence[Index], shape: Sequence[int], axis: str, points: int) -> NDArray[np.int64]:
    """Return the element addresses along one axis, with the other axes at 0."""
    total = np.zeros(points, np.int64)
    for i, pitch in zip(index, row_major_strides(shape), strict=True):
        mine = Index(tuple(t for t in i.terms if t.axis == axis))
        total = total + pitch * np.asarray(mine({axis: np.arange(points)}))
    return total
