"""Requests of the server to a profiling process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

#: Stages that a request may ask for, in the order of their answers.
STAGES = ("profile", "difference", "devices", "curve", "fit", "hints", "whatif")


@dataclass(frozen=True)
class StepOptions:
    """Options for profiling a step.

    Parameters
    ----------
    devices
        Name and count of each device; the step is profiled on the first and forecast on the others.
    batch
        Number of samples on each device; ``None`` for the entry file's default.
    amp
        ``"fp32"``, ``"fp16"`` or ``"bf16"``.
    changes
        What-ifs to apply to the step, in the syntax of ``roller whatif --do``.
    """

    devices: tuple[tuple[str, int], ...] = (("a100", 1),)
    batch: int | None = None
    amp: str = "fp32"
    checkpoint: bool = False
    changes: tuple[str, ...] = ()

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> StepOptions:
        """Read the data of :meth:`to_data`."""
        return cls(
            tuple((str(name), int(count)) for name, count in data["devices"]), data["batch"], data["amp"],
            bool(data["checkpoint"]), tuple(map(str, data["changes"])),
        )  # fmt: skip

    def to_data(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return asdict(self)


@dataclass(frozen=True)
class ProfileRequest:
    """Request to profile a step.

    Parameters
    ----------
    id
        Number that the responses repeat.
    wanted
        Requested stages, a subset of :data:`STAGES`.
    before
        Baseline profile as JSON data, for ``"difference"``.
    moved
        Maps ``"file:line"`` in the baseline to ``"file:line"`` in the current files, for lines that edits have moved.
    specs
        Maps device names to specification files, for devices that are not shipped.
    """

    id: int
    entry: str
    folder: str
    options: StepOptions = field(default_factory=StepOptions)
    wanted: Sequence[str] = STAGES
    before: Mapping[str, Any] | None = None
    moved: Mapping[str, str] = field(default_factory=dict)
    arguments: Sequence[str] = ()
    specs: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> ProfileRequest:
        """Read the data of :meth:`to_data`."""
        return cls(**{**data, "options": StepOptions.from_data(data["options"])})

    def to_data(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}  # asdict would copy the profile
        return {**found, "options": self.options.to_data()}
