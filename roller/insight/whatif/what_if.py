"""What every what-if shares: it checks its numbers, names itself, and says what it takes for granted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from types import UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from roller.errors import RollerError, shown
from roller.insight.step.graph import StepGraph
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


#: Whole numbers are below this one.
_MOST = 10**12
#: What a value of an annotation is, and in words.
_PLAIN: Mapping[Any, tuple[Callable[[Any], bool], str]] = {
    float: (_is_number, "a number"), int: (lambda v: _is_number(v) and isinstance(v, int), "a whole number"),
    bool: (lambda v: isinstance(v, bool), "yes or no"), str: (lambda v: isinstance(v, str), "a text"),
    type(None): (lambda v: v is None, "nothing"),
}  # fmt: skip


@cache
def hints_of(kind: type) -> Mapping[str, Any]:
    """Return the annotations of a what-if; none where a user's own cannot be resolved."""
    try:
        return get_type_hints(kind)
    except NameError:
        return {}


def plain_types(hint: Any) -> frozenset[Any]:
    """Return the plain types that an annotation is made of."""
    if hint in _PLAIN:
        return frozenset({hint})
    return frozenset().union(*(plain_types(one) for one in get_args(hint)))


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is what an annotation says, as far as it is one that the what-ifs have."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint in _PLAIN:
        return _PLAIN[hint][0](value)
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is tuple:
        return isinstance(value, (tuple, list)) and all(_fits(v, inner[0]) for v in value)
    if origin is abc.Mapping:
        return isinstance(value, Mapping) and all(_fits(k, inner[0]) and _fits(v, inner[1]) for k, v in value.items())
    return origin is not Literal or value in inner


def _said(hint: Any) -> str:
    """Return an annotation in words."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint in _PLAIN:
        return _PLAIN[hint][1]
    if origin in (Union, UnionType):
        return " or ".join(_said(one) for one in inner if one is not type(None))
    if origin is tuple:
        return f"several, each {_said(inner[0])}"
    if origin is abc.Mapping:
        return f"{_said(inner[1])} by {_said(inner[0])}"
    return ", ".join(map(str, inner)) or str(hint)


def _values(value: Any) -> Sequence[Any]:
    if isinstance(value, Mapping):
        return tuple(value.values())
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


@dataclass(frozen=True)
class WhatIf(ABC):
    """A change of a graph. Its fields are its parameters, and numbers among them are above 0.

    A what-if of one's own is a frozen dataclass with a method ``change``; any function of a graph will do as well.
    """

    #: Sentences of an answer.
    assumptions: ClassVar[tuple[str, ...]] = ()
    #: Whether it looks at each task alone, and so can be asked of the joint graph of several ranks.
    of_several_ranks: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse values of other types, and numbers out of range."""
        hints = hints_of(type(self))
        for one in fields(self):
            self._check(one.name, getattr(self, one.name), hints.get(one.name, Any), one.metadata)

    def _check(self, name: str, value: Any, hint: Any, metadata: Mapping[str, Any]) -> None:
        where = f"{type(self).__name__}: {name}"
        choices = metadata.get("choices")
        if choices is not None and value not in choices:
            raise RollerError(f"{where}: expected one of {', '.join(choices)}, got {shown(value)}. Choose one of them.")
        if not _fits(value, hint):
            raise RollerError(f"{where}: expected {_said(hint)}, got {shown(value)}. Mend it.")
        least = metadata.get("least")
        most = _MOST if int in plain_types(hint) and float not in plain_types(hint) else float("inf")
        for number in filter(_is_number, _values(value)):
            low = number >= least if least is not None else number > 0
            if not (low and number < most):
                said = ("above 0" if least is None else f"of at least {least:g}") + (
                    "" if most == float("inf") else f" and below {_MOST:.0e}")  # fmt: skip
                raise RollerError(f"{where}: expected a number {said}, got {shown(number)}. Mend it.")

    def __str__(self) -> str:
        """Return its name with the parameters that are not as by default."""
        own = [
            f"{one.name}={getattr(self, one.name)}" for one in fields(self)
            if one.default is MISSING or getattr(self, one.name) != one.default
        ]  # fmt: skip
        return f"{type(self).__name__}({', '.join(own)})"

    def __call__(self, graph: StepGraph, /) -> StepGraph:
        """Return the changed graph, which names the change.

        Raises
        ------
        RollerError
            The graph is that of several ranks, and the change looks at the steps of one; or as the change says.
        """
        ranks = len({t.lane.rank for t in graph.tasks})
        if ranks > 1 and not self.of_several_ranks:
            raise RollerError(
                f"{graph.name}: {type(self).__name__}: expected the profile of one rank, got {ranks} of a job: the "
                f"change is made to the steps of one. Ask it of one rank's profile."
            )
        reason = self.in_place(graph)
        if reason:
            said = f"{self} is in place already: {reason}"
            return replace(named(graph, f"{graph.name} + {self}"), in_place=(*graph.in_place, said))
        return named(self.change(graph), f"{graph.name} + {self}", *self.assumptions)

    def in_place(self, graph: StepGraph) -> str:
        """Return why the change is in place already, and so changes nothing; ``""`` where it is not."""
        return ""

    @abstractmethod
    def change(self, graph: StepGraph) -> StepGraph:
        """Return the changed graph."""
