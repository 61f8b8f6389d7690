"""A traced step: forecasts, memory, the largest batch and the graph of a step under given options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace

from roller.errors import RollerError
from roller.hardware import DeviceSpec
from roller.insight.cost.compiled import apply_policy_to_trace
from roller.insight.forecast import Forecast, forecast
from roller.insight.memory.largest_batch import LargestBatch, largest_batch_on_device, memory_on_device
from roller.insight.memory.settings import AllocatorSettings
from roller.insight.memory.simulate import Memory
from roller.insight.step.from_trace import from_trace
from roller.insight.step.graph import StepGraph
from roller.insight.trace.gradient_buckets import buckets, trace_with_bucket_storages
from roller.insight.trace.options import TraceOptions
from roller.insight.trace.retracer import Retracer
from roller.insight.trace.trace import Trace
from roller.insight.whatif.memory_change_trace_options import MemoryChange


@dataclass(frozen=True)
class TracedStep(Trace):
    """A trace of a step that can be traced again; returned by :func:`roller.trace`.

    Parameters
    ----------
    again
        Retracer that traces the same step under other options. For the other fields, see
        :class:`~roller.insight.trace.trace.Trace`.
    """

    again: Callable[[TraceOptions], TracedStep] = field(kw_only=True, compare=False, repr=False)

    @classmethod
    def of(cls, trace: Trace, again: Retracer[TracedStep]) -> TracedStep:
        """Create a traced step from a trace and its retracer."""
        return cls(**{f.name: getattr(trace, f.name) for f in fields(Trace)}, again=again)

    def at(
        self,
        *,
        batch: int | None = None,
        device: str | DeviceSpec | None = None,
        amp: str | None = None,
        checkpoint: bool | str | Sequence[str] | None = None,
        torch_release: str | None = None,
    ) -> TracedStep:
        """Return the same step traced at another batch, for another device, in another precision or with checkpointing.

        Options that are not given keep the values of this step, which may itself be a result of this method.

        Parameters
        ----------
        batch
            Samples per step.
        device
            Device whose rules choose kernels; devices for which PyTorch chooses the same kernels share a trace.
        amp
            ``"fp32"`` (none), ``"fp16"`` or ``"bf16"``.
        checkpoint
            See :func:`roller.trace`; ``False`` for none.
        torch_release
            PyTorch release whose rules decide what is saved and allocated, e.g. ``"1.10"``; ``""`` for the newest.

        Raises
        ------
        ModelError
            If the step fails under these options.
        """
        return self.again(TraceOptions(batch, device, amp, checkpoint, torch_release))

    def with_tf32(self, allowed: bool) -> TracedStep:
        """Return this step with TF32 allowed or disallowed for float32 products, also when it is traced again.

        Prices on devices that support TF32 follow this choice, which overrides the settings in the trace.

        Parameters
        ----------
        allowed
            Whether float32 convolutions and products may be computed in TF32.
        """
        kinds = ["convolution", "product"] if allowed else []
        return replace(
            self, options={**self.options, "tf32": kinds}, again=lambda options: self.again(options).with_tf32(allowed)
        )

    def as_run(self, device: str | DeviceSpec, policy: str = "library") -> Trace:
        """Return the trace as it runs on a device; it is compiled if the step or the policy compiles it.

        Operator indices in a :class:`~roller.insight.memory.simulate.Memory` refer to this trace.

        Parameters
        ----------
        device, policy
            See :func:`roller.insight.forecast.forecast`.
        """
        from roller.compile_arguments import spec_and_local_device

        return apply_policy_to_trace(self, policy, on_gpu=spec_and_local_device(device)[0].traits.blocks)

    def forecast(
        self,
        device: str | DeviceSpec,
        *,
        batch: int | None = None,
        amp: str | None = None,
        checkpoint: bool | str | Sequence[str] | None = None,
        policy: str = "library",
        devices: int = 1,
        tf32: bool | None = None,
        torch_release: str | None = None,
    ) -> Forecast:
        """Return the predicted time and memory on a device; see :func:`roller.insight.forecast.forecast`."""
        step = self.at(batch=batch, device=device, amp=amp, checkpoint=checkpoint, torch_release=torch_release)
        return forecast(step, device, policy=policy, devices=devices, tf32=tf32)

    def memory(
        self,
        device: str | DeviceSpec,
        *,
        batch: int | None = None,
        amp: str | None = None,
        checkpoint: bool | str | Sequence[str] | None = None,
        settings: AllocatorSettings | None = None,
        torch_release: str | None = None,
    ) -> Memory:
        """Return the memory of the step on a device; see :func:`roller.insight.memory.simulate.simulate_memory`."""
        step = self.at(batch=batch, device=device, amp=amp, checkpoint=checkpoint, torch_release=torch_release)
        return memory_on_device(step.as_run(device), device, settings)

    def memory_with(
        self, change: MemoryChange, device: str | DeviceSpec, *, devices: int = 1, policy: str = "library"
    ) -> Memory:
        """Return the memory of this step with a change; if iterations differ, that of the fullest one.

        Parameters
        ----------
        change
            Trace options to change.
        device, devices, policy
            See :func:`roller.insight.forecast.forecast`; a device or count in ``change`` takes precedence.

        Raises
        ------
        ModelError
            If the step fails with the change.
        RollerError
            If the changed batch is not a whole number of samples, or the batch is unknown.
        """
        device, count = change.device or device, change.devices or devices
        if replace(change, devices=None) == MemoryChange():
            changed = self.at(device=device)  # as with a change: a step's allocations depend on its device
        else:
            changed = self.at(
                batch=_changed_batch(self, change.batch_factor), device=device,
                amp=change.amp or self.options.get("amp") or "fp32",
                checkpoint=tuple(dict.fromkeys((*(self.options.get("checkpoint") or ()), *(change.checkpoint or ())))),
            )  # fmt: skip
        run = changed.as_run(device, policy)
        held = trace_with_bucket_storages(run, buckets(run)) if count > 1 else run
        return memory_on_device(held, device)  # its peak covers all steps, including the fullest one

    def max_batch(
        self,
        device: str | DeviceSpec,
        *,
        amp: str | None = None,
        checkpoint: bool | str | Sequence[str] | None = None,
        settings: AllocatorSettings | None = None,
        torch_release: str | None = None,
    ) -> LargestBatch:
        """Return the largest batch that fits on a device; it and the next larger batch, which does not, are traced.

        Raises
        ------
        NoCandidateError
            If not even one sample fits, or the device has no limit.
        """
        return largest_batch_on_device(
            lambda n: self.at(
                batch=n, device=device, amp=amp, checkpoint=checkpoint, torch_release=torch_release
            ).as_run(device),
            device,
            settings,
        )

    def graph(
        self,
        device: str | DeviceSpec,
        *,
        batch: int | None = None,
        amp: str | None = None,
        checkpoint: bool | str | Sequence[str] | None = None,
        policy: str = "library",
    ) -> StepGraph:
        """Return the graph of the step on a device; see :func:`roller.insight.step.from_trace.from_trace`."""
        return from_trace(self.at(batch=batch, device=device, amp=amp, checkpoint=checkpoint), device, policy=policy)


def _changed_batch(step: Trace, factor: float) -> int | None:
    """Return the step's batch times a factor; ``None`` if the batch is unknown and the factor is 1."""
    own = int(step.options.get("batch") or 0)
    batch = own * factor
    if factor != 1.0 and (not batch or batch != int(batch)):
        raise RollerError(
            f"batch: expected a whole number of samples, got {factor:g} times {own}. Name another factor."
        )
    return int(batch) or None
