"""Rows that do not all start at a vector boundary: their positions count from the boundary before the row's start.

Column ``c`` of a row that starts ``s`` elements after a boundary has position ``c + s``, so a vector of positions is
aligned in every row; the first and the last vector of a row are partial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from roller.expr import Index, Stage, Tensor, Term
from roller.tile.access import VECTOR_BYTES, Ints
from roller.tile.memory_strides import row_major_strides


@dataclass(frozen=True)
class RowShift:
    """Distance of rows from the vector boundary before their start.

    Parameters
    ----------
    axis
        The axis along a row.
    start
        Start of a row (elements, coefficients modulo ``width``); the shift is the start modulo ``width``.
    width
        Number of elements per vector.
    """

    axis: str
    start: Index
    width: int

    def aligned_elements(self, index: Sequence[Index], tensor: Tensor) -> int:
        """Return the widest vector (elements) to which positions of an access are aligned in every row."""
        start = _row_start(index, tensor, self.axis)
        if start is None:
            return 1
        apart = _coefficients_by_term(start)
        for where, coef in _coefficients_by_term(self.start).items():
            apart[where] = apart.get(where, 0) - coef
        width = self.width
        while any(coef % width for coef in apart.values()):
            width //= 2
        return width

    def vector_elements(self, index: Sequence[Index], tensor: Tensor) -> int:
        """Return the number of elements per access at aligned positions, limited by the widest access."""
        return min(self.aligned_elements(index, tensor), VECTOR_BYTES // tensor.itemsize_bytes)

    def fits(self, extent: int, covered: int | Ints) -> bool | np.ndarray:
        """Return whether tiles that cover ``covered`` elements hold all positions of a row (elementwise)."""
        # A thread's values and the scratchpad are sized for the steps that cover the elements.
        found: bool | np.ndarray = self.positions(extent) <= covered
        return found

    def positions(self, extent: int) -> int:
        """Return the number of positions, in whole vectors, that hold the ``extent`` elements of any row."""
        most = self.width - 1 if self.start.terms else self.start.const
        return -(-(extent + most) // self.width) * self.width


def row_shift(stage: Stage, tensors: Mapping[str, Tensor], width: int) -> RowShift | None:
    """Return the shift that aligns the largest load along a stage's rows, or ``None`` if there is nothing to align."""
    # Stages with several reduction axes, or without a load that is contiguous along them, have no rows to shift.
    if len(stage.reduction_axes) != 1 or width == 1:
        return None
    row = stage.reduction_axes[0]
    found = [(tensors[ld.tensor], _row_start(ld.index, tensors[ld.tensor], row.name)) for ld in stage.loads]
    along = [(t, start) for t, start in found if start is not None]
    if not along:
        return None
    _, start = max(along, key=lambda pair: pair[0].elements)
    terms = tuple(Term(t.axis, t.coef % width, t.div, t.mod) for t in start.terms if t.coef % width)
    shift = RowShift(row.name, Index(terms, start.const % width), width)
    return shift if terms or shift.start.const or row.extent % width else None


def _row_start(index: Sequence[Index], tensor: Tensor, axis: str) -> Index | None:
    """Return the start of rows along ``axis`` (elements), or ``None`` if their elements are not adjacent."""
    along = [t for i in index for t in i.terms if t.axis == axis]
    if along != [Term(axis)] or Term(axis) not in index[-1].terms:
        return None
    steps = row_major_strides(tensor.shape)
    terms = tuple(
        Term(t.axis, t.coef * pitch, t.div, t.mod)
        for i, pitch in zip(index, steps, strict=True)
        for t in i.terms
        if t.axis != axis
    )
    return Index(terms, sum(i.const * pitch for i, pitch in zip(index, steps, strict=True)))


def _coefficients_by_term(index: Index) -> dict[Term | None, int]:
    """Return the coefficient of each term and, under ``None``, the constant."""
    found: dict[Term | None, int] = {None: index.const}
    for t in index.terms:
        unit = Term(t.axis, 1, t.div, t.mod)
        found[unit] = found.get(unit, 0) + t.coef
    return found
