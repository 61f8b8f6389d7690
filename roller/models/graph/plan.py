"""A plan: a program whose values have places, ready to be run any number of times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from roller.core.display import one_line
from roller.errors import counted
from roller.models.graph.steps import Program

#: Where values may live.
INPUT, OUTPUT, ARENA, CONSTANT = "input", "output", "arena", "constant"


@dataclass(frozen=True)
class Place:
    """Where a value lives.

    Parameters
    ----------
    space
        ``"input"`` and ``"output"``: the array the caller passes or gets, number ``index``; ``"arena"``: the call's own
        memory; ``"constant"``: the array ``name`` of the program.
    index
        Number of the input or output.
    offset_bytes
        First byte within that array.
    name
        Of the constant.
    """

    space: str
    index: int = 0
    offset_bytes: int = 0
    name: str = ""


@dataclass(frozen=True)
class Plan:
    """Everything about running a model but the kernels themselves.

    Parameters
    ----------
    program
        The steps as they run: joins that cost nothing have become views, the others copies.
    places
        Where each value lives.
    arena_bytes
        Memory of one call beside its inputs and outputs.
    predicted_s
        Predicted seconds by kernel key; empty where nothing was predicted.
    """

    program: Program
    places: Mapping[str, Place] = field(default_factory=dict)
    arena_bytes: int = 0
    predicted_s: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Model, steps and memory on one line."""
        steps = counted(len(self.program.steps), "step")
        return one_line("Plan", f"{self.program.name or 'model'}: {steps}", f"{self.arena_bytes:,} bytes of its own")
