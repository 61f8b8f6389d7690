"""Finds formulas that reproduce numbers known for some sizes."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import overload

import numpy as np

from roller_runtime.core.size_formulas import Atom, Formula

#: Maximum ratio of a formula's factor or constant to the largest fitted number.
_FACTOR = 8
#: Maximum number of sizes in one monomial.
_DEGREE = 3
#: Minimum number of values from which five unknowns are found.
_BOX_POINTS = 7
#: Maximum number of products of three quotients to try.
_MOST_TRIPLES = 12000
#: Maximum number of equivalent two-term formulas to keep as rivals.
_MOST_RIVALS = 40
#: Number of values needed in addition to one per unknown of a polynomial.
_TO_SPARE = 2


class _AtomProducts(Sequence[tuple[Atom, ...]]):
    """Products of atoms, stored as atom positions ``at``, shape ``(products, factors)``, because few become objects."""

    def __init__(self, atoms: Sequence[Atom], at: np.ndarray) -> None:
        self.atoms, self.at = tuple(atoms), at
        self._monomials = list(dict.fromkeys(a.sizes for a in self.atoms))
        self._base = np.array([self._monomials.index(a.sizes) for a in self.atoms], np.intp)
        self._numbers = {
            k: np.array([getattr(a, k) for a in self.atoms], np.int64)[:, None] for k in ("factor", "by", "whole")
        }
        ways = ("ceil", "floor", "mod", "share")
        self._how = {how: np.array([a.how == how for a in self.atoms], bool) for how in ways}

    @classmethod
    def lone(cls, atoms: Sequence[Atom]) -> _AtomProducts:
        """Return the products that consist of one atom."""
        return cls(atoms, np.arange(len(atoms))[:, None])

    @overload
    def __getitem__(self, row: int) -> tuple[Atom, ...]: ...
    @overload
    def __getitem__(self, row: slice) -> list[tuple[Atom, ...]]: ...
    def __getitem__(self, row: int | slice) -> tuple[Atom, ...] | list[tuple[Atom, ...]]:
        if isinstance(row, slice):
            return [self[n] for n in range(*row.indices(len(self)))]
        return tuple(self.atoms[n] for n in self.at[row].tolist())

    def __len__(self) -> int:
        return len(self.at)

    def where(self, wanted: Callable[[Atom], bool]) -> _AtomProducts:
        """Return the products whose first atom satisfies ``wanted``."""
        held = np.array([wanted(a) for a in self.atoms], bool)
        return _AtomProducts(self.atoms, self.at[held[self.at[:, 0]]])

    def values(self, sizes: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the values of the products, shape ``(products, points)``; each name maps to an array of sizes."""
        if not len(self):
            return np.empty((0, len(next(iter(sizes.values())))), np.int64)
        monomials = np.stack([math.prod(sizes[n] for n in m) for m in self._monomials])
        found = monomials[self._base] * self._numbers["factor"]
        for how, rows in self._how.items():
            if rows.any():
                by, value = self._numbers["by"][rows], found[rows]
                if how == "share":
                    value = -(-self._numbers["whole"][rows] // np.maximum(1, -(-value // by)))
                else:
                    value = value % by if how == "mod" else -(-value // by) if how == "ceil" else value // by
                found[rows] = value
        return np.asarray(found[self.at].prod(axis=1))


class _CandidateTerms:
    """Cached lists of candidate products for formulas in the given sizes."""

    def __init__(
        self, names: tuple[str, ...], divisors: tuple[int, ...], dividends: tuple[tuple[int, tuple[str, ...]], ...]
    ) -> None:
        self.names, self.divisors, self.dividends = names, divisors, dividends

    @cached_property
    def monomials(self) -> _AtomProducts:
        """Products of up to :data:`_DEGREE` sizes."""
        names = self.names
        every = [c for n in range(1, _DEGREE + 1) for c in itertools.combinations_with_replacement(names, n)]
        return _AtomProducts.lone([Atom(c) for c in every])

    @cached_property
    def low_degree_monomials(self) -> list[tuple[int, tuple[str, ...]]]:
        """Monomials below the maximum degree, each with the factor 1."""
        return [(1, a.sizes) for a in self.monomials.atoms if len(a.sizes) < _DEGREE]

    @cached_property
    def quotients_and_remainders(self) -> _AtomProducts:
        """Quotients and remainders, those of short monomials first."""
        parted = [*self.low_degree_monomials, *dict.fromkeys(self.dividends)]
        ways = ("ceil", "floor", "mod")
        return _AtomProducts.lone([Atom(m, how, d, f) for f, m in parted for d in self.divisors for how in ways])

    @cached_property
    def products(self) -> _AtomProducts:
        """Products of a quotient and a monomial, and of two quotients."""
        parted, alone = self.quotients_and_remainders.atoms, self.monomials.atoms
        ratios = np.array([n for n, a in enumerate(parted) if a.how != "mod"], np.intp)
        counts = np.array([n for n, a in enumerate(parted) if a.how == "ceil"], np.intp)
        whole = np.arange(len(parted), len(parted) + len(alone))
        pairs = np.stack([np.repeat(ratios, len(whole)), np.tile(whole, len(ratios))], axis=1)
        one, other = np.triu_indices(len(counts), 1)
        return _AtomProducts((*parted, *alone), np.concatenate([pairs, np.stack([counts[one], counts[other]], axis=1)]))

    @cached_property
    def three_axis_products(self) -> _AtomProducts:
        """Products of three different sizes, each whole or as a rounded-up quotient: task counts over three axes."""
        alone: dict[str, list[Atom]] = {n: [Atom((n,))] for n in self.names}
        for a in self.quotients_and_remainders.atoms:
            if a.how == "ceil" and len(a.sizes) == 1 and a.factor == 1:
                alone[a.sizes[0]].append(a)
        atoms = [a for several in alone.values() for a in several]
        places = iter(range(len(atoms)))
        numbers = [[next(places) for _ in several] for several in alone.values()]
        rows = (c for three in itertools.combinations(numbers, 3) for c in itertools.product(*three))
        return _AtomProducts(atoms, np.array(list(itertools.islice(rows, _MOST_TRIPLES)), np.intp).reshape(-1, 3))

    @cached_property
    def shares(self) -> _AtomProducts:
        """Numbers divided by a quotient."""
        counts = [a for a in self.quotients_and_remainders.atoms if a.how == "ceil"]
        lone = [Atom(sizes, "ceil", 1) for _, sizes in self.low_degree_monomials]  # tiles of one element
        several = [replace(a, how="share", whole=n) for a in (*lone, *counts) for n in self.divisors if n > a.by]
        return _AtomProducts.lone(several)

    @cached_property
    def monomials_and_quotients(self) -> _AtomProducts:
        """Monomials and quotients."""
        return _AtomProducts.lone([*self.monomials.atoms, *self.quotients_and_remainders.atoms])

    @cached_property
    def lone(self) -> _AtomProducts:
        """Products whose first quotient has a single size."""
        return self.products.where(lambda a: len(a.sizes) == 1)


@functools.lru_cache(maxsize=16)
def _cached_candidate_terms(
    names: tuple[str, ...], divisors: tuple[int, ...], dividends: tuple[tuple[int, tuple[str, ...]], ...]
) -> _CandidateTerms:
    return _CandidateTerms(names, divisors, dividends)


class FormulaFitter:
    """Finds formulas for numbers known for some sizes.

    Parameters
    ----------
    points
        Sizes, by name, for which the numbers are known.
    divisors
        Numbers that may divide sizes: tile extents and their products.
    dividends
        Extents that may be divided, in addition to products of sizes.
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
        self._space = _cached_candidate_terms(tuple(sorted(self.points[0])), several, tuple(dict.fromkeys(parts)))
        self._found: dict[tuple[int, ...], Formula | None] = {}
        self._known: dict[int, tuple[_AtomProducts, np.ndarray]] = {}
        #: Groups of formulas that agree at all points; other sizes may tell them apart.
        self.rivals: list[tuple[Formula, ...]] = []
        #: Values that the caller asked to fit, in order.
        self.asked: list[tuple[int, ...]] = []

    def fit(self, values: Sequence[int]) -> Formula | None:
        """Return the simplest formula that yields all values, or ``None`` if none does."""
        key = tuple(values)
        if key not in self._found:
            self._found[key] = Formula(key[0]) if len(set(key)) == 1 else self._search_formula(key)
        return self._found[key]

    def product(self, values: Sequence[int]) -> Formula | None:
        """Return the multiple of a monomial that yields all values, or ``None`` if none does."""
        found = self._one(tuple(values), self._space.monomials)
        return found if found is not None and found.product is not None else None

    def _search_formula(self, values: tuple[int, ...]) -> Formula | None:
        s = self._space
        return (
            self._one(values, s.monomials)
            or self._one(values, s.quotients_and_remainders)
            or self._one(values, s.products)
            or self._one(values, s.three_axis_products)
            or self._one(values, s.shares)
            or self._two(values, s.monomials, s.monomials)
            or self._fit_polynomial(values)
            or self._two(values, s.quotients_and_remainders, s.monomials_and_quotients)
            or self._two(values, s.lone, s.monomials)
            or self._boxes(values)
            or self._fit_scaled_product_of_sums(values)
        )

    def _fit_scaled_product_of_sums(self, values: tuple[int, ...]) -> Formula | None:
        """Return ``z * (a * x + b) * (c * y + d)``, such as the points of ``z`` images with borders, or ``None``."""
        # A polynomial of three sizes has twice as many unknowns and may need more points than there are.
        if len(self.points) < _BOX_POINTS:
            return None
        for x, y, z in itertools.permutations(self._space.names, 3):
            several = [(Atom(tuple(sorted((z, *part)))),) for part in ((x, y), (x,), (y,), ())]
            found = self._sum(values, several) if x < y else None
            if found is not None:
                return found
        return None

    def _columns(self, several: _AtomProducts) -> np.ndarray:
        if id(several) not in self._known:  # the lists live as long as their space, or as the fitter keeps them
            self._known[id(several)] = several, several.values(self._at)
        return self._known[id(several)][1]

    @cached_property
    def _at(self) -> dict[str, np.ndarray]:
        return _arrays_by_name(self.points)

    def doubtful(self, several: Sequence[Mapping[str, int]]) -> list[bool]:
        """Return, for each set of sizes, whether rival formulas differ there, so that a value would decide."""
        if not several:
            return []
        found, at = np.zeros(len(several), bool), _arrays_by_name(several)
        for alike in dict.fromkeys(self.rivals):
            first, *others = (f.of_many(at) for f in alike)
            for values in others:
                found |= values != first
        return [bool(x) for x in found]

    def _one(self, values: tuple[int, ...], several: _AtomProducts) -> Formula | None:
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

    def _fit_polynomial(self, values: tuple[int, ...]) -> Formula | None:
        """Return a sum of many monomials, as needed for ``(2h - 1) * (2w - 1)``, or ``None`` if there is none."""
        return self._sum(values, self._low_monomials)

    def _sum(self, values: tuple[int, ...], several: Sequence[tuple[Atom, ...]]) -> Formula | None:
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
        """Return a product of two sums of a constant and a size or quotient: ``(4 * c + 2) * (w + 2)``; or ``None``."""
        counts = [a for a in self._space.monomials_and_quotients.atoms if a.how in ("*", "ceil") and a.factor == 1]
        lone = [a for a in counts if len(a.sizes) == 1]
        pairs = [(a, b) for a, b in itertools.combinations(lone, 2) if a.sizes != b.sizes]
        found = [f for a, b in pairs if (f := self._sum(values, [(a,), (b,), (a, b)])) is not None and len(f.terms) > 1]
        if len(found) > 1:
            self.rivals.append(tuple(found[:_MOST_RIVALS]))
        return found[0] if found else None

    @cached_property
    def _low_monomials(self) -> list[tuple[Atom, ...]]:
        """Monomials without repeated sizes."""
        return [m for m in self._space.monomials if len(set(m[0].sizes)) == len(m[0].sizes)]

    def _two(self, values: tuple[int, ...], several: _AtomProducts, others: _AtomProducts) -> Formula | None:
        if len(self.points) < 5 or not several:  # three unknowns need further values as a check
            return None
        wanted = np.array(values, np.float64)
        every, rest = self._columns(several).astype(float), self._columns(others).astype(float)
        middle = wanted - wanted.mean()
        one, two = every - every.mean(axis=1, keepdims=True), rest - rest.mean(axis=1, keepdims=True)
        # Normal equations of all pairs at once; every formula found is then checked exactly.
        a, b, c = (one**2).sum(axis=1)[:, None], one @ two.T, (two**2).sum(axis=1)[None, :]
        x, y = (one @ middle)[:, None], (two @ middle)[None, :]
        det = a * c - b * b
        fine = det > 1e-9 * np.maximum(a * c, 1e-300)
        det = np.where(fine, det, 1.0)
        f, g = np.rint((x * c - y * b) / det), np.rint((a * y - b * x) / det)
        most = _FACTOR * float(np.abs(wanted).max())
        n, m = np.nonzero(fine & (f != 0) & (g != 0) & (np.abs(f) <= most) & (np.abs(g) <= most))
        f, g = f[n, m], g[n, m]
        const = np.rint(wanted.mean() - f * every.mean(axis=1)[n] - g * rest.mean(axis=1)[m])
        for at in range(len(wanted)):  # most pairs fail at the first point
            near = np.abs(f * every[n, at] + g * rest[m, at] + const - wanted[at]) < 0.5
            if at == 0:
                near &= np.abs(const) <= most
            n, m, f, g, const = (x[near] for x in (n, m, f, g, const))
        rows = sorted(zip(const.tolist(), f.tolist(), g.tolist(), n.tolist(), m.tolist(), strict=True),
                      key=lambda r: (bool(r[0]), abs(r[1]) + abs(r[2]), r[3:]))  # fmt: skip
        found = [Formula(int(c), ((int(f), several[n]), (int(g), others[m]))) for c, f, g, n, m in rows[:_MOST_RIVALS]]
        alike = tuple(x for x in found if all(x.at(p) == v for p, v in zip(self.points, values, strict=True)))
        if len(alike) > 1:
            self.rivals.append(alike)
        return alike[0] if alike else None


def _arrays_by_name(points: Sequence[Mapping[str, int]]) -> dict[str, np.ndarray]:
    return {n: np.array([p[n] for p in points], np.int64) for n in points[0]}
