"""Terms: a predicted time as a tree of the model's values, each with the rule that computed it from its parts.

Applying the rules to the leaves reproduces the predicted seconds exactly (in double precision, with parts taken from
left to right).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Description of each rule. Leaves are ``given``: counted from the program, or a parameter of the device.
RULES: Mapping[str, str] = {
    "given": "counted from the program, or a number of the device",
    "sum": "parts added",
    "difference": "the first less the second",
    "product": "parts multiplied",
    "quotient": "the first divided by the others",
    "largest": "the largest part",
    "smallest": "the smallest part",
    "ceiling": "the part rounded up",
    "knee": "(a ** p + b ** p) ** (1 / p) of parts a, b, p",
    "saturating": "((a / b) ** -p + 1) ** (-1 / p) * b of parts a, b, p: a where it is far below b, b where far above",
    "alternating": "phases (all parts but the first) that as many customers as the first part says go through in turn: "
    "mean value analysis of a closed queueing network (roller.perf.phase_overlap.time_of_alternating_phases)",
    "overlapped": "two phases (a, b) of as many customers as the third part says: longer * (1 - r ** (n + 1)) / "
    "(1 - r ** n), r shorter over longer (roller.perf.phase_overlap.time_of_two_overlapping_phases)",
}


@dataclass(frozen=True)
class Term:
    """One value of a prediction.

    Parameters
    ----------
    name
        Description in words.
    value, unit
        The value in full precision; its unit: ``"s"``, ``"bytes"``, ``"bytes/s"``, ``"cycles"``, or ``""`` for counts.
    rule
        Key of :data:`RULES`.
    parts
        Operands of the rule, in order; empty for a ``given`` value.
    layer
        Memory layer to which the value refers, or ``""``.
    """

    name: str
    value: float
    unit: str
    rule: str = "given"
    parts: tuple[Term, ...] = ()
    layer: str = ""

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Term]]:
        """Yield the term and all terms below it with their depths, parents first."""
        yield depth, self
        for part in self.parts:
            yield from part.walk(depth + 1)

    def find(self, name: str) -> Term | None:
        """Return the first term with this name, parents first, or ``None`` if there is none."""
        return next((t for _, t in self.walk() if t.name == name), None)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data: numbers in full precision, parts nested."""
        data: dict[str, Any] = {"name": self.name, "value": self.value, "unit": self.unit, "rule": self.rule}
        if self.layer:
            data["layer"] = self.layer
        if self.parts:
            data["parts"] = [p.to_dict() for p in self.parts]
        return data


class TermBuilder:
    """Builds the terms of one program from a batch's arrays, for one wave if values differ between waves."""

    def __init__(self, row: int = 0, wave: int | None = None) -> None:
        self.row, self.wave = row, wave

    def number(self, value: Any) -> float:
        """Return this program's value from an array of shape ``()``, ``(N,)`` or ``(waves, N)``."""
        array = np.asarray(value)
        if array.ndim == 2:
            return float(array[self.wave if self.wave is not None else 0, self.row])
        return float(array[self.row] if array.ndim else array)

    def given(self, name: str, value: Any, unit: str = "", layer: str = "") -> Term:
        """Return a leaf term."""
        return Term(name, self.number(value), unit, layer=layer)

    def made(self, rule: str, name: str, value: Any, unit: str, *parts: Term, layer: str = "") -> Term:
        """Return a term whose ``value`` the model computed from ``parts`` by ``rule``."""
        return Term(name, self.number(value), unit, rule, parts, layer)
