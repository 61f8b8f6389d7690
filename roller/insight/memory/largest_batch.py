"""The largest batch that fits, by exact search: it fits, and one more does not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from roller.arguments import target_of
from roller.errors import NoCandidateError
from roller.hardware import DeviceSpec, capacity
from roller.insight.memory import simulate
from roller.insight.memory.cpu_heap import host_memory
from roller.insight.memory.settings import AllocatorSettings
from roller.insight.memory.simulate import Library, Memory
from roller.insight.trace.trace import AllocEvent, Trace

#: Where a search ends that nothing stops: a device without a limit.
_MOST = 1 << 24
_MIB = 1 << 20


@dataclass(frozen=True)
class LargestBatch:
    """The largest batch: it fits with ``memory``, and ``batch + 1`` does not, as ``over`` says.

    ``tried`` holds every batch that was asked for, and whether it fits.
    """

    batch: int
    memory: Memory
    over: Memory
    tried: dict[int, bool]


def largest_batch(
    memory_of: Callable[[int], Memory],
    capacity_bytes: int,
    *,
    most: int = _MOST,
    guess: Callable[[], int | None] = lambda: None,
) -> LargestBatch:
    """Search the largest batch for which ``memory_of`` says that it fits, at most ``most``.

    The first one to try is what ``guess`` says. Then the line through the two largest batches that fit guesses where
    reserved memory reaches ``capacity_bytes``; where that is no news, what is left is halved. Memory is not monotone
    below the allocator's granularity, so of a batch that fits the next one is asked for too, until one does not.

    Raises
    ------
    NoCandidateError
        Not even a batch of one fits, or even ``most`` does.

    Examples
    --------
    A sample takes 10 bytes beside 25 that are always there.

    >>> from roller.insight.memory.blocks_and_pools import MemoryStats, OutOfDeviceMemoryError
    >>> def memory_of(batch):
    ...     stats = MemoryStats(*[25 + 10 * batch] * 3)
    ...     oom = OutOfDeviceMemoryError(10, 100, stats) if stats.reserved_bytes > 100 else None
    ...     return Memory(stats, 0, 0, 0, (), oom=oom)
    >>> found = largest_batch(memory_of, 100)
    >>> found.batch, found.tried
    (7, {1: True, 2: True, 7: True, 8: False})
    """
    known: dict[int, Memory] = {}

    def fits(batch: int) -> bool:
        if batch not in known:
            known[batch] = memory_of(batch)
        return known[batch].fits

    if not fits(1):
        raise NoCandidateError(f"largest batch: expected one sample to fit, got: {known[1].oom}")
    low, high = 1, most + 1
    guessed = guess()
    probes = [] if guessed is None else [guessed + 1, guessed]
    while high - low > 1:
        probe = probes.pop() if probes else _guess(known, capacity_bytes)
        if not low < probe < high:
            probe = low + 1 if probe == low else (low + min(high, max(16, 4 * low))) // 2
        low, high = (probe, high) if fits(probe) else (low, probe)
    if high > most:
        raise NoCandidateError(
            f"largest batch: expected a limit, but {most} samples fit. Name a device with less memory, or a capacity."
        )
    while fits(low + 1):
        low += 1
    return LargestBatch(low, known[low], known[low + 1], {b: known[b].fits for b in sorted(known)})


def memory_on(trace: Trace, device: str | DeviceSpec, settings: AllocatorSettings | None = None) -> Memory:
    """Return the memory of a trace on a device, with its capacity and what its libraries take."""
    spec = target_of(device)[0]
    if not spec.traits.discrete:
        return host_memory(trace, capacity_of(spec), spec.process_bytes or 0)
    return simulate.simulate_memory(trace, capacity_of(spec), settings=settings, library=Library.of(spec))


def capacity_of(spec: DeviceSpec) -> int:
    """Return the bytes of a device's memory: the least that its drivers report, where that is known."""
    return capacity.capacity_of(spec).bytes


