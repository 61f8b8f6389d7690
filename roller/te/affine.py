"""TVM integer expressions as indices and bounds: the arithmetic part of the reader.

TVM simplifies an expression; the result is matched term by term, so each index is either read exactly or rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import Any

from roller.errors import ExprError
from roller.expr import Bound, Index, Load, Tensor, Term
from roller.expr.index_bound_proofs import HalfBound
from roller.te.compat import TensorLoad, analyzer_with_extents, dtype_of, substitute, tirx
from roller_runtime.core.dtypes import DTYPES, NARROW_INTEGERS

#: Number of alternatives above which further conditions are ignored.
_MOST_CASES = 32
#: Smallest and largest integers of the dtypes that an index may overflow.
_RANGES = {name: DTYPES[name].integer_range for name in ("bool", *NARROW_INTEGERS)}


class NotAffineError(Exception):
    """Internal: the expression is not a quasi-affine index; the message gives the reason."""


class AxisSpace:
    """The axes of one stage: variables, names, extents, and TVM's analyzer for them."""

    def __init__(self, axes: list[tuple[Any, str, int]]) -> None:
        self.names = {var: name for var, name, _ in axes}
        self.extents = {name: extent for _, name, extent in axes}
        # Axes of extent 1 stay in the indices, so that a load shows which axis indexes which dimension.
        self._analyzer = analyzer_with_extents([(var, extent) for var, _, extent in axes if extent > 1])

    def simplify(self, expr: Any, env: Mapping[Any, Any]) -> Any:
        """Return ``expr``, with ``env`` substituted, in simplified form."""
        return self._analyzer.simplify(substitute(expr, env))

    def index(self, expr: Any, env: Mapping[Any, Any]) -> Index:
        """Return an integer expression as an index."""
        return self._index(self.simplify(expr, env))

    def _index(self, e: Any) -> Index:
        """Return ``e`` as an index; raise an error if it can leave its dtype's range, because integers would wrap."""
        index, dtype = self._of(e), dtype_of(e)
        if dtype in _RANGES:
            low, high = index.range(self.extents)
            least, most = _RANGES[dtype]
            if low < least or high > most:
                raise NotAffineError(f"it leaves the range of {dtype}")
        return index

    def _of(self, e: Any) -> Index:
        if isinstance(e, tirx.IntImm):
            return Index((), int(e.value))
        if isinstance(e, tirx.Var):
            if e not in self.names:
                raise NotAffineError(f"'{e.name}' is no axis of the stage (symbolic)")
            return Index((Term(self.names[e]),))
        if isinstance(e, TensorLoad):
            raise NotAffineError(f"it depends on the data of '{e.source.name}'")
        if isinstance(e, tirx.Cast):
            return self._index(e.value)
        if isinstance(e, (tirx.Add, tirx.Sub)):
            return _add_indices(self._index(e.a), self._index(e.b), -1 if isinstance(e, tirx.Sub) else 1)
        if isinstance(e, tirx.Mul):
            a, b = self._index(e.a), self._index(e.b)
            if a.terms and b.terms:
                raise NotAffineError("it multiplies two axes")
            factor, index = (b.const, a) if not b.terms else (a.const, b)
            return _add_indices(Index(), index, factor)
        if isinstance(e, (tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod)):
            return self._convert_division(e)
        raise NotAffineError(f"{type(e).__name__} is no index arithmetic")

    def _convert_division(self, e: Any) -> Index:
        """Return ``index // c`` or ``index % c`` as an index; truncation equals floor for non-negative indices."""
        whole, by = self._index(e.a), self._index(e.b)
        if by.terms or by.const <= 0:
            raise NotAffineError("it divides by something other than a positive constant")
        c = by.const
        truncates = isinstance(e, (tirx.Div, tirx.Mod))
        if truncates and whole.range(self.extents)[0] < 0:
            raise NotAffineError("it divides a negative number with truncation")
        exact = Index(tuple(t for t in whole.terms if t.coef % c == 0), whole.const - whole.const % c)
        rest = Index(tuple(t for t in whole.terms if t.coef % c), whole.const % c)
        low, high = rest.range(self.extents)
        inside = low >= 0 and high < c
        if isinstance(e, (tirx.FloorMod, tirx.Mod)):
            return rest if inside else Index((_remainder_of_index(rest, c),))
        quotient = Index(tuple(Term(t.axis, t.coef // c, t.div, t.mod) for t in exact.terms), exact.const // c)
        return quotient if inside else _add_indices(quotient, Index((_quotient_of_index(rest, c),)), 1)


def _single_term(index: Index, what: str) -> Term:
    if len(index.terms) != 1 or index.const or index.terms[0].coef != 1:
        raise NotAffineError(f"it takes {what} of a sum that does not split")
    return index.terms[0]


def _quotient_of_index(index: Index, c: int) -> Term:
    t = _single_term(index, "a quotient")
    if t.mod % c:
        raise NotAffineError("it divides a remainder unevenly")
    return Term(t.axis, 1, t.div * c, t.mod // c)


def _remainder_of_index(index: Index, c: int) -> Term:
    t = _single_term(index, "a remainder")
    if t.mod % c:
        raise NotAffineError("it nests remainders unevenly")
    return Term(t.axis, 1, t.div, c)


def _add_indices(a: Index, b: Index, factor: int) -> Index:
    """Return ``a + factor * b`` with like terms merged."""
    coefs: dict[tuple[str, int, int], int] = {}
    for index, scale in ((a, 1), (b, factor)):
        for t in index.terms:
            key = (t.axis, t.div, t.mod)
            coefs[key] = coefs.get(key, 0) + scale * t.coef
    terms = tuple(Term(axis, c, div, mod) for (axis, div, mod), c in coefs.items() if c)
    return Index(terms, a.const + factor * b.const)


def comparison_as_bound(space: AxisSpace, e: Any, env: Mapping[Any, Any]) -> HalfBound:
    """Return an integer comparison as a bound on an index that has no constant and no common factor."""
    kind = type(e)
    if kind not in (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ):
        raise NotAffineError(f"{kind.__name__} is no bound")
    left, right = (e.b, e.a) if kind in (tirx.GT, tirx.GE) else (e.a, e.b)
    difference = _add_indices(space.index(left, env), space.index(right, env), -1)  # < 0, <= 0 or == 0
    if not difference.terms:
        raise NotAffineError("it compares constants")
    top = -difference.const - (1 if kind in (tirx.LT, tirx.GT) else 0)  # sum(terms) <= top
    low = top if kind is tirx.EQ else None
    sign = -1 if difference.terms[0].coef < 0 else 1
    divisor = gcd(*(t.coef for t in difference.terms))
    terms = tuple(Term(t.axis, sign * t.coef // divisor, t.div, t.mod) for t in difference.terms)
    high: int | None = top
    if sign < 0:
        low, high = -top, (-low if low is not None else None)
    low = None if low is None else -(-low // divisor)
    high = None if high is None else high // divisor + 1
    return HalfBound(Index(terms), low, high)


def negate_single_bound(bounds: list[HalfBound]) -> list[HalfBound]:
    """Return the bound that holds if ``bounds``, a single one-sided bound, fails; empty for any other list."""
    if len(bounds) != 1:
        return []
    b = bounds[0]
    if b.low is None and b.high is not None:
        return [HalfBound(b.index, b.high, None)]
    return [HalfBound(b.index, None, b.low)] if b.high is None and b.low is not None else []


def implied_bounds(space: AxisSpace, e: Any, holds: bool) -> list[HalfBound]:
    """Return the bounds that follow if ``e`` holds (or fails, if not ``holds``); empty if it is not a bound."""
    # A conjunction implies the bounds of both parts, and a disjunction implies the hull of both; if the condition
    # fails, the reverse applies.
    if isinstance(e, tirx.Not):
        return implied_bounds(space, e.a, not holds)
    if isinstance(e, (tirx.And, tirx.Or)):
        a, b = implied_bounds(space, e.a, holds), implied_bounds(space, e.b, holds)
        return [*a, *b] if isinstance(e, tirx.And) == holds else _hull_of_bounds(a, b)
    if isinstance(e, tirx.NE):
        return implied_bounds(space, tirx.EQ(e.a, e.b), not holds)
    try:
        bound = comparison_as_bound(space, e, {})
    except NotAffineError:
        return []
    return [bound] if holds else negate_single_bound([bound])


def alternative_bounds(space: AxisSpace, e: Any, holds: bool) -> list[list[HalfBound]]:
    """Return alternatives, at least one of which is true if ``e`` holds (or fails, if not ``holds``)."""
    if isinstance(e, tirx.Not):
        return alternative_bounds(space, e.a, not holds)
    if isinstance(e, (tirx.And, tirx.Or)):
        a, b = alternative_bounds(space, e.a, holds), alternative_bounds(space, e.b, holds)
        return combine_alternatives(a, b) if isinstance(e, tirx.And) == holds else [*a, *b]
    if isinstance(e, tirx.NE):
        return alternative_bounds(space, tirx.EQ(e.a, e.b), not holds)
    try:
        bound = comparison_as_bound(space, e, {})
    except NotAffineError:
        return [[]]
    if holds or not isinstance(e, tirx.EQ):
        return [[bound] if holds else negate_single_bound([bound])]
    return [[HalfBound(bound.index, None, bound.low)], [HalfBound(bound.index, bound.high, None)]]


def combine_alternatives(a: list[list[HalfBound]], b: list[list[HalfBound]]) -> list[list[HalfBound]]:
    """Return the combined alternatives of two conditions, or only the first condition's if there are too many."""
    return [[*x, *y] for x in a for y in b] if len(a) * len(b) <= _MOST_CASES else a


def _hull_of_bounds(a: list[HalfBound], b: list[HalfBound]) -> list[HalfBound]:
    """Return the hull of the bounds of each index that both sides bound."""
    one, other = (
        {x.index: _intersect_bounds([y for y in side if y.index == x.index]) for x in side} for side in (a, b)
    )
    out = []
    for index in (i for i in one if i in other):
        (low, high), (low2, high2) = one[index], other[index]
        least = None if low is None or low2 is None else min(low, low2)
        most = None if high is None or high2 is None else max(high, high2)
        out.append(HalfBound(index, least, most))
    return out


def _intersect_bounds(bounds: list[HalfBound]) -> tuple[int | None, int | None]:
    lows, highs = [b.low for b in bounds if b.low is not None], [b.high for b in bounds if b.high is not None]
    return max(lows, default=None), min(highs, default=None)


def attach_bounds(
    load: Load, bounds: list[HalfBound], outside: float, tensor: Tensor, extents: Mapping[str, int]
) -> Load:
    """Return ``load`` with ``bounds`` as guards in normal form: on its own indices, within its tensor, if needed."""
    # A side that a condition leaves open is closed by the bound of the tensor, which the access cannot cross there.
    limits: dict[Index, tuple[int, int]] = {b.index: (b.low, b.high) for b in load.guard}
    for b in bounds:
        index, low, high = _bound_on_load_index(load, b)
        least, most = index.range(extents)
        low, high = (least if low is None else low), (most + 1 if high is None else high)
        old = limits.get(index, (least, most + 1))
        limits[index] = max(low, old[0]), min(high, old[1])
    order = {i: d for d, i in reversed(list(enumerate(load.index)))}
    guard = []
    for index in sorted(limits, key=lambda i: order.get(i, len(order))):
        low, high = limits[index]
        least, most = index.range(extents)
        if low <= least and high > most:
            continue
        if index in order:
            size = tensor.shape[order[index]]
            low = 0 if low <= least and least >= 0 else low
            high = size if high > most and most < size else high
        guard.append(Bound(index, low, high))
    return Load(load.tensor, load.index, tuple(guard), outside if guard else 0.0)


def _bound_on_load_index(load: Load, b: HalfBound) -> tuple[Index, int | None, int | None]:
    """Return ``b`` as a bound on a load index (a multiple of the bounded index plus a constant) if there is one."""
    wanted = {(t.axis, t.div, t.mod): t.coef for t in b.index.terms}
    for index in load.index:
        have = {(t.axis, t.div, t.mod): t.coef for t in index.terms}
        if have.keys() != wanted.keys():
            continue
        ratios = {have[k] / wanted[k] for k in wanted}
        factor = round(next(iter(ratios)))
        if len(ratios) != 1 or factor not in ratios or factor == 0:
            continue
        first = None if b.low is None else factor * b.low + index.const
        last = None if b.high is None else factor * (b.high - 1) + index.const
        if factor < 0:
            first, last = last, first
        return index, first, None if last is None else last + 1
    return b.index, b.low, b.high


def untileable_index_error(tensor: str, of: str, dimension: int, reason: str) -> ExprError:
    """Return the error for an index that is outside the supported family."""
    return ExprError(
        f"tensor '{tensor}': its dimension {dimension} is read by '{of}' through an index that cannot be tiled: "
        f"{reason}. "
        "Use sums of constant multiples of axes, or // and % of one axis; gather the data beforehand."
    )
