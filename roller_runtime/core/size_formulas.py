"""Integer formulas in sizes, which the compiler finds from samples."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Largest integer that is recognized by its inverse.
_MOST_INVERTED = 1 << 22
#: Kinds of atoms.
_ATOM_KINDS = ("*", "ceil", "floor", "mod", "share")


@dataclass(frozen=True)
class Atom:
    """A monomial in sizes, or its quotient or remainder when divided by a number."""

    sizes: tuple[str, ...]  #: Names of the factors, repeated for powers
    #: ``"*"``: the monomial itself; ``"ceil"``, ``"floor"``: its rounded quotient by :attr:`by`; ``"mod"``: the
    #: remainder; ``"share"``: :attr:`whole` divided by the ``"ceil"`` quotient, rounded up.
    how: str = "*"
    by: int = 1
    factor: int = 1  #: Multiplies the monomial before the division
    whole: int = 1  #: Dividend of ``"share"``
    shift: int = 0  #: Added to the dividend of ``"floor"``

    def __str__(self) -> str:
        """Return the atom as text.

        >>> str(Atom(("b", "s"), "ceil", 4)), str(Atom(("s",), "floor", 2, shift=1)), str(Atom(("s",), "mod", 8))
        ('ceil(b * s / 4)', 'floor((s + 1) / 2)', '(s % 8)')
        """
        value = " * ".join([*([str(self.factor)] if self.factor != 1 else []), *self.sizes])
        if self.how == "*":
            return value
        if self.how == "mod":
            return f"({value} % {self.by})"
        if self.how == "share":
            return f"ceil({self.whole} / ceil({value} / {self.by}))"
        held = f"({value} {'+' if self.shift > 0 else '-'} {abs(self.shift)})" if self.shift else value
        return f"{self.how}({held} / {self.by})"

    def at(self, sizes: Mapping[str, int]) -> int:
        """Return the value for the given sizes."""
        value = self.factor * math.prod(sizes[n] for n in self.sizes)
        if self.how == "*":
            return value
        if self.how == "mod":
            return value % self.by
        if self.how == "share":
            return -(-self.whole // max(1, -(-value // self.by)))
        return -(-value // self.by) if self.how == "ceil" else (value + self.shift) // self.by

    def of_many(self, sizes: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the values for arrays of sizes."""
        value: np.ndarray = np.asarray(self.factor * math.prod(sizes[n] for n in self.sizes))
        if self.how == "mod":
            value = value % self.by
        elif self.how == "share":
            value = -(-self.whole // np.maximum(1, -(-value // self.by)))
        elif self.how != "*":
            value = -(-value // self.by) if self.how == "ceil" else (value + self.shift) // self.by
        return value

    def to_list(self) -> list[Any]:
        """Return JSON data."""
        return [list(self.sizes), self.how, self.by, self.factor, self.whole, self.shift]

    @classmethod
    def from_list(cls, data: Any) -> Atom:
        """Rebuild from :meth:`to_list` data; raise ``TypeError`` or ``ValueError`` for malformed data."""
        sizes, how, *numbers = data
        if how not in _ATOM_KINDS or len(numbers) != 4 or not all(type(n) is int for n in numbers) or numbers[0] < 1:
            raise ValueError(f"atom {data!r}")
        return cls(tuple(map(str, sizes)), how, *numbers)

    def most(self, sizes: Mapping[str, int]) -> int:
        """Return an upper bound on all intermediate values."""
        return self.factor * math.prod(sizes[n] for n in self.sizes) + self.by + self.whole


@dataclass(frozen=True)
class Formula:
    """``const + sum of factor * product of atoms``.

    Examples
    --------
    >>> Formula(2, ((3, (Atom(("b",)), Atom(("s",), "ceil", 4))),)).at({"b": 2, "s": 5})
    14
    """

    const: int
    terms: tuple[tuple[int, tuple[Atom, ...]], ...] = ()

    def __str__(self) -> str:
        """Return the formula as text.

        >>> str(Formula(2, ((3, (Atom(("b",)), Atom(("s",), "ceil", 4))),)))
        '3 * b * ceil(s / 4) + 2'
        >>> str(Formula(-1, ((-2, (Atom(("s",)),)), (1, (Atom(("b",)),))))), str(Formula(0))
        ('-2 * s + b - 1', '0')
        """
        parts = [
            (k, " * ".join([*([str(abs(k))] if abs(k) != 1 else []), *map(str, atoms)])) for k, atoms in self.terms
        ]
        if self.const or not parts:
            parts.append((self.const, str(abs(self.const))))
        text = "".join(f" {'-' if k < 0 else '+'} {part}" for k, part in parts)
        return f"-{text[3:]}" if text.startswith(" - ") else text[3:]

    def at(self, sizes: Mapping[str, int]) -> int:
        """Return the value for the given sizes."""
        return self.const + sum(factor * math.prod(a.at(sizes) for a in atoms) for factor, atoms in self.terms)

    def of_many(self, sizes: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the values for arrays of sizes."""
        found = np.full(len(next(iter(sizes.values()))), self.const, np.int64)
        for factor, atoms in self.terms:
            found += factor * math.prod(a.of_many(sizes) for a in atoms)
        return found

    def to_list(self) -> list[Any]:
        """Return JSON data."""
        return [self.const, [[factor, [a.to_list() for a in atoms]] for factor, atoms in self.terms]]

    @classmethod
    def from_list(cls, data: Any) -> Formula:
        """Rebuild from :meth:`to_list` data; raise ``TypeError`` or ``ValueError`` for malformed data.

        >>> formula = Formula(2, ((3, (Atom(("b",)), Atom(("s",), "ceil", 4))),))
        >>> Formula.from_list(formula.to_list()) == formula
        True
        """
        const, terms = data
        if not all(type(n) is int for n in (const, *(factor for factor, _ in terms))):
            raise ValueError(f"formula {data!r}")
        return cls(const, tuple((factor, tuple(map(Atom.from_list, atoms))) for factor, atoms in terms))

    def most(self, sizes: Mapping[str, int]) -> int:
        """Return the largest absolute intermediate value in a left-to-right evaluation."""
        total, most = 0, abs(self.const)
        for factor, atoms in self.terms:
            term = 1
            for atom in atoms:
                term *= atom.at(sizes)
                most = max(most, abs(term), atom.most(sizes))
            total += factor * term
            most = max(most, abs(factor * term), abs(total))
        return max(most, abs(total + self.const))

    @property
    def sizes(self) -> frozenset[str]:
        """The sizes that the formula depends on."""
        return frozenset(n for _, atoms in self.terms for a in atoms for n in a.sizes)

    @property
    def product(self) -> tuple[str, ...] | None:
        """The monomial of which the formula is a multiple, or ``None`` if there is none."""
        alone = len(self.terms) == 1 and not self.const and len(self.terms[0][1]) == 1
        atom = self.terms[0][1][0] if alone else None
        return atom.sizes if atom is not None and atom.how == "*" else None


@dataclass(frozen=True)
class Inverse:
    """One over an integer formula, such as the factor in a mean."""

    formula: Formula

    def at(self, sizes: Mapping[str, int]) -> float:
        """Return the value for the given sizes."""
        return 1 / self.formula.at(sizes)

    @staticmethod
    def of(value: object) -> int | None:
        """Return the integer of which the value is the inverse, or ``None`` if there is none.

        >>> Inverse.of(1 / 49), Inverse.of(0.3), Inverse.of(1.0)
        (49, None, None)
        """
        if not isinstance(value, float) or not 1 / _MOST_INVERTED <= value < 1:
            return None
        return round(1 / value) if 1 / round(1 / value) == value else None
