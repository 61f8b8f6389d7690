"""Exact search for the largest batch that fits: one more sample does not fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from roller.compile_arguments import spec_and_local_device
from roller.errors import NoCandidateError
from roller.hardware import DeviceSpec, driver_reported_memory
from roller.insight.memory import simulate
from roller.insight.memory.cpu_heap import simulate_cpu_memory
from roller.insight.memory.settings import AllocatorSettings, AllocatorSettingsError
from roller.insight.memory.simulate import Library, Memory
from roller.insight.trace.torch_release import TorchRelease
from roller.insight.trace.trace import AllocEvent, Trace

#: Batch size at which a search on a device without a limit ends.
_MOST = 1 << 24
_MIB = 1 << 20


@dataclass(frozen=True)
class LargestBatch:
    """The largest batch that fits, its memory, and ``over``, the memory with one more sample, which does not fit."""

    batch: int
    memory: Memory
    over: Memory
    #: Every batch that was tried -> whether it fits.
    tried: dict[int, bool]


def largest_batch(
    memory_of: Callable[[int], Memory],
    capacity_bytes: int,
    *,
    most: int = _MOST,
    guess: Callable[[], int | None] = lambda: None,
) -> LargestBatch:
    """Return the largest batch, at most ``most``, whose memory fits.

    Parameters
    ----------
    memory_of
        Function that returns the memory of a batch of the given number of samples.
    capacity_bytes
        Number of reserved bytes up to which a batch is expected to fit, by which the search extrapolates.
    most
        Largest batch to try.
    guess
        Function that returns the batch to try first, or ``None``.

    Returns
    -------
    LargestBatch
        The batch, its memory, and the memory with one more sample.

    Raises
    ------
    NoCandidateError
        If a batch of one does not fit, or a batch of ``most`` does.

    Notes
    -----
    The line through the two largest batches that fit predicts where reserved memory reaches ``capacity_bytes``; if that
    does not narrow the range, the range is bisected. Memory is not monotonic below the allocator's granularity, so
    after a batch that fits, larger ones are tried until one does not fit.

    Examples
    --------
    Each sample takes 10 bytes, in addition to a constant 25 bytes.

    >>> from roller.insight.memory.allocator_blocks_and_pools import MemoryStats, OutOfDeviceMemoryError
    >>> def memory_of(batch):
    ...     stats = MemoryStats(*[25 + 10 * batch] * 3)
    ...     oom = OutOfDeviceMemoryError(10, 100, stats) if stats.reserved_bytes > 100 else None
    ...     return Memory(stats, 0, 0, 0, (), oom=oom)
    >>> found = largest_batch(memory_of, 100)
    >>> found.batch, found.tried
    (7, {1: True, 2: True, 7: True, 8: False})
    """
    known: dict[int, Memory] = {}

    def batch_fits(batch: int) -> bool:
        if batch not in known:
            known[batch] = memory_of(batch)
        return known[batch].fits

    if not batch_fits(1):
        raise NoCandidateError(f"largest batch: expected one sample to fit, got: {known[1].oom}")
    low, high = 1, most + 1
    guessed = guess()
    probes = [] if guessed is None else [guessed + 1, guessed]
    while high - low > 1:
        probe = probes.pop() if probes else _batch_reaching_capacity(known, capacity_bytes)
        if not low < probe < high:
            probe = low + 1 if probe == low else (low + min(high, max(16, 4 * low))) // 2
        low, high = (probe, high) if batch_fits(probe) else (low, probe)
    if high > most:
        raise NoCandidateError(
            f"largest batch: expected a limit, but {most} samples fit. Name a device with less memory, or a capacity."
        )
    while batch_fits(low + 1):
        low += 1
    return LargestBatch(low, known[low], known[low + 1], {b: known[b].fits for b in sorted(known)})


def memory_on_device(trace: Trace, device: str | DeviceSpec, settings: AllocatorSettings | None = None) -> Memory:
    """Return the memory of a trace on a device, given the device's capacity and the memory of its libraries."""
    spec = spec_and_local_device(device)[0]
    if not spec.traits.discrete:
        return simulate_cpu_memory(trace, device_capacity_bytes(spec), spec.process_bytes or 0)
    library = Library.of(spec, trace.options)
    settings = allocator_settings_for_trace(trace, settings)
    return simulate.simulate_memory(trace, device_capacity_bytes(spec), settings=settings, library=library)


def allocator_settings_for_trace(trace: Trace, settings: AllocatorSettings | None = None) -> AllocatorSettings:
    """Return the given allocator settings, or the settings in the trace's entry file."""
    if settings is None:
        settings = AllocatorSettings.parse(str(trace.options.get("allocator") or ""))
    release = TorchRelease.parse(str(trace.options.get("torch_release") or ""))
    if settings.expandable_segments and not release.has_expandable_segments:
        raise AllocatorSettingsError(
            f"allocator settings, 'expandable_segments': expected a release from 2.1 on, got {release}. "
            f"Leave the setting out, or name another release."
        )
    return settings