def border(trace: Trace, device: str | DeviceSpec, memory: Memory, settings: AllocatorSettings | None = None) -> str:
    """Say that what is not known of a device decides whether a step fits; ``""`` where it does not.

    Not known are the size of the context, and which of several sizes a driver reports.

    Parameters
    ----------
    trace, device, settings
        As for :func:`memory_on`.
    memory
        What that says.
    """
    spec = target_of(device)[0]
    known = capacity.capacity_of(spec)
    context = memory.total_error_bytes
    what = f"{known.text}, and a context may take {context / _MIB:.0f} MiB more or less" if context else known.text
    if memory.fits:
        left = known.bytes - memory.total_bytes
        if left >= context + known.doubtful_bytes:
            return ""
        return f"{spec.name}: it fits with {max(0, left) / _MIB:.0f} MiB left; {what}: it may not fit."
    if not spec.traits.discrete:
        return ""
    library = Library.of(spec)
    roomy = replace(library, context_bytes=library.context_bytes - library.context_error_bytes)
    if not simulate.simulate_memory(trace, known.most_bytes, settings=settings, library=roomy).fits:
        return ""
    return f"{spec.name}: it does not fit by little; {what}: it may fit."


def max_batch(
    trace_of: Callable[[int], Trace], device: str | DeviceSpec, settings: AllocatorSettings | None = None
) -> LargestBatch:
    """Return the largest batch that fits a device: it and one more are traced, and only the search between is guessed.

    Parameters
    ----------
    trace_of
        Traces the step at a batch.
    device, settings
        As for :func:`memory_on`.

    Raises
    ------
    NoCandidateError
        Not even one sample fits, or the device has no limit.
    """
    spec = target_of(device)[0]

    def guess() -> int | None:
        line = Line.through(trace_of(_NEAR), trace_of(2 * _NEAR))
        return None if line is None else line.last(lambda trace: memory_on(trace, spec, settings).fits)

    return largest_batch(lambda n: memory_on(trace_of(n), spec, settings), capacity_of(spec), guess=guess)


#: Batches whose traces give the line: beyond what a batch of one sample is spared.
_NEAR = 4


@dataclass(frozen=True)
class Line:
    """A step at any batch, guessed from two that run the same operators: every size is linear in the batch.

    Parameters
    ----------
    trace, batch
        The first, and its batch.
    step
        By how many bytes each event of the first grows with a sample.
    """

    trace: Trace
    batch: int
    step: tuple[float, ...]

    @classmethod
    def through(cls, near: Trace, far: Trace) -> Line | None:
        """Return the line through two traces; ``None`` where they differ in more than sizes."""
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

    def at(self, batch: int) -> Trace:
        """Return the step at a batch, as far as its memory goes."""
        more = batch - self.batch
        events = tuple(
            replace(e, size_bytes=max(0, e.size_bytes + math.ceil(by * more)))
            if by and isinstance(e, AllocEvent)
            else e
            for e, by in zip(self.trace.events, self.step, strict=True)
        )
        return replace(self.trace, events=events)

    def last(self, fits: Callable[[Trace], bool]) -> int | None:
        """Return the last batch that fits, of those a search goes to; ``None`` where not even one does."""
        low, high = 0, 1
        while fits(self.at(high)):
            low, high = high, 2 * high
            if high > _MOST:
                return low
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(self.at(middle)) else (low, middle)
        return low or None


def _guess(known: dict[int, Memory], capacity_bytes: int) -> int:
    """Return where the line through the two largest batches that fit reaches the capacity."""
    fitting = sorted(b for b, memory in known.items() if memory.fits)
    if len(fitting) < 2:
        return 2 * fitting[-1]
    (x1, y1), (x2, y2) = ((b, known[b].peak.reserved_bytes) for b in fitting[-2:])
    if y2 <= y1:
        return 2 * x2
    return x2 + int((capacity_bytes - y2) * (x2 - x1) // (y2 - y1))
