"""What changes do to the memory of a step: by tracing it again with them, or nothing where no tensor changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from roller.core.display import bytes_text
from roller.errors import RollerError
from roller.insight.memory.simulate import Memory
from roller.insight.step.graph import StepGraph
from roller.insight.whatif.memory_change import MemoryChange
from roller.insight.whatif.what_if import WhatIf

#: Words where no number is known.
NOT_MODELLED = "not modelled"
#: Returns the memory of a step with a change.
MemoryOf = Callable[[MemoryChange], Memory]


class MemoryEffect(NamedTuple):
    """Change of the memory of the process at its peak.

    Parameters
    ----------
    delta_bytes
        After the change, minus before it; ``None`` where it is not known.
    reason
        Why it is not known; ``""`` where it is.
    """

    delta_bytes: int | None
    reason: str = ""

    @property
    def in_short(self) -> str:
        """What stands in place of a number: ``"not modelled"``, or whether the step fits; ``""`` if there is one."""
        return NOT_MODELLED if self.reason.startswith(NOT_MODELLED) else self.reason.partition(",")[0]

    @property
    def says_more(self) -> bool:
        """Whether there is a reason beyond that it is not modelled."""
        return self.reason not in ("", NOT_MODELLED)


#: Of a change whose memory nothing tells.
UNKNOWN = MemoryEffect(None, NOT_MODELLED)


def memory_effect(graph: StepGraph, changes: Sequence[WhatIf], memory_of: MemoryOf | None) -> MemoryEffect:
    """Return what changes do to the memory of a step.

    Parameters
    ----------
    graph
        Graph of the step, which tells the changes that are in place already.
    changes
        Those that apply to it, one after the other.
    memory_of
        Traces the step again; ``None`` where that is not possible.
    """
    whole = MemoryChange()
    for change in changes:
        part = MemoryChange() if change.in_place(graph) else change.memory_change()
        if part is None:
            return UNKNOWN
        whole = whole.followed_by(part)
    if whole.keeps_tensors:
        return MemoryEffect(0)
    if memory_of is None:
        return MemoryEffect(None, f"{NOT_MODELLED}: the step cannot be traced again")
    try:
        before, after = memory_of(MemoryChange()), memory_of(whole)
    except RollerError as error:
        return MemoryEffect(None, f"{NOT_MODELLED}: {error}")
    if before.fits and after.fits:
        return MemoryEffect(after.total_bytes - before.total_bytes)
    if after.fits:
        return MemoryEffect(None, f"then fits, in {bytes_text(after.total_bytes)}")
    return MemoryEffect(None, f"{'still' if not before.fits else 'then'} does not fit")
