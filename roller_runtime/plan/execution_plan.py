"""A plan: a program whose values have places in memory, ready to run repeatedly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from roller_runtime.core.display import one_line_repr
from roller_runtime.errors import counted
from roller_runtime.plan.program_steps import Program

#: Memory spaces of values.
INPUT, OUTPUT, ARENA, CONSTANT = "input", "output", "arena", "constant"


@dataclass(frozen=True)
class Place:
    """Location of a value.

    Parameters
    ----------
    space
        ``"input"`` and ``"output"``: the caller's array at ``index``; ``"arena"``: the call's own memory;
        ``"constant"``: the constant ``name`` of the program.
    """

    space: str
    index: int = 0
    offset_bytes: int = 0
    name: str = ""


@dataclass(frozen=True)
class Plan:
    """A runnable program without its kernels.

    Parameters
    ----------
    program
        The steps as they run, without views and joins: those that move data have become copies.
    arena_bytes
        Memory, in bytes, that one call needs in addition to its inputs and outputs.
    predicted_s
        Predicted time of each kernel, in seconds, by key; may be empty.
    """

    program: Program
    places: Mapping[str, Place] = field(default_factory=dict)
    arena_bytes: int = 0
    predicted_s: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return the model, the number of steps and the memory on one line."""
        steps = counted(len(self.program.steps), "step")
        return one_line_repr(
            "Plan", f"{self.program.name or 'model'}: {steps}", f"{self.arena_bytes:,} bytes of its own"
        )
