"""Options of a trace: batch, device, precision and checkpointing; also the compute capability of a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from roller.errors import ModelError, did_you_mean, shown
from roller.hardware import DeviceSpec, load_spec
from roller.insight.trace.torch_release import TorchRelease

#: Maps the accepted names of precisions to those of automatic mixed precision; ``None`` for full precision.
PRECISIONS = {
    "fp32": None, "float32": None, "none": None, "fp16": "fp16", "float16": "fp16", "bf16": "bf16", "bfloat16": "bf16"
}  # fmt: skip
#: Placeholder for the compute capability of a CPU.
HOST = (0, 0)


class DeviceRules(NamedTuple):
    """The properties of a device that a trace needs, for a process without its specification."""

    name: str
    capability: tuple[int, int]


class FixedOptionError(ModelError):
    """A step sets its own value for an option.

    Parameters
    ----------
    message
        Why the option cannot be changed, and a remedy.
    in_short
        Which option the step itself chooses, for a note next to a change.
    """

    def __init__(self, message: str, in_short: str) -> None:
        super().__init__(message)
        self.in_short = in_short

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the error with all its constructor arguments."""
        return type(self), (*self.args, self.in_short)


@dataclass(frozen=True)
class TraceOptions:
    """Options under which a step is traced; ``None`` keeps the first trace's value.

    Parameters
    ----------
    batch
        Samples per step.
    device
        Device whose rules choose kernels.
    amp
        ``"fp32"``, ``"fp16"`` or ``"bf16"``.
    checkpoint
        Modules that are recomputed in the backward pass: ``True`` for the repeated blocks, or path patterns.
    torch_release
        PyTorch release whose rules decide what is saved and allocated, e.g. ``"1.10"``; ``""`` for the newest.
    """

    batch: int | None = None
    device: str | DeviceSpec | DeviceRules | None = None
    amp: str | None = None
    checkpoint: bool | str | Sequence[str] | None = None
    torch_release: str | None = None

    def __post_init__(self) -> None:
        """Check the batch, the precision and the release."""
        TorchRelease.parse(self.torch_release)
        if self.batch is not None and (
            isinstance(self.batch, bool) or not isinstance(self.batch, int) or self.batch < 1
        ):
            raise ModelError(f"trace: batch: expected a whole number of at least 1, got {shown(self.batch)}. Raise it.")
        if self.amp is not None and self.amp not in PRECISIONS:
            raise ModelError(
                f"trace: amp: expected fp32, fp16 or bf16, got {shown(self.amp)}"
                f"{did_you_mean(str(self.amp), PRECISIONS)}. Choose one of them."
            )


def compute_capability_of(device: str | DeviceSpec | DeviceRules | None) -> tuple[int, int]:
    """Return the compute capability of a device: (8, 0) for ``None``, :data:`HOST` for a CPU."""
    if device is None:
        return (8, 0)
    if isinstance(device, DeviceRules):
        return device.capability
    spec = load_spec(device) if isinstance(device, str) else device
    if not spec.traits.discrete:  # the host itself
        return HOST
    arch = str(spec.target.get("arch", spec.kind))
    digits = "".join(c for c in arch.removeprefix("sm_") if c.isdigit())
    if not arch.startswith("sm_") or len(digits) < 2:
        raise ModelError(
            f"trace: device: expected a CUDA device or a CPU, got '{spec.name}', which is {arch}. "
            f"Leave it out to trace for sm_80."
        )
    return int(digits[:-1]), int(digits[-1])
