"""Trace options that reproduce the memory of a changed step."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class MemoryChange:
    """Trace options that reproduce the memory of a changed step; by default, all tensors are kept."""

    # amp, checkpoint, device: as in :meth:`~roller.insight.traced_step.TracedStep.at`; ``None`` keeps the step's
    # values, and ``checkpoint`` adds to them
    amp: str | None = None
    checkpoint: tuple[str, ...] | None = None
    device: str | None = None
    batch_factor: float = 1.0
    devices: int | None = None  # devices that train together; ``None`` keeps their number

    @property
    def keeps_tensors(self) -> bool:
        """Whether all tensors of the step stay unchanged."""
        return self == MemoryChange()

    def combine_with(self, other: MemoryChange) -> MemoryChange:
        """Combine two changes: options of the later one take precedence, and batch factors are multiplied."""
        later = {name: value for name, value in vars(other).items() if value is not None}
        return replace(self, **{**later, "batch_factor": self.batch_factor * other.batch_factor})
