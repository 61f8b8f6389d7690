"""The same step once more: at another batch, by another device's rules, in other precision, with checkpointing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from roller.errors import ModelError, did_you_mean, shown
from roller.hardware import DeviceSpec, load_spec
from roller.insight.forecast import Forecast, forecast
from roller.insight.memory.batches import LargestBatch, max_batch, memory_on
from roller.insight.memory.replay import Memory
from roller.insight.memory.settings import AllocatorSettings
from roller.insight.records import Trace

if TYPE_CHECKING:
    from roller.insight.whatif.graph import Graph

#: Words of automatic mixed precision; ``"fp32"`` is none.
PRECISIONS = {
    "fp32": None, "float32": None, "none": None, "fp16": "fp16", "float16": "fp16", "bf16": "bf16", "bfloat16": "bf16"
}  # fmt: skip
#: In the place of a compute capability: the device is the CPU that also runs PyTorch's own code.
HOST = (0, 0)
#: Traces that are kept; one of a large model holds some ten thousand operators.
_KEPT = 16


@dataclass(frozen=True)
class Change:
    """What a step is traced under; ``None`` leaves each as the step was first described.

    Parameters
    ----------
    batch
        Samples of a step.
    device
        Device whose rules choose kernels.
    amp
        ``"fp32"``, ``"fp16"`` or ``"bf16"``.
    checkpoint
        Modules that run again in backward: ``True`` for the repeated blocks, or patterns of paths.
    """

    batch: int | None = None
    device: str | DeviceSpec | None = None
    amp: str | None = None
    checkpoint: bool | str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Refuse what no step can have."""
        if self.batch is not None and (
            isinstance(self.batch, bool) or not isinstance(self.batch, int) or self.batch < 1
        ):
            raise ModelError(f"trace: batch: expected a whole number of at least 1, got {shown(self.batch)}. Raise it.")
        if self.amp is not None and self.amp not in PRECISIONS:
            raise ModelError(
                f"trace: amp: expected fp32, fp16 or bf16, got {shown(self.amp)}"
                f"{did_you_mean(str(self.amp), PRECISIONS)}. Choose one of them."
            )


@dataclass(frozen=True)
class TracedStep(Trace):
    """A trace of a step that can be traced again: what :func:`roller.trace` returns.

    Parameters
    ----------
    again
        Traces the same step under a change. All else is as :class:`~roller.insight.records.Trace` has it.
    """

    again: Again = field(kw_only=True, compare=False, repr=False)

    def at(
        self,
        *,
        batch: int | None = None,
        device: str | DeviceSpec | None = None,
        amp: str | None = None,
        checkpoint: bool | str | Sequence[str] | None = None,
    ) -> TracedStep:
        """Return the same step, traced at another batch, for another device, in other precision, with checkpointing.

        Parameters
        ----------
        batch
            Samples of a step.
        device
            Device whose rules choose kernels; those for which PyTorch chooses the same kernels share a trace.
        amp
            ``"fp32"`` (none), ``"fp16"`` or ``"bf16"``.
        checkpoint
            As in :func:`roller.trace`; ``False`` for none.

        Raises
        ------
        ModelError
            The step does not run so.
        """
        return self.again(Change(batch, device, amp, checkpoint))

    def forecast(
        self,
        device: str | DeviceSpec,
        *,
        batch: int | None = None,
        amp: str | None = None,
        checkpoint: bool | str | Sequence[str] | None = None,
        policy: str = "library",
        devices: int = 1,
    ) -> Forecast:
        """Return how long the step takes on a device, and its memory: :func:`roller.insight.forecast.forecast`."""
        step = self.at(batch=batch, device=device, amp=amp, checkpoint=checkpoint)
        return forecast(step, device, policy=policy, devices=devices)

    def memory(
        self,
        device: str | DeviceSpec,
        *,
        batch: int | None = None,
        amp: str | None = None,
        checkpoint: bool | str | Sequence[str] | None = None,
        settings: AllocatorSettings | None = None,
    ) -> Memory:
        """Return the memory the step takes on a device: :func:`roller.insight.memory.replay.replay`."""
        return memory_on(self.at(batch=batch, device=device, amp=amp, checkpoint=checkpoint), device, settings)

    def max_batch(
        self,
        device: str | DeviceSpec,
        *,
        amp: str | None = None,
        checkpoint: bool | str | Sequence[str] | None = None,
        settings: AllocatorSettings | None = None,
    ) -> LargestBatch:
        """Return the largest batch that fits a device: it fits, and one more does not, each traced.

        Raises
        ------
        NoCandidateError
            Not even one sample fits, or the device has no limit.
        """
        return max_batch(lambda n: self.at(batch=n, device=device, amp=amp, checkpoint=checkpoint), device, settings)

    def graph(
        self,
        device: str | DeviceSpec,
        *,
        batch: int | None = None,
        amp: str | None = None,
        checkpoint: bool | str | Sequence[str] | None = None,
        policy: str = "library",
    ) -> Graph:
        """Return the step on a device as a graph, for what-ifs: :func:`roller.insight.whatif.traced.from_trace`."""
        from roller.insight.whatif.traced import from_trace

        return from_trace(self.at(batch=batch, device=device, amp=amp, checkpoint=checkpoint), device, policy=policy)


class Again:
    """Traces one step under changes; what was traced last is kept.

    Parameters
    ----------
    make
        Traces the step under a change.
    first
        What it is traced under where a change says nothing.
    """

    def __init__(self, make: Callable[[Change], Trace], first: Change) -> None:
        self._make, self._first = make, first
        self._kept: OrderedDict[object, TracedStep] = OrderedDict()

    def __call__(self, change: Change) -> TracedStep:
        """Return the trace under a change; devices for which PyTorch chooses the same kernels share it."""
        whole = self._completed(change)
        capability = capability_of(whole.device)
        key = (whole.batch, PRECISIONS[whole.amp or "fp32"], str(whole.checkpoint or False))
        if capability == HOST and key[1] is not None:
            raise ModelError(
                f"trace: amp: expected fp32 on a CPU, got {shown(whole.amp)}: its rules of mixed precision are not "
                f"described. Leave it out, or name a GPU."
            )
        shared = None if capability != HOST else capability  # no GPU runs what a CPU does
        found = self._kept.get((*key, shared)) or self._kept.get((*key, capability))
        if found is None:
            made = self._make(whole)
            found = TracedStep(**{f.name: getattr(made, f.name) for f in fields(Trace)}, again=self)
            matters = found.options.get("capability_matters", True)
            self._kept[(*key, capability if matters else shared)] = found
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return found

    def _completed(self, change: Change) -> Change:
        first = self._first
        return Change(
            first.batch if change.batch is None else change.batch,
            first.device if change.device is None else change.device,
            first.amp if change.amp is None else change.amp,
            first.checkpoint if change.checkpoint is None else change.checkpoint,
        )


def capability_of(device: str | DeviceSpec | None) -> tuple[int, int]:
    """Return the compute capability of a device, (8, 0) of none, :data:`HOST` of a CPU.

    Raises
    ------
    ModelError
        The device is neither of CUDA nor a CPU.
    """
    if device is None:
        return (8, 0)
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
