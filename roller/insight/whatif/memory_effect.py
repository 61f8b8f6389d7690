"""Effect of changes on the memory of a step: zero if no tensor changes, otherwise from a trace with the changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from roller.errors import RollerError
from roller.insight.memory.simulate import Memory
from roller.insight.step.graph import StepGraph
from roller.insight.trace.options import FixedOptionError
from roller.insight.whatif.memory_change_trace_options import MemoryChange
from roller.insight.whatif.what_if import WhatIf
from roller_runtime.core.display import bytes_text

#: Reason if the effect on memory is not modelled.
NOT_MODELLED = "not modelled"
#: Returns the memory of a step with a change.
MemoryOf = Callable[[MemoryChange], Memory]


class MemoryEffect(NamedTuple):
    """Change in the process's peak memory."""

    delta_bytes: int | None  # memory after the change minus memory before it; ``None`` if unknown
    reason: str = ""  # why ``delta_bytes`` is unknown; ``""`` if it is known

    @property
    def in_short(self) -> str:
        """Short text if the change is unknown: ``"not modelled"``, or whether the step fits; otherwise ``""``."""
        return NOT_MODELLED if self.reason.startswith(NOT_MODELLED) else self.reason.partition(",")[0]

    @property
    def has_specific_reason(self) -> bool:
        """Whether ``reason`` says more than that the effect is not modelled."""
        return self.reason not in ("", NOT_MODELLED)


#: Effect of a change that is not modelled.
UNKNOWN = MemoryEffect(None, NOT_MODELLED)


def memory_effect(graph: StepGraph, changes: Sequence[WhatIf], memory_of: MemoryOf | None) -> MemoryEffect:
    """Return the effect of changes on the memory of a step."""
    whole = MemoryChange()
    for change in changes:
        part = MemoryChange() if change.in_place(graph) else change.memory_change()
        if part is None:
            return UNKNOWN
        whole = whole.combine_with(part)
    if whole.keeps_tensors:
        return MemoryEffect(0)
    if memory_of is None:
        return MemoryEffect(None, f"{NOT_MODELLED}: the step cannot be traced again")
    try:
        before, after = memory_of(MemoryChange()), memory_of(whole)
    except FixedOptionError as error:
        return MemoryEffect(None, f"{NOT_MODELLED}: {error.in_short}.")
    except RollerError as error:
        return MemoryEffect(None, f"{NOT_MODELLED}: {error}")
    if before.fits and after.fits:
        return MemoryEffect(after.total_bytes - before.total_bytes)
    if after.fits:
        return MemoryEffect(None, f"fits with the change, in {bytes_text(after.total_bytes)}")
    return MemoryEffect(None, "does not fit with the change" if before.fits else "still does not fit")
