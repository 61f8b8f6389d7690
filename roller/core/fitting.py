"""Formulas found from numbers at some sizes: they give every one of these, or are not found.

What a formula may be made of is listed, and tried from simple to long: products of sizes, quotients, products of these,
and sums of several. Formulas that give the same numbers are kept as rivals, which other sizes tell apart.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from roller.core.formulas import Atom, Formula

#: How much larger than the numbers a factor or constant of their formula may be.
_FACTOR = 8
#: Sizes multiplied in one monomial at most.
_DEGREE = 3
#: Numbers that five unknown ones are found from.
_BOX_POINTS = 7
#: Products of three quotients that are tried.
_MOST_TRIPLES = 12000
#: Formulas of two terms that give the same numbers, and are kept to be told apart.
_MOST_RIVALS = 40
#: Values beyond the unknown numbers of a polynomial.
_TO_SPARE = 2


class _Space:
    """What formulas of some sizes may be made of: lists of products of atoms, made once for all that are found.

    Parameters
    ----------
    names
        Of the sizes.
    divisors, dividends
        As of :class:`Fitter`; dividends as factors and products of sizes.
    """

    def __init__(
        self, names: tuple[str, ...], divisors: tuple[int, ...], dividends: tuple[tuple[int, tuple[str, ...]], ...]
    ) -> None:
        self.names, self.divisors, self.dividends = names, divisors, dividends
        self._places: dict[int, tuple[tuple[Atom, ...], np.ndarray]] = {}

    @cached_property
    def monomials(self) -> list[tuple[Atom, ...]]:
        """Products of sizes."""
        names = self.names
        every = [c for n in range(1, _DEGREE + 1) for c in itertools.combinations_with_replacement(names, n)]
        return [(Atom(c),) for c in every]

    @cached_property
    def short(self) -> list[tuple[int, tuple[str, ...]]]:
        """Products of few sizes, each with the factor 1."""
        return [(1, m[0].sizes) for m in self.monomials if len(m[0].sizes) < _DEGREE]

    @cached_property
    def parted(self) -> list[tuple[Atom, ...]]:
        """Quotients and remainders, those of short monomials first."""
        parted = [*self.short, *dict.fromkeys(self.dividends)]
        return [(Atom(m, how, d, f),) for f, m in parted for d in self.divisors for how in ("ceil", "floor", "mod")]

    @cached_property
    def products(self) -> list[tuple[Atom, ...]]:
        """Products of a quotient and a product of sizes, and of two quotients."""
        counts = [a for a in self.parted if a[0].how == "ceil"]
        pairs = [a + m for a in self.parted if a[0].how != "mod" for m in self.monomials]
        return pairs + [a + b for a, b in itertools.combinations(counts, 2)]

    @cached_property
    def triples(self) -> list[tuple[Atom, ...]]:
        """Products of three sizes, each whole or its quotient rounded up: tasks of three axes."""
        alone: dict[str, list[Atom]] = {n: [Atom((n,))] for n in self.names}
        for (a,) in self.parted:
            if a.how == "ceil" and len(a.sizes) == 1 and a.factor == 1:
                alone[a.sizes[0]].append(a)
        several = itertools.combinations(alone.values(), 3)
        return [tuple(c) for three in several for c in itertools.product(*three)][:_MOST_TRIPLES]

    @cached_property
    def shares(self) -> list[tuple[Atom, ...]]:
        """Numbers shared among quotients."""
        counts = [a for (a,) in self.parted if a.how == "ceil"]
        lone = [Atom(sizes, "ceil", 1) for _, sizes in self.short]  # tiles of one element
        return [(replace(a, how="share", whole=n),) for a in (*lone, *counts) for n in self.divisors if n > a.by]

    @cached_property
    def both(self) -> list[tuple[Atom, ...]]:
        """Products of sizes, and quotients."""
        return [*self.monomials, *self.parted]

    @cached_property
    def lone(self) -> list[tuple[Atom, ...]]:
        """Products whose first quotient is of one size."""
        return [p for p in self.products if len(p[0].sizes) == 1]

    def places(self, several: Sequence[tuple[Atom, ...]]) -> tuple[tuple[Atom, ...], np.ndarray]:
        """Return the atoms of one of the lists, and for each product the positions of its own, one beyond for none."""
        if id(several) not in self._places:  # the lists live as long as this does
            found = {a: n for n, a in enumerate(dict.fromkeys(a for x in several for a in x))}
            most = max(map(len, several), default=1)
            at = np.array([[*(found[a] for a in x), *(len(found),) * (most - len(x))] for x in several], np.int32)
            self._places[id(several)] = tuple(found), at
        return self._places[id(several)]


@functools.lru_cache(maxsize=16)
def _space(
    names: tuple[str, ...], divisors: tuple[int, ...], dividends: tuple[tuple[int, tuple[str, ...]], ...]
) -> _Space:
    return _Space(names, divisors, dividends)


class Fitter:
    """Finds formulas of numbers known at some sizes.

    Parameters
    ----------
    points
        The sizes by name at which numbers are known.
    divisors
        Numbers that sizes may be divided by: tiles, and products of them.
    dividends
        What may be divided, beside products of sizes: extents.
    """

    def __init__(
        self,
        points: Sequence[Mapping[str, int]],
        divisors: Iterable[int] = (),
        dividends: Iterable[Formula] = (),
    ) -> None:
        self.points = tuple(dict(p) for p in points)
        several = tuple(sorted({d for d in divisors if d > 1}))
        parts = (
            (factor, atoms[0].sizes)
            for f in dividends
            if len(f.terms) == 1 and not f.const
            for factor, atoms in f.terms
            if len(atoms) == 1 and atoms[0].how == "*" and factor > 1
        )
        self._space = _space(tuple(sorted(self.points[0])), several, tuple(dict.fromkeys(parts)))
        self._found: dict[tuple[int, ...], Formula | None] = {}
        self._known: dict[int, np.ndarray] = {}
        #: Formulas that give the same numbers as one that was found, with it: other sizes may tell them apart.
        self.rivals: list[tuple[Formula, ...]] = []
        #: Numbers that whoever uses it asks for, one after another.
        self.asked: list[tuple[int, ...]] = []

    def fit(self, values: Sequence[int]) -> Formula | None:
        """Return the simplest formula that gives every value; ``None`` where there is none.

        Parameters
        ----------
        values
            One number for each of the points.
        """
        key = tuple(values)
        if key not in self._found:
            self._found[key] = Formula(key[0]) if len(set(key)) == 1 else self._searched(key)
        return self._found[key]

    def product(self, values: Sequence[int]) -> Formula | None:
        """Return the multiple of a product of sizes that gives every value; ``None`` where there is none."""
        found = self._one(tuple(values), self._space.monomials)
        return found if found is not None and found.product is not None else None

    def _searched(self, values: tuple[int, ...]) -> Formula | None:
        s = self._space
        return (
            self._one(values, s.monomials)
            or self._one(values, s.parted)
            or self._one(values, s.products)
            or self._one(values, s.triples)
            or self._one(values, s.shares)
            or self._two(values, s.monomials, s.monomials)
            or self._polynomial(values)
            or self._two(values, s.parted, s.both)
            or self._two(values, s.lone, s.monomials)
            or self._boxes(values)
            or self._box(values)
        )

    def _box(self, values: tuple[int, ...]) -> Formula | None:
        """Return ``z * (a * x + b) * (c * y + d)``: points of ``z`` images with their edges.

        A polynomial of three sizes has twice as many unknown numbers, and there may be too few points for it.
        """
        if len(self.points) < _BOX_POINTS:
            return None
        for x, y, z in itertools.permutations(self._space.names, 3):
            several = [(Atom(tuple(sorted((z, *part)))),) for part in ((x, y), (x,), (y,), ())]
            found = self._sum(values, several) if x < y else None
            if found is not None:
                return found
        return None

    def _columns(self, several: Sequence[tuple[Atom, ...]]) -> np.ndarray:
        if id(several) not in self._known:  # the lists live as long as their space
            atoms, at = self._space.places(several)
            rows = np.array([[a.at(p) for p in self.points] for a in atoms] + [[1] * len(self.points)], np.int64)
            self._known[id(several)] = rows[at].prod(axis=1)
        return self._known[id(several)]

    def doubtful(self, sizes: Mapping[str, int]) -> bool:
        """Whether formulas that agree so far differ at some sizes: the number there says which of them is meant."""
        return any(len({f.at(sizes) for f in alike}) > 1 for alike in self.rivals)

    def _one(self, values: tuple[int, ...], several: Sequence[tuple[Atom, ...]]) -> Formula | None:
        """Return ``factor * atoms + const``, first of all without the constant."""
        if not several:
            return None
        columns, wanted = self._columns(several), np.array(values, np.int64)
        low, high = int(wanted.argmin()), int(wanted.argmax())
        rise = columns[:, high] - columns[:, low]
        usable = rise != 0
        factor = np.where(usable, (wanted[high] - wanted[low]) // np.where(usable, rise, 1), 0)
        const = wanted[low] - factor * columns[:, low]
        most = _FACTOR * int(np.abs(wanted).max())  # what is larger fits by chance
        usable &= (np.abs(factor) <= most) & (np.abs(const) <= most)
        right = usable & (factor[:, None] * columns + const[:, None] == wanted).all(axis=1)
        rows = sorted(np.flatnonzero(right).tolist(), key=lambda n: (bool(const[n]), n))
        found = tuple(Formula(int(const[n]), ((int(factor[n]), several[n]),)) for n in rows)
        if len(found) > 1:
            self.rivals.append(found)
        return found[0] if found else None

    def _polynomial(self, values: tuple[int, ...]) -> Formula | None:
        """Return a sum of many monomials: products of dimensions that are longer than a size, ``(2h - 1) * (2w - 1)``.

        There are as many unknown numbers as monomials, and more values than these.
        """
        return self._sum(values, self._low_monomials)

    def _sum(self, values: tuple[int, ...], several: Sequence[tuple[Atom, ...]]) -> Formula | None:
        """Return the sum of all of some products of atoms that gives every value."""
        if len(self.points) < len(several) + _TO_SPARE:
            return None
        terms = [[math.prod(a.at(p) for a in x) for x in several] for p in self.points]
        columns = np.hstack([np.array(terms, float), np.ones((len(self.points), 1))])
        found, _, rank, _ = np.linalg.lstsq(columns, np.array(values, float), rcond=None)
        if rank < columns.shape[1]:
            return None
        *factors, const = (int(x) for x in np.rint(found))
        made = Formula(const, tuple((f, m) for f, m in zip(factors, several, strict=True) if f))
        return made if all(made.at(p) == v for p, v in zip(self.points, values, strict=True)) else None

    def _boxes(self, values: tuple[int, ...]) -> Formula | None:
        """Return the product of two sums, each of a number and of a size or its quotient: ``(4 * c + 2) * (w + 2)``."""
        counts = [a for (a,) in self._space.both if a.how in ("*", "ceil") and a.factor == 1]
        lone = [a for a in counts if len(a.sizes) == 1]
        pairs = [(a, b) for a, b in itertools.combinations(lone, 2) if a.sizes != b.sizes]
        found = [f for a, b in pairs if (f := self._sum(values, [(a,), (b,), (a, b)])) is not None and len(f.terms) > 1]
        if len(found) > 1:
            self.rivals.append(tuple(found[:_MOST_RIVALS]))
        return found[0] if found else None

    @cached_property
    def _low_monomials(self) -> list[tuple[Atom, ...]]:
        """Sizes, and products of different ones."""
        return [m for m in self._space.monomials if len(set(m[0].sizes)) == len(m[0].sizes)]

    def _two(
        self, values: tuple[int, ...], several: Sequence[tuple[Atom, ...]], others: Sequence[tuple[Atom, ...]]
    ) -> Formula | None:
        """Return ``f * atoms + g * atoms + const``."""
        if len(self.points) < 5 or not several:  # three unknown numbers need some more to be held against
            return None
        wanted = np.array(values, np.float64)
        every, rest = self._columns(several).astype(float), self._columns(others).astype(float)
        middle = wanted - wanted.mean()
        one, two = every - every.mean(axis=1, keepdims=True), rest - rest.mean(axis=1, keepdims=True)
        # Normal equations of all pairs at once; a formula that is found is held against all values exactly.
        a, b, c = (one**2).sum(axis=1)[:, None], one @ two.T, (two**2).sum(axis=1)[None, :]
        x, y = (one @ middle)[:, None], (two @ middle)[None, :]
        det = a * c - b * b
        fine = det > 1e-9 * np.maximum(a * c, 1e-300)
        det = np.where(fine, det, 1.0)
        f, g = np.rint((x * c - y * b) / det), np.rint((a * y - b * x) / det)
        const = np.rint(wanted.mean() - f * every.mean(axis=1)[:, None] - g * rest.mean(axis=1)[None, :])
        off = np.abs(f[..., None] * every[:, None, :] + g[..., None] * rest[None] + const[..., None] - wanted).max(
            axis=2
        )
        most = _FACTOR * float(np.abs(wanted).max())
        fine &= (np.abs(f) <= most) & (np.abs(g) <= most) & (np.abs(const) <= most)
        rows = np.argwhere(fine & (off < 0.5) & (f != 0) & (g != 0)).tolist()
        found = [
            Formula(int(const[n, m]), ((int(f[n, m]), several[n]), (int(g[n, m]), others[m])))
            for n, m in sorted(
                rows, key=lambda at: (bool(const[tuple(at)]), float(abs(f[tuple(at)]) + abs(g[tuple(at)])), at)
            )[:_MOST_RIVALS]
        ]
        alike = tuple(x for x in found if all(x.at(p) == v for p, v in zip(self.points, values, strict=True)))
        if len(alike) > 1:
            self.rivals.append(alike)
        return alike[0] if alike else None
