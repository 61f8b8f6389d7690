"""What a change does to the memory of a step: by tracing the step again with it, or nothing where no tensor changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from roller.errors import RollerError
from roller.insight.memory.simulate import Memory
from roller.insight.step.graph import StepGraph

if TYPE_CHECKING:
    from roller.insight.whatif.what_if import WhatIf

#: Words where no number is known.
NOT_MODELLED = "not modelled"


@dataclass(frozen=True)
class MemoryChange:
    """Options under which a step is traced that has the memory of a change; by default its tensors stay as they are.

    Parameters
    ----------
    amp, checkpoint, device
        As in :meth:`~roller.insight.traced_step.TracedStep.at`; ``None`` keeps those of the step.
    batch_factor
        Times as many samples.
    devices
        Devices that train together; ``None`` keeps their number.
    """

    amp: str | None = None
    checkpoint: tuple[str, ...] | None = None
    device: str | None = None
    batch_factor: float = 1.0
    devices: int | None = None

    @property
    def keeps_tensors(self) -> bool:
        """Whether all tensors of the step stay as they are."""
        return self == MemoryChange()

    def followed_by(self, other: MemoryChange) -> MemoryChange:
        """Return both changes as one; of what both set, the later one holds."""
        later = {name: value for name, value in vars(other).items() if value is not None}
        return replace(self, **{**later, "batch_factor": self.batch_factor * other.batch_factor})


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
        return MemoryEffect(None, f"the step then fits, in {after.total_bytes} bytes")
    return MemoryEffect(None, f"the step {'still' if not before.fits else 'then'} does not fit")