def device_capacity_bytes(spec: DeviceSpec) -> int:
    """Return a device's memory in bytes: the smallest that its drivers report, if known."""
    return driver_reported_memory.device_memory_capacity(spec).bytes


def fit_uncertainty_note(
    trace: Trace, device: str | DeviceSpec, memory: Memory, settings: AllocatorSettings | None = None
) -> str:
    """Return a note if an uncertain value of the device decides whether a step fits; otherwise ``""``."""
    # The size of the context is uncertain, and so is the device's memory if drivers report several sizes.
    spec = spec_and_local_device(device)[0]
    known = driver_reported_memory.device_memory_capacity(spec)
    least, most = memory.context_least_bytes, memory.context_most_bytes
    spread = f"{least / _MIB:.0f} to {most / _MIB:.0f} MiB were published of a context and libraries"
    what = f"{known.text}, and {spread}, of which {memory.context_bytes / _MIB:.0f} are counted"
    what = what if most > least else known.text
    if memory.fits:
        left = known.bytes - memory.total_bytes
        if left >= max(0, most - memory.context_bytes) + known.doubtful_bytes:
            return ""
        return f"{spec.name}: it fits with {max(0, left) / _MIB:.0f} MiB left; {what}: it may not fit."
    if not spec.traits.discrete:
        return ""
    library = Library.of(spec, trace.options)
    roomy = replace(library, context_bytes=library.context_least_bytes)
    settings = allocator_settings_for_trace(trace, settings)
    if not simulate.simulate_memory(trace, known.most_bytes, settings=settings, library=roomy).fits:
        return ""
    return f"{spec.name}: it does not fit by little; {what}: it may fit."


def largest_batch_on_device(
    trace_of: Callable[[int], Trace], device: str | DeviceSpec, settings: AllocatorSettings | None = None
) -> LargestBatch:
    """Return the largest batch that fits a device; this batch and the next are traced, others may be extrapolated."""
    spec = spec_and_local_device(device)[0]

    def guess_batch() -> int | None:
        line = LinearMemoryModel.from_two_traces(trace_of(_NEAR), trace_of(2 * _NEAR))
        return (
            None
            if line is None
            else line.largest_fitting_batch(lambda trace: memory_on_device(trace, spec, settings).fits)
        )

    return largest_batch(
        lambda n: memory_on_device(trace_of(n), spec, settings), device_capacity_bytes(spec), guess=guess_batch
    )


#: Batch whose trace, together with the trace of twice as many samples, gives the linear model; a batch of one sample
#: would be a special case.
_NEAR = 4


@dataclass(frozen=True)
class LinearMemoryModel:
    """A step at any batch, extrapolated from two traces with the same operators: sizes are linear in the batch."""

    trace: Trace
    batch: int
    #: Bytes per sample by which each event of the first trace grows.
    step: tuple[float, ...]

    @classmethod
    def from_two_traces(cls, near: Trace, far: Trace) -> LinearMemoryModel | None:
        """Return the model through two traces; ``None`` if they differ in anything but sizes."""
        b1, b2 = (int(t.options.get("batch") or 0) for t in (near, far))
        alike = [[o.name for o in t.operators] for t in (near, far)]
        if b1 == b2 or alike[0] != alike[1] or len(near.events) != len(far.events):
            return None
        steps = []
        for a, b in zip(near.events, far.events, strict=True):
            if type(a) is not type(b) or a.storage != b.storage:
                return None
            grown = b.size_bytes - a.size_bytes if isinstance(a, AllocEvent) and isinstance(b, AllocEvent) else 0
            steps.append(grown / (b2 - b1))
        return cls(near, b1, tuple(steps))

    def trace_at_batch(self, batch: int) -> Trace:
        """Return the step at a batch, with extrapolated allocation sizes."""
        more = batch - self.batch
        events = tuple(
            replace(e, size_bytes=max(0, e.size_bytes + math.ceil(by * more)))
            if by and isinstance(e, AllocEvent)
            else e
            for e, by in zip(self.trace.events, self.step, strict=True)
        )
        return replace(self.trace, events=events)

    def largest_fitting_batch(self, batch_fits: Callable[[Trace], bool]) -> int | None:
        """Return the largest batch that fits, by bisection; ``None`` if not even one sample fits."""
        low, high = 0, 1
        while batch_fits(self.trace_at_batch(high)):
            low, high = high, 2 * high
            if high > _MOST:
                return low
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if batch_fits(self.trace_at_batch(middle)) else (low, middle)
        return low or None


def _batch_reaching_capacity(known: dict[int, Memory], capacity_bytes: int) -> int:
    """Return the batch at which the line through the two largest batches that fit reaches the capacity."""
    fitting = sorted(b for b, memory in known.items() if memory.fits)
    if len(fitting) < 2:
        return 2 * fitting[-1]
    (x1, y1), (x2, y2) = ((b, known[b].peak.reserved_bytes) for b in fitting[-2:])
    if y2 <= y1:
        return 2 * x2
    return x2 + int((capacity_bytes - y2) * (x2 - x1) // (y2 - y1))
