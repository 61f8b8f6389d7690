"""Trace options that give a step the memory it has with a change."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class MemoryChange:
    """Trace options that give a step the memory it has with a change; by default all tensors stay as they are.

    Parameters
    ----------
    amp, checkpoint, device
        As in :meth:`~roller.insight.traced_step.TracedStep.at`; ``None`` keeps those of the step. Modules of
        ``checkpoint`` are recomputed in addition to those of the step.
    batch_factor
        Factor on the samples of a batch.
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
        """Return both changes as one; where both set an option, the later change wins."""
        later = {name: value for name, value in vars(other).items() if value is not None}
        return replace(self, **{**later, "batch_factor": self.batch_factor * other.batch_factor})
