"""Proofs, by Fourier-Motzkin elimination over integers, that known bounds keep an index inside its tensor.

A quotient ``q = i // d`` is an unknown with ``0 <= i - d q < d``, and ``i % m = i - m (i // m)``, so every index is
linear in bounded unknowns. A bound holds if its negation has no solution; expensive proofs are abandoned.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from roller.expr.scalar import Bound, Index, Load

#: An unknown ``axis // divisor``.
_Unknown: TypeAlias = tuple[str, int]
#: Coefficients sorted by unknown. A system maps each row's coefficients to the constant in ``sum + constant >= 0``.
_Sum: TypeAlias = tuple[tuple[_Unknown, int], ...]

#: Number of rows of a system above which a proof is abandoned.
_MOST_ROWS = 400


@dataclass(frozen=True)
class HalfBound:
    """A condition ``low <= index < high`` in which either side may be missing."""

    index: Index
    low: int | None = None
    high: int | None = None


def add_provable_guards(
    load: Load, shape: Sequence[int], facts: Sequence[Sequence[HalfBound]], extents: Mapping[str, int]
) -> Load:
    """Return ``load`` with a guard on every index that seems to leave its tensor but provably never does.

    Examples
    --------
    >>> from roller.expr import axis_index
    >>> i, before = axis_index("i"), axis_index("i", 1, -3)
    >>> diagonal = Load("W", (before, i), (Bound(before, 0, 30),))
    >>> [(b.low, b.high) for b in add_provable_guards(diagonal, (30, 40), (), {"i": 100}).guard]
    [(0, 30), (0, 40)]
    >>> add_provable_guards(diagonal, (30, 32), (), {"i": 100}) == diagonal
    True
    """
    # Code generation may then bound each index on its own.
    guard = {b.index: b for b in load.guard}
    own = [HalfBound(b.index, b.low, b.high) for b in load.guard]
    cases = [[*own, *case] for case in facts or [()]]
    new = dict(guard)
    for i, n in zip(load.index, shape, strict=True):
        low, high = i.range(extents)
        low, end = (max(low, guard[i].low), min(high + 1, guard[i].high)) if i in guard else (low, high + 1)
        if low >= end or (low >= 0 and end <= n):
            continue
        if all(index_stays_in_dimension(i, n, case, extents) for case in cases):
            new[i] = Bound(i, max(0, guard[i].low), min(n, guard[i].high)) if i in guard else Bound(i, 0, n)
    if new == guard:
        return load
    place = {i: d for d, i in reversed(list(enumerate(load.index)))}
    return replace(load, guard=tuple(sorted(new.values(), key=lambda b: place.get(b.index, len(place)))))


def index_stays_in_dimension(index: Index, size: int, facts: Iterable[HalfBound], extents: Mapping[str, int]) -> bool:
    """Return whether ``0 <= index < size`` provably holds wherever all facts hold.

    Examples
    --------
    >>> from roller.expr import Term
    >>> i = Index((Term("i"),))
    >>> index_stays_in_dimension(i, 4, [HalfBound(Index((Term("i"), Term("j"))), None, 4)], {"i": 9, "j": 9})
    True
    >>> index_stays_in_dimension(Index((Term("i", 3, 1, 8), Term("i", -2)), 48), 56, (), {"i": 32})
    True
    """
    known = list(facts)
    beyond = HalfBound(index, None, 0), HalfBound(index, size)
    return not any(_may_have_solution([*known, contrary], extents) for contrary in beyond)


def _may_have_solution(facts: Sequence[HalfBound], extents: Mapping[str, int]) -> bool:
    """Return whether integer axes within their extents may satisfy all facts; ``True`` if undecided."""
    rows: dict[_Sum, int] = {}
    fits = True
    for fact in facts:
        terms, constant = _coefficients_and_constant(fact.index)
        if fact.low is not None:
            fits &= _add_constraint(rows, terms, constant - fact.low)
        if fact.high is not None:
            fits &= _add_constraint(rows, {v: -c for v, c in terms.items()}, fact.high - 1 - constant)
    for terms, constant in _range_constraints({v for row in rows for v, _ in row}, extents):
        fits &= _add_constraint(rows, terms, constant)
    while fits and rows:
        if len(rows) > _MOST_ROWS:
            return True
        rows, fits = _eliminate_unknown(_cheapest_unknown_to_eliminate(rows), rows)
    return fits


def _coefficients_and_constant(index: Index) -> tuple[dict[_Unknown, int], int]:
    """Return the coefficients of an index's unknowns, and the index's constant term."""
    out: dict[_Unknown, int] = {}
    for t in index.terms:
        out[t.axis, t.div] = out.get((t.axis, t.div), 0) + t.coef
        if t.mod:
            above = (t.axis, t.div * t.mod)
            out[above] = out.get(above, 0) - t.coef * t.mod
    return out, index.const


def _range_constraints(
    unknowns: Iterable[_Unknown], extents: Mapping[str, int]
) -> list[tuple[dict[_Unknown, int], int]]:
    """Return the rows that always hold: ranges of the unknowns, and relations between the quotients of an axis."""
    divisors: dict[str, set[int]] = {}
    for axis, d in unknowns:
        divisors.setdefault(axis, {1}).add(d)
    out: list[tuple[dict[_Unknown, int], int]] = []
    for axis, found in divisors.items():
        for d in found:
            out += [({(axis, d): 1}, 0), ({(axis, d): -1}, (extents[axis] - 1) // d)]
            finer = [f for f in found if f < d and d % f == 0]
            for f in (f for f in finer if not any(g % f == 0 for g in finer if g > f)):
                step = d // f
                rest = {(axis, f): 1, (axis, d): -step}
                out += [(rest, 0), ({v: -c for v, c in rest.items()}, step - 1)]
    return out


def _add_constraint(rows: dict[_Sum, int], terms: Mapping[_Unknown, int], constant: int) -> bool:
    """Add ``sum(terms) + constant >= 0``, or tighten the row with the same terms; return whether it can hold."""
    kept = tuple(sorted((v, c) for v, c in terms.items() if c))
    if not kept:
        return constant >= 0
    divisor = math.gcd(*(c for _, c in kept))
    row = tuple((v, c // divisor) for v, c in kept)
    constant //= divisor  # the unknowns are integers, so the constant rounds down
    rows[row] = min(rows.get(row, constant), constant)
    return True


def _cheapest_unknown_to_eliminate(rows: Mapping[_Sum, int]) -> _Unknown:
    """Return the unknown whose elimination adds the fewest rows."""
    above: dict[_Unknown, int] = {}
    below: dict[_Unknown, int] = {}
    for row in rows:
        for v, c in row:
            count, other = (above, below) if c > 0 else (below, above)
            count[v] = count.get(v, 0) + 1
            other.setdefault(v, 0)
    return min(above, key=lambda v: (above[v] * below[v] - above[v] - below[v], v))


def _eliminate_unknown(unknown: _Unknown, rows: Mapping[_Sum, int]) -> tuple[dict[_Sum, int], bool]:
    """Eliminate an unknown from a system; return the remaining rows and whether they may hold."""
    out: dict[_Sum, int] = {}
    lower: list[tuple[_Sum, int, int]] = []
    upper: list[tuple[_Sum, int, int]] = []
    fits = True
    for row, constant in rows.items():
        c = dict(row).get(unknown, 0)
        if not c:
            fits &= _add_constraint(out, dict(row), constant)
        else:
            (lower if c > 0 else upper).append((row, constant, abs(c)))
    for one, constant, c in lower:
        for other, constant2, c2 in upper:
            common = math.gcd(c, c2)
            times, times2 = c2 // common, c // common
            total = {v: times * k for v, k in one}
            for v, k in other:
                total[v] = total.get(v, 0) + times2 * k
            fits &= _add_constraint(out, total, times * constant + times2 * constant2)
            if not fits:
                return out, False
    return out, fits
