"""What the server asks of a process that profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

#: What a request may ask for, in the order of the answers.
STAGES = ("profile", "difference", "devices", "curve", "fit", "hints", "whatif")


@dataclass(frozen=True)
class StepOptions:
    """How a step is profiled.

    Parameters
    ----------
    devices
        Name and number of each: the first is profiled, the others are forecast beside it.
    batch
        Samples on each device; ``None`` for the entry file's own.
    amp
        ``"fp32"``, ``"fp16"`` or ``"bf16"``.
    checkpoint
        Whether repeated blocks are recomputed in backward.
    changes
        What-ifs that are applied to the step, as ``roller whatif --do`` takes them.
    """

    devices: tuple[tuple[str, int], ...] = (("a100", 1),)
    batch: int | None = None
    amp: str = "fp32"
    checkpoint: bool = False
    changes: tuple[str, ...] = ()

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> StepOptions:
        """Return the options of :meth:`to_data`."""
        return cls(
            tuple((str(name), int(count)) for name, count in data["devices"]), data["batch"], data["amp"],
            bool(data["checkpoint"]), tuple(map(str, data["changes"])),
        )  # fmt: skip

    def to_data(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return asdict(self)


@dataclass(frozen=True)
class ProfileRequest:
    """A request.

    Parameters
    ----------
    id
        Number that the answers name.
    entry, folder
        Paths of the entry file and of its project.
    options
        How the step is profiled.
    wanted
        Stages to answer, of :data:`STAGES`.
    before
        Profile as JSON data that the step is compared with, for ``"difference"``.
    moved
        ``"file:line"`` there -> here, of lines that an edit moved.
    arguments
        Of a training script without providers.
    specs
        Name of a device -> file of its specification, of those that are not shipped.
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
        """Return the request of :meth:`to_data`."""
        return cls(**{**data, "options": StepOptions.from_data(data["options"])})

    def to_data(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}  # the profile in it is not copied
        return {**found, "options": self.options.to_data()}
