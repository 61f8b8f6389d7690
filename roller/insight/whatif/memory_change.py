"""Options under which a step is traced that has the memory of a change."""

from __future__ import annotations

from dataclasses import dataclass, replace


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
