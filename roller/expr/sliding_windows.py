"""Sliding windows: reduction axes that move along a dimension together with a spatial axis."""

from __future__ import annotations

import math
from collections.abc import Mapping

from roller.expr.scalar import Index, Term


def sliding_window_axes(index: Index, spatial: Mapping[str, int], reduced: Mapping[str, int]) -> tuple[str, ...]:
    """Return the window axes of a dimension, and the spatial axes along which they slide.

    Examples
    --------
    A window of three slides. A window of two with stride two does not, nor do channels in blocks or groups:

    >>> of = lambda **coefs: Index(tuple(Term(a, c) for a, c in coefs.items()))
    >>> sliding_window_axes(of(out=1, k=1), {"out": 8}, {"k": 3})
    ('out', 'k')
    >>> sliding_window_axes(of(out=2, k=1), {"out": 8}, {"k": 2})
    ()
    >>> sliding_window_axes(of(block=16, inner=1), {}, {"block": 4, "inner": 16})
    ()
    >>> sliding_window_axes(of(group=16, c=1), {"group": 4}, {"c": 16})
    ()
    """
    if len(index.terms) < 2 or not index.is_affine:
        return ()
    # The terms of ``sum(coef * axis)`` fall into digits: sorted by coefficient, a digit ends where the greatest common
    # divisor of all further coefficients exceeds ``sum(|coef| * (extent - 1))`` of the terms so far. Two points share a
    # position only if they share every digit, so a reduction axis slides only with spatial axes of its own digit.
    extents = {**spatial, **reduced}
    found: list[str] = []
    for digit in _group_terms_by_digit(index, extents):
        over = [t for t in digit if t.axis in spatial]
        taps = [t for t in digit if t.axis in reduced]
        if over and taps and (len(digit) > 2 or _windows_overlap(over[0], taps[0], extents)):
            found += [t.axis for t in digit]
    return tuple(a for a in index.axes if a in found)


def _group_terms_by_digit(index: Index, extents: Mapping[str, int]) -> list[list[Term]]:
    """Return the terms of non-unit axes grouped by digit, least significant first."""
    coefs: dict[str, int] = {}
    for t in index.terms:
        coefs[t.axis] = coefs.get(t.axis, 0) + t.coef
    terms = sorted((Term(a, c) for a, c in coefs.items() if c and extents[a] > 1), key=lambda t: abs(t.coef))
    digits: list[list[Term]] = []
    reach = 0
    for n, t in enumerate(terms):
        if not digits or math.gcd(*(x.coef for x in terms[n:])) > reach:
            digits.append([])
        digits[-1].append(t)
        reach += abs(t.coef) * (extents[t.axis] - 1)
    return digits


def _windows_overlap(out: Term, tap: Term, extents: Mapping[str, int]) -> bool:
    """Return whether two different points of both axes share a position, that is, whether both reach ``lcm(s, d)``."""
    # ``s * out + d * k`` repeats if ``out`` has more than ``lcm(s, d) / s`` points and ``k`` more than ``lcm(s, d) /
    # d``.
    step = math.lcm(out.coef, tap.coef)
    return step // abs(out.coef) < extents[out.axis] and step // abs(tap.coef) < extents[tap.axis]
