"""The base class for what-ifs, which checks parameters, names the change and lists its assumptions."""

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
from roller.insight.whatif.memory_change_trace_options import MemoryChange
from roller.insight.whatif.primitives import annotate

#: Origin of factors: the device's model if shapes are known, or published values.
Pricing = Literal["model", "factor"]


def allowed_values_metadata(*choices: str) -> Mapping[str, Any]:
    """Return the metadata for a field with a fixed set of values."""
    return {"choices": choices}


def minimum_value_metadata(number: float) -> Mapping[str, Any]:
    """Return the metadata for a field with a minimum; without it, numbers must be above 0."""
    return {"least": number}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


#: Exclusive upper bound of integer parameters.
_MOST = 10**12
#: Maps an annotation to the check of a value and to the name of the type in messages.
_PLAIN: Mapping[Any, tuple[Callable[[Any], bool], str]] = {
    float: (_is_number, "a number"), int: (lambda v: _is_number(v) and isinstance(v, int), "a whole number"),
    bool: (lambda v: isinstance(v, bool), "yes or no"), str: (lambda v: isinstance(v, str), "a text"),
    type(None): (lambda v: v is None, "nothing"),
}  # fmt: skip


@cache
def type_hints_of(kind: type) -> Mapping[str, Any]:
    """Return the annotations of a what-if; empty if a custom what-if's annotations cannot be resolved."""
    try:
        return get_type_hints(kind)
    except NameError:
        return {}


def plain_types_in_annotation(hint: Any) -> frozenset[Any]:
    """Return the plain types in an annotation."""
    if hint in _PLAIN:
        return frozenset({hint})
    return frozenset().union(*(plain_types_in_annotation(one) for one in get_args(hint)))


def _matches_type(value: Any, hint: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if hint in _PLAIN:
        return _PLAIN[hint][0](value)
    if origin in (Union, UnionType):
        return any(_matches_type(value, one) for one in inner)
    if origin is tuple:
        return isinstance(value, (tuple, list)) and all(_matches_type(v, inner[0]) for v in value)
    if origin is abc.Mapping:
        return isinstance(value, Mapping) and all(
            _matches_type(k, inner[0]) and _matches_type(v, inner[1]) for k, v in value.items()
        )
    return origin is not Literal or value in inner


def _type_in_words(hint: Any) -> str:
    origin, inner = get_origin(hint), get_args(hint)
    if hint in _PLAIN:
        return _PLAIN[hint][1]
    if origin in (Union, UnionType):
        return " or ".join(_type_in_words(one) for one in inner if one is not type(None))
    if origin is tuple:
        return f"several, each {_type_in_words(inner[0])}"
    if origin is abc.Mapping:
        return f"{_type_in_words(inner[1])} by {_type_in_words(inner[0])}"
    return ", ".join(map(str, inner)) or str(hint)


def _flatten_values(value: Any) -> Sequence[Any]:
    if isinstance(value, Mapping):
        return tuple(value.values())
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


@dataclass(frozen=True)
class WhatIf(ABC):
    """A change to a graph; its fields are its parameters, and numbers must be above 0.

    A custom what-if is a frozen dataclass with a method ``change``, or any function of a graph.
    """

    #: Assumptions that a prediction lists.
    assumptions: ClassVar[tuple[str, ...]] = ()
    #: Whether the change treats each task alone, and so applies to the joint graph of several ranks.
    of_several_ranks: ClassVar[bool] = False
    #: Pairs of a parameter and the field of :class:`MemoryChange` that it sets. Empty if all tensors on the device stay
    #: unchanged, ``None`` if the effect on memory is not modelled.
    traced_with: ClassVar[tuple[tuple[str, str], ...] | None] = None

    def __post_init__(self) -> None:
        hints = type_hints_of(type(self))
        for one in fields(self):
            self._check_parameter(one.name, getattr(self, one.name), hints.get(one.name, Any), one.metadata)

    def _check_parameter(self, name: str, value: Any, hint: Any, metadata: Mapping[str, Any]) -> None:
        where = f"{type(self).__name__}: {name}"
        choices = metadata.get("choices")
        if choices is not None and value not in choices:
            raise RollerError(f"{where}: expected one of {', '.join(choices)}, got {shown(value)}. Choose one of them.")
        if not _matches_type(value, hint):
            raise RollerError(f"{where}: expected {_type_in_words(hint)}, got {shown(value)}. Correct it.")
        least = metadata.get("least")
        most = (
            _MOST
            if int in plain_types_in_annotation(hint) and float not in plain_types_in_annotation(hint)
            else float("inf")
        )
        for number in filter(_is_number, _flatten_values(value)):
            low = number >= least if least is not None else number > 0
            if not (low and number < most):
                said = ("above 0" if least is None else f"of at least {least:g}") + (
                    "" if most == float("inf") else f" and below {_MOST:.0e}")  # fmt: skip
                raise RollerError(f"{where}: expected a number {said}, got {shown(number)}. Correct it.")

    def __str__(self) -> str:
        own = [
            f"{one.name}={getattr(self, one.name)}" for one in fields(self)
            if one.default is MISSING or getattr(self, one.name) != one.default
        ]  # fmt: skip
        return f"{type(self).__name__}({', '.join(own)})"

    def __call__(self, graph: StepGraph, /) -> StepGraph:
        """Return the changed graph, named after the change; raise ``RollerError`` if it does not apply."""
        ranks = len({t.lane.rank for t in graph.tasks})
        if ranks > 1 and not self.of_several_ranks:
            raise RollerError(
                f"{graph.name}: {type(self).__name__}: expected the profile of one rank, got {ranks} of a job: the "
                f"change is made to the steps of one. Ask it of one rank's profile."
            )
        reason = self.in_place(graph)
        if reason:
            said = f"{self} is in place already: {reason}"
            return replace(annotate(graph, f"{graph.name} + {self}"), in_place=(*graph.in_place, said))
        return annotate(self.change(graph), f"{graph.name} + {self}", *self.assumptions)

    def in_place(self, graph: StepGraph) -> str:
        """Return the reason if the profile already has the change; otherwise ``""``."""
        return ""

    def memory_change(self) -> MemoryChange | None:
        """Return the trace options that reproduce the change's memory; ``None`` if its memory is not modelled."""
        if self.traced_with is None:
            return None
        return MemoryChange(**{option: getattr(self, own) for own, option in self.traced_with})

    @abstractmethod
    def change(self, graph: StepGraph) -> StepGraph:
        """Return the changed graph."""
