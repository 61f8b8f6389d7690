"""Lanes along an axis that tensors store in blocks: a vector lies in one block, and its lanes are positions there.

``(first + lane) // 16`` is ``first // 16`` for all lanes of a vector inside one block. The compiler cannot derive that
if ``first`` ends with the axis; here it holds by construction, so accesses stay contiguous.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from roller.expr import Index, Scalar, Term, map_indices, stride_between_neighbours
from roller.te.compat import tirx
from roller.te.emit_tvm_expressions import Expr


@dataclass(frozen=True)
class AxisDigits:
    """Digits of an axis that indices read, each with its own name.

    Parameters
    ----------
    axis
        The axis; vectors along it begin at multiples of their lane count.
    terms
        Distinct divisions and remainders ``(div, mod)`` of the axis.
    """

    axis: str
    terms: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, axis: str, indices: Iterable[Index]) -> AxisDigits:
        """Return the digits of ``axis`` that ``indices`` read."""
        found = ((t.div, t.mod) for i in indices for t in i.terms if t.axis == axis and not t.is_affine)
        return cls(axis, tuple(dict.fromkeys(found)))

    def _name(self, div: int, mod: int) -> str:
        return f"{self.axis}//{div}%{mod}"

    def index(self, index: Index) -> Index:
        """Return an index that reads digits by their names."""
        return replace(index, terms=tuple(self._digit_term(t) for t in index.terms))

    def _digit_term(self, t: Term) -> Term:
        own = t.axis == self.axis and not t.is_affine
        return Term(self._name(t.div, t.mod), t.coef) if own else t

    def body(self, body: Scalar) -> Scalar:
        """Return a scalar tree whose accesses read digits by their names."""
        return map_indices(body, self.index)

    def at(self, first: Expr, lane: Expr) -> dict[str, Expr]:
        """Return the axis and its digits at a lane of the vector that begins at ``first``."""
        out = {self.axis: first + lane}
        for div, mod in self.terms:
            digit = first if div == 1 else tirx.floordiv(first, div)
            digit = tirx.floormod(digit, mod) if mod else digit
            out[self._name(div, mod)] = digit + lane if div == 1 else digit
        return out

    def contiguous(self, index: Sequence[Index], shape: Sequence[int]) -> bool:
        """Return whether adjacent lanes are adjacent in memory."""
        low = next((self._name(div, mod) for div, mod in self.terms if div == 1), self.axis)
        return stride_between_neighbours([self.index(i) for i in index], shape, low) == 1
