"""Compares two predicted times term by term and finds the terms that dominate one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from roller.perf import Term

#: Rules whose result is close to the time of their slowest part.
_SLOWEST = ("largest", "alternating", "overlapped", "knee")
#: Relative difference up to which two values count as equal.
_ALIKE = 1e-12


@dataclass(frozen=True)
class TermDifference:
    """Values of one term in two programs: ``own`` in the program in question, and ``other`` in the reference."""

    name: str
    own: float
    other: float
    unit: str

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {"name": self.name, "own": self.own, "other": self.other, "unit": self.unit}


def dominant_differences(own: Term, other: Term) -> tuple[TermDifference, ...]:
    """Return the terms that cause most of the difference, from the total down to an input value."""
    # The chain ends where the rules differ: programs of other structures have other parts.
    road = [TermDifference(own.name, own.value, other.value, own.unit)]
    while own.rule == other.rule and own.parts:
        pairs = _pairs_of_matching_parts(own, other)
        if not pairs:
            break
        own, other = max(pairs, key=lambda p: _part_contribution(own, *p))
        other = other.find(own.name) or other  # programs of another kind have this term further down
        if math.isclose(own.value, other.value, rel_tol=_ALIKE):
            break
        road.append(TermDifference(own.name, own.value, other.value, own.unit))
    return tuple(road)


def _pairs_of_matching_parts(own: Term, other: Term) -> list[tuple[Term, Term]]:
    """Return pairs of the parts to compare; in sums, a part without a match is paired with zero."""
    mine, its = {p.name: p for p in own.parts}, {p.name: p for p in other.parts}
    if own.rule in _SLOWEST:  # the bottleneck of the slower program decides
        slowest = max((p for p in own.parts if p.unit == own.unit), key=lambda p: p.value, default=None)
        names = [slowest.name] if slowest is not None and slowest.name in its else []
        names = names or [n for n in mine if n in its]
        return [(mine[n], its[n]) for n in names]
    pairs = [(p, its[n]) for n, p in mine.items() if n in its]
    if own.rule == "sum":
        alone, others = ([p for n, p in a.items() if n not in b] for a, b in ((mine, its), (its, mine)))
        if alone and others:  # the only wave of one program, the full waves of another
            first, second = (max(x, key=lambda p: p.value) for x in (alone, others))
            pairs.append((first, second))
            alone, others = [p for p in alone if p is not first], [p for p in others if p is not second]
        pairs += [(p, Term(p.name, 0.0, p.unit)) for p in alone] + [(Term(p.name, 0.0, p.unit), p) for p in others]
    return pairs


def _part_contribution(parent: Term, own: Term, other: Term) -> float:
    """Return how much a part contributes to the difference of its parent term."""
    if parent.rule in ("product", "quotient"):
        if own.value <= 0 or other.value <= 0:
            return abs(own.value - other.value)
        return abs(math.log(own.value / other.value))
    return abs(own.value - other.value)


def dominant_terms(term: Term) -> tuple[Term, ...]:
    """Return the terms that dominate a time, from the total down to an input value."""
    road = [term]
    while term.parts:
        same = [p for p in term.parts if p.unit in (term.unit, "cycles")] or [p for p in term.parts if p.parts]
        if not same:
            break
        term = min(same, key=lambda p: p.value) if term.rule == "smallest" else max(same, key=lambda p: p.value)
        road.append(term)
    return tuple(road)


def difference_sentence(road: Sequence[TermDifference]) -> str:
    """Format the differences as a chain, from the total to its cause.

    >>> difference_sentence([TermDifference("predicted time", 2e-5, 1e-5, "s"), TermDifference("reduction steps", 128,
    ...     64, "")])
    'predicted time 20 us against 10 us <- reduction steps 128 against 64'
    """
    terms_with_distinct_values = [
        d for n, d in enumerate(road) if n in (0, len(road) - 1) or _term_values_differ(road[n - 1], d)
    ]
    return " <- ".join(
        f"{d.name} {format_quantity(d.own, d.unit)} against {format_quantity(d.other, d.unit)}"
        for d in terms_with_distinct_values
    )


def _term_values_differ(above: TermDifference, below: TermDifference) -> bool:
    return not (math.isclose(above.own, below.own) and math.isclose(above.other, below.other))


def terms_with_distinct_values(road: Sequence[Term]) -> tuple[Term, ...]:
    """Return the terms whose values differ from the previous term's value, and the last term."""
    return tuple(
        t for n, t in enumerate(road) if n in (0, len(road) - 1) or not math.isclose(road[n - 1].value, t.value)
    )


def format_quantity(value: float, unit: str) -> str:
    """Format a value with a readable unit.

    >>> (format_quantity(1.5e-6, "s"), format_quantity(3e9, "bytes/s"), format_quantity(3.0, ""),
    ...  format_quantity(1234567.0, "bytes"))
    ('1.5 us', '3 GB/s', '3', '1.235 MB')
    """
    if unit == "s":
        for factor, name in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
            if abs(value) * factor >= 1:
                return f"{value * factor:.4g} {name}"
        return f"{value * 1e9:.4g} ns" if value else "0 s"
    if unit in ("bytes", "bytes/s", "Hz", "flops", "flops/s"):
        name = {"bytes": "B", "bytes/s": "B/s", "flops": "FLOP", "flops/s": "FLOP/s"}.get(unit, unit)
        for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= factor:
                return f"{value / factor:.4g} {prefix}{name}"
        return f"{value:.4g} {name}"
    return f"{value:.4g} {unit}".rstrip()
