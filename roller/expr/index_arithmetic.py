"""Arithmetic on indices: composition, quotient and remainder, and accesses through a different shape.

A reshape treats positions as numbers with digits: position ``64 * h + d`` of a merged dimension is ``(h, d)`` before
the merge, without a division. If an axis has no such digits, :func:`axis_splits_to_affine` may split it into some.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from roller.expr.scalar import Index, Term


def compose_index(index: Index, at: Mapping[str, Index], extents: Mapping[str, int] | None = None) -> Index | None:
    """Return ``index`` with axes replaced by the indices of ``at``, or ``None`` if the result is not an index.

    Examples
    --------
    >>> from roller.expr import axis_index
    >>> compose_index(axis_index("i", 2, 1), {"i": axis_index("k", 3)})
    Index(terms=(Term(axis='k', coef=6, div=1, mod=0),), const=1)
    """
    terms: list[Term] = []
    const = index.const
    for t in index.terms:
        inner = at.get(t.axis)
        if inner is None:
            terms.append(t)
            continue
        if not t.is_affine:
            if inner.const == 0 and len(inner.terms) == 1 and inner.is_axis(inner.terms[0].axis):
                inner = Index((replace(t, axis=inner.terms[0].axis, coef=1),))
            else:
                found = _extract_digit(inner, t.div, t.mod, extents) if extents is not None else None
                if found is None:
                    return None
                inner = found
        terms += [replace(u, coef=u.coef * t.coef) for u in inner.terms]
        const += t.coef * inner.const
    out = Index(tuple(terms), const)
    return out if extents is None else simplify_index(out, extents)


def _extract_digit(index: Index, div: int, mod: int, extents: Mapping[str, int]) -> Index | None:
    """Return ``(index // div) % mod``, or ``None`` if it is not an index."""
    split = divide_index(index, div, extents)
    if split is None or not mod:
        return None if split is None else split[0]
    again = divide_index(split[0], mod, extents)
    return None if again is None else again[1]


def term_of_merged_axis(part: Term, t: Term) -> Term | None:
    """Return term ``t`` of an axis, itself ``part`` of a merged axis, as a term of the merged axis, or ``None``.

    Examples
    --------
    >>> term_of_merged_axis(Term("k", 1, 6, 12), Term("i", 5, 2, 3))
    Term(axis='k', coef=5, div=12, mod=3)
    >>> term_of_merged_axis(Term("k", 1, 6, 5), Term("i", 1, 2)) is None
    True
    """
    if part.mod % t.div:
        return None
    size = part.mod // t.div  # extent of the quotient of the part; 0 if the part ends with the whole axis
    if t.mod and size > t.mod and size % t.mod:
        return None
    return Term(part.axis, t.coef, part.div * t.div, min(t.mod, size) or max(t.mod, size))


def simplify_index(index: Index, extents: Mapping[str, int]) -> Index:
    """Return an equal index with fewer terms: unit axes are dropped, and digits of one axis are joined.

    Examples
    --------
    >>> simplify_index(Index((Term("k", 64, 64), Term("k", 1, 1, 64))), {"k": 768})
    Index(terms=(Term(axis='k', coef=1, div=1, mod=0),), const=0)
    """
    sums: dict[tuple[str, int, int], int] = {}
    for t in index.terms:
        size = extents.get(t.axis)
        mod = t.mod
        if size is not None:
            if t.div >= size:
                continue
            if mod and mod >= -(-size // t.div):
                mod = 0
        if mod != 1:
            sums[t.axis, t.div, mod] = sums.get((t.axis, t.div, mod), 0) + t.coef
    terms = [Term(axis, coef, div, mod) for (axis, div, mod), coef in sums.items() if coef]
    merged = True
    while merged:
        merged = False
        for low in terms:
            # c * (a // d % m) + c * m * (a // (d * m) ...) is c * (a // d ...)
            high = next((h for h in terms if low.mod and h.axis == low.axis and h.div == low.div * low.mod
                         and h.coef == low.coef * low.mod), None)  # fmt: skip
            if high is not None:
                whole = Term(low.axis, low.coef, low.div, low.mod * high.mod)
                terms = [whole if t is low else t for t in terms if t is not high]
                merged = True
                break
    return Index(tuple(terms), index.const)


def divide_index(index: Index, n: int, extents: Mapping[str, int]) -> tuple[Index, Index] | None:
    """Return the quotient and remainder of an index divided by ``n``, or ``None`` if either is not an index.

    Examples
    --------
    >>> divide_index(Index((Term("h", 64), Term("d"))), 64, {"h": 12, "d": 64})
    (Index(terms=(Term(axis='h', coef=1, div=1, mod=0),), const=0), Index(terms=(Term(axis='d', coef=1, div=1, mod=0),), const=0))
    >>> divide_index(Index((Term("k"),)), 64, {"k": 768})[0]
    Index(terms=(Term(axis='k', coef=1, div=64, mod=0),), const=0)
    """  # noqa: E501 - two indices on one line
    index = simplify_index(index, extents)
    if n == 1:
        return index, Index()
    high = [replace(t, coef=t.coef // n) for t in index.terms if t.coef % n == 0]
    low = [t for t in index.terms if t.coef % n]
    quotient, rest = divmod(index.const, n)
    remainder = Index(tuple(low), rest)
    first, last = remainder.range(extents)
    if first >= 0 and last < n:
        return Index(tuple(high), quotient), remainder
    for t in low:
        # The term whose range is too large is split into two digits if ``n`` is one of its positions.
        if t.coef <= 0 or n % t.coef:
            continue
        part = n // t.coef
        if t.mod and t.mod % part:
            continue
        inner = Index((*(u for u in low if u is not t), replace(t, mod=part)), rest)
        first, last = inner.range(extents)
        if first < 0 or last >= n:
            continue
        above = Term(t.axis, 1, t.div * part, t.mod // part if t.mod else 0)
        return simplify_index(Index((*high, above), quotient), extents), simplify_index(inner, extents)
    return None


def row_major_address(index: Sequence[Index], shape: Sequence[int]) -> Index:
    """Return the memory offset, in elements, of an access to a row-major tensor."""
    terms: list[Term] = []
    const, pitch = 0, 1
    for i, n in zip(reversed(index), reversed(shape), strict=True):
        terms = [replace(t, coef=t.coef * pitch) for t in i.terms] + terms
        const += i.const * pitch
        pitch *= n
    return Index(tuple(terms), const)


def access_at_address(place: Index, shape: Sequence[int], extents: Mapping[str, int]) -> tuple[Index, ...] | None:
    """Return the access at memory offset ``place`` (the inverse of :func:`row_major_address`), or ``None``."""
    out: list[Index] = []
    left = simplify_index(place, extents)
    for n in reversed(shape[1:]):
        split = divide_index(left, n, extents)
        if split is None:
            return None
        left = split[0]
        out.append(split[1])
    if shape:
        out.append(left)
    return tuple(out[::-1])


def reshape_access(
    index: Sequence[Index], old: Sequence[int], new: Sequence[int], extents: Mapping[str, int]
) -> tuple[Index, ...] | None:
    """Return the access to shape ``new`` that reads what ``index`` reads in shape ``old``, or ``None`` if none does.

    Examples
    --------
    >>> from roller.expr import axis_index
    >>> heads = (axis_index("s"), axis_index("h"), axis_index("d"))
    >>> [len(i.terms) for i in reshape_access(heads, (128, 12, 64), (128, 768), {"s": 128, "h": 12, "d": 64})]
    [1, 2]
    """
    if tuple(old) == tuple(new):
        return tuple(index)
    # Groups of dimensions are matched one by one, so that a group that cannot be split does not affect the others.
    out = [Index() for _ in new]
    for before, after in _runs_of_equal_product(old, new):
        place = row_major_address([index[d] for d in before], [old[d] for d in before])
        found = (place,) if len(after) == 1 else access_at_address(place, [new[d] for d in after], extents)
        if found is None:
            return None
        for d, i in zip(after, found, strict=True):
            out[d] = i
    return tuple(out)


def _runs_of_equal_product(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Return the smallest runs of dimensions of two shapes with equal products, without unit dimensions."""
    out: list[tuple[list[int], list[int]]] = []
    left, right = ([d for d, n in enumerate(shape) if n > 1] for shape in (old, new))
    while left or right:
        before, after = [left.pop(0)], [right.pop(0)]
        a, b = old[before[0]], new[after[0]]
        while a != b:
            if a < b:
                before.append(left.pop(0))
                a *= old[before[-1]]
            else:
                after.append(right.pop(0))
                b *= new[after[-1]]
        out.append((before, after))
    return out


def invert_store_map(
    store: Sequence[Index], axes: Mapping[str, int], at: Sequence[Index], extents: Mapping[str, int]
) -> dict[str, Index] | None:
    """Return the axis values of a store at an access to the stored tensor, or ``None`` if one of them is not an index.

    Examples
    --------
    >>> from roller.expr import axis_index
    >>> invert_store_map((axis_index("i"), axis_index("j")), {"i": 4, "j": 6}, (axis_index("b"), Index((), 5)),
    ...     {"b": 4})
    {'i': Index(terms=(Term(axis='b', coef=1, div=1, mod=0),), const=0), 'j': Index(terms=(), const=5)}
    """
    found: dict[str, Index] = {a: Index() for a, n in axes.items() if n == 1}
    for stored, wanted in zip(store, at, strict=True):
        terms = sorted((t for t in stored.terms if axes[t.axis] > 1), key=lambda t: t.coef)
        left = Index(wanted.terms, wanted.const - stored.const)
        reach = 1
        for n, t in enumerate(terms):
            if not t.is_affine or t.coef != reach or t.axis in found:
                return None
            reach *= axes[t.axis]
            if n + 1 == len(terms):
                found[t.axis] = left
                break
            split = divide_index(left, axes[t.axis], extents)
            if split is None:
                return None
            left, found[t.axis] = split
    return found if set(found) == set(axes) else None


@dataclass(frozen=True)
class AxisSplit:
    """An axis split into digits; ``parts`` are (name, extent) pairs, most significant first."""

    axis: str
    parts: tuple[tuple[str, int], ...]

    @property
    def index(self) -> Index:
        """The axis as an index over its digits."""
        terms, pitch = [], 1
        for name, n in reversed(self.parts):
            terms.append(Term(name, pitch))
            pitch *= n
        return Index(tuple(terms[::-1]))


def axis_splits_to_affine(indices: Sequence[Index], extents: Mapping[str, int]) -> tuple[AxisSplit, ...] | None:
    """Return splits of axes after which every index is affine, or ``None`` if there are none.

    Examples
    --------
    >>> cut = axis_splits_to_affine([Index((Term("k", 1, 64),)), Index((Term("k", 1, 1, 64),))], {"k": 768})
    >>> cut[0].parts
    (('k/1', 12), ('k/0', 64))
    """
    cuts: dict[str, set[int]] = {}
    for t in (t for i in indices for t in i.terms if not t.is_affine):
        cuts.setdefault(t.axis, set()).update(c for c in (t.div, t.div * t.mod) if c > 1)
    out = []
    for axis, found in cuts.items():
        # Each position where an index cuts an axis must be a multiple of the previous one.
        edges = [1, *sorted(c for c in found if c < extents[axis]), extents[axis]]
        if any(b % a for a, b in itertools.pairwise(edges)):
            return None
        digits = [(f"{axis}/{n}", b // a) for n, (a, b) in enumerate(itertools.pairwise(edges))]
        out.append(AxisSplit(axis, tuple(digits[::-1])))
    return tuple(out)
