"""What every what-if shares: it checks its numbers, names itself, and says what it takes for granted."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Literal

from roller.errors import RollerError, shown
from roller.insight.whatif.graph import Graph
from roller.insight.whatif.primitives import named

#: Where factors come from: the device's model where shapes are known, or the numbers of the publications.
Pricing = Literal["model", "factor"]


def one_of(*choices: str) -> Mapping[str, Any]:
    """Return what says of a field that it is one of some words."""
    return {"choices": choices}


def at_least(number: float) -> Mapping[str, Any]:
    """Return what says of a field how small it may be; others are above 0."""
    return {"least": number}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@dataclass(frozen=True)
class WhatIf(ABC):
    """A change of a graph. Its fields are its parameters, and numbers among them are above 0.

    A what-if of one's own is a frozen dataclass with a method ``change``; any function of a graph will do as well.
    """

    #: Sentences of an answer.
    assumptions: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        """Refuse values of other types, and numbers out of range."""
        for one in fields(self):
            self._check(one.name, getattr(self, one.name), one.default, one.metadata)

    def _check(self, name: str, value: Any, default: Any, metadata: Mapping[str, Any]) -> None:
        where = f"{type(self).__name__}: {name}"
        choices = metadata.get("choices")
        if choices is not None and value not in choices:
            raise RollerError(f"{where}: expected one of {', '.join(choices)}, got {shown(value)}. Choose one of them.")
        several = value if isinstance(value, (tuple, list)) else (value,)
        for number in several:
            if not _is_number(number):
                if _is_number(default):
                    raise RollerError(f"{where}: expected a number, got {shown(number)}. Mend it.")
                continue
            least = metadata.get("least")
            if not (math.isfinite(number) and (number >= least if least is not None else number > 0)):
                said = "above 0" if least is None else f"of at least {least:g}"
                raise RollerError(f"{where}: expected a number {said}, got {shown(number)}. Mend it.")
            if isinstance(default, int) and not isinstance(default, bool) and number != int(number):
                raise RollerError(f"{where}: expected a whole number, got {shown(number)}. Round it.")

    def __str__(self) -> str:
        """Return its name with the parameters that are not as by default."""
        own = [
            f"{one.name}={getattr(self, one.name)}" for one in fields(self)
            if one.default is MISSING or getattr(self, one.name) != one.default
        ]  # fmt: skip
        return f"{type(self).__name__}({', '.join(own)})"

    def __call__(self, graph: Graph, /) -> Graph:
        """Return the changed graph, which names the change."""
        return named(self.change(graph), f"{graph.name} + {self}", *self.assumptions)

    @abstractmethod
    def change(self, graph: Graph) -> Graph:
        """Return the changed graph."""
