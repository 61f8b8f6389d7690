"""Emulated GPU on this machine: memory, streams, events and graphs, with kernels run by the emulator.

Work is queued and runs when a caller waits. The next stream is chosen so that missing events become visible: one stream
runs as far ahead as its events allow, or a random stream runs. Memory starts as NaN between guards.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from roller.artifact import KernelArtifact
from roller.emulator.emulate import EmulatedArtifact
from roller.errors import EmulationError, shown
from roller_runtime.core.dtypes import storage_dtype

#: Choice among the streams that can run: the oldest, the newest, or a random one.
POLICIES = ("first", "last", "random")
_GUARD_BYTES, _ALIGNMENT, _POISON, _GUARD = 256, 256, 0xFF, 0xA5


class GuardedMemory:
    """Uninitialized memory (NaN as a float) between two guards."""

    def __init__(self, nbytes: int) -> None:
        raw = np.full(nbytes + 2 * _GUARD_BYTES + _ALIGNMENT, _GUARD, np.uint8)
        start = -raw.ctypes.data % _ALIGNMENT + _GUARD_BYTES
        self._raw, self._start, self.nbytes = raw, start, nbytes
        self.data = raw[start : start + nbytes]
        self.data[:] = _POISON
        self.ptr: int = raw.ctypes.data + start

    def verify(self) -> None:
        """Raise an error if a guard was overwritten."""
        rest = np.concatenate((self._raw[: self._start], self._raw[self._start + self.nbytes :]))
        if (rest != _GUARD).any():
            raise EmulationError(f"emulated device: something was written around memory of {self.nbytes} bytes.")


class DeviceArray(np.ndarray):
    """NumPy array that represents memory of the emulated device."""


@dataclass(eq=False)
class Work:
    """Queued work, which runs after its dependencies and after earlier work on its stream."""

    run: Callable[[], None]
    after: list[Work] = field(default_factory=list)
    done: bool = False


@dataclass(eq=False)
class Stream:
    """Queue whose work runs in order; during a capture, ``last`` is the stream's last node."""

    number: int
    queue: list[Work] = field(default_factory=list)
    waits: list[Work] = field(default_factory=list)
    captured: bool = False
    last: Work | None = None


@dataclass(eq=False)
class Event:
    """Point in a stream: the work before it and its completion time in seconds."""

    work: Work | None = None
    time_s: float = 0.0


@dataclass(eq=False)
class Graph:
    """Captured work with its dependencies."""

    nodes: list[Work]


class EmulatedKernel:
    """Kernel that operates on emulated memory; ``roller.models.session.gpu_device`` defines the interface."""

    def __init__(self, device: EmulatedDevice, artifact: KernelArtifact) -> None:
        self._device, self._emulated = device, EmulatedArtifact(artifact, check=device.check)

    def launch(self, pointers: Mapping[str, int], stream: Stream) -> None:
        """Queue all kernels of the artifact."""
        self._queue(pointers, stream, False)

    def prepare(self, pointers: Mapping[str, int], stream: Stream) -> None:
        """Queue the kernel that packs constants into panels."""
        self._queue(pointers, stream, True)

    def _queue(self, pointers: Mapping[str, int], stream: Stream, prepare: bool) -> None:
        held, order = dict(pointers), self._device.order
        self._device.push(stream, lambda: self._emulated.run_at_addresses(held, prepare=prepare, order=order))


class EmulatedDevice:
    """Implementation of ``roller.models.session.gpu_device`` on this machine.

    Parameters
    ----------
    policy
        One of :data:`POLICIES`.
    seed
        Seed for the random policy.
    order
        Order of threads and blocks in kernels; see :func:`roller.emulator.emulate`.
    check
        Whether to check the memory accesses of kernels.
    arch
        Architecture to report.
    """

    xp = np
    needs_images = False

    def __init__(
        self, policy: str = "random", seed: int = 0, *, order: str = "forward", check: bool = True, arch: str = "sm_90"
    ) -> None:
        if policy not in POLICIES:
            known = ", ".join(POLICIES)
            raise EmulationError(f"emulated device: policy: expected one of {known}, got {shown(policy)}.")
        self.policy, self.order, self.check, self._arch = policy, order, check, arch
        self._random = random.Random(seed)
        self._streams: list[Stream] = []
        self._memories: list[GuardedMemory] = []
        self._nodes: list[Work] | None = None
        #: The caller's current stream.
        self.current = self.stream()
        #: Number of completed kernels, copies and calls.
        self.executed = 0

    def properties(self) -> dict[str, Any]:
        """Return the properties of the device."""
        return {"name": "emulated device", "arch": self._arch, "versions": {"numpy": np.__version__}}

    def allocate(self, nbytes: int) -> GuardedMemory:
        """Allocate memory."""
        self._memories.append(GuardedMemory(nbytes))
        return self._memories[-1]

    def load(self, artifact: KernelArtifact) -> Any:
        """Return ``artifact`` as a kernel of this device; no image is needed."""
        return EmulatedKernel(self, artifact)

    @contextlib.contextmanager
    def entered(self, arrays: Sequence[Any] = ()) -> Iterator[Stream]:
        """Yield the caller's current stream."""
        del arrays
        yield self.current

    def holds(self, value: Any) -> bool:
        """Return whether an array is on the device."""
        return isinstance(value, DeviceArray)

    def viewed(self, value: Any, where: str) -> Any:
        """Return a caller's array unchanged."""
        del where
        return value

    def contiguous(self, array: Any) -> Any:
        """Return a contiguous array, copied in the caller's stream if necessary."""
        if array.flags.c_contiguous:
            return array
        out = self.made(array.shape, array.dtype.name)
        self.push(self.current, lambda: np.copyto(out, array))
        return out

    def made(self, shape: Sequence[int], dtype: str, like: Sequence[Any] = ()) -> DeviceArray:
        """Return a new uninitialized array on the device in the storage dtype of ``dtype``."""
        del like
        stored = storage_dtype(dtype)
        memory = self.allocate(int(np.prod(shape, dtype=np.int64)) * stored.itemsize)
        return memory.data.view(stored).reshape(tuple(shape)).view(DeviceArray)

    def address(self, array: Any) -> int:
        """Return the address of an array."""
        return int(array.ctypes.data)

    def upload(self, pointer: int, array: np.ndarray, stream: Stream) -> None:
        """Queue a copy of a host array's current contents to the device."""
        data = np.ascontiguousarray(array).tobytes()

        def move() -> None:
            ctypes.memmove(pointer, data, len(data))

        self.push(stream, move)

    def download(self, pointer: int, nbytes: int, stream: Stream) -> np.ndarray:
        """Wait for a stream and return bytes copied to the host."""
        self.synchronize(stream)
        return np.frombuffer(ctypes.string_at(pointer, nbytes), np.uint8).copy()

    def copy(
        self, target: int, target_pitch: int, source: int, source_pitch: int, row_bytes: int, rows: int, stream: Stream
    ) -> None:
        """Queue a copy of ``rows`` rows of ``row_bytes`` bytes each."""

        def move() -> None:
            for row in range(rows):
                ctypes.memmove(target + row * target_pitch, source + row * source_pitch, row_bytes)

        self.push(stream, move)

    def array(self, pointer: int, shape: Sequence[int], dtype: np.dtype[Any], owner: GuardedMemory) -> np.ndarray:
        """Return a view of memory as an array of :attr:`xp`."""
        start = pointer - owner.ptr
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return owner.data[start : start + size].view(dtype).reshape(tuple(shape))

    def call(self, function: Callable[[], None], stream: Stream) -> None:
        """Queue a host function that operates on arrays."""
        if stream.captured:
            raise EmulationError("emulated device: a function of arrays cannot be captured in a graph.")
        self.push(stream, function)

    def stream(self) -> Stream:
        """Create a stream."""
        self._streams.append(Stream(len(self._streams)))
        return self._streams[-1]

    def event(self, timing: bool = False) -> Event:
        """Create an event."""
        del timing
        return Event()

    def record(self, event: Event, stream: Stream) -> None:
        """Record the stream's work so far in an event."""
        event.work = self.push(stream, lambda: setattr(event, "time_s", time.perf_counter()), counts=False)

    def wait(self, event: Event, stream: Stream) -> None:
        """Make a stream wait for the work recorded in an event; an unrecorded event has none."""
        if event.work is None:
            return
        stream.waits.append(event.work)
        # A stream that waits for captured work is captured too.
        if self._nodes is not None and event.work in self._nodes:
            stream.captured = True

    def elapsed_s(self, start: Event, end: Event) -> float:
        """Return the time in seconds between two completed events."""
        return end.time_s - start.time_s

    def push(self, stream: Stream, run: Callable[[], None], counts: bool = True) -> Work:
        """Queue work in a stream, or add it to the graph that is being captured."""

        def counted() -> None:
            run()
            self.executed += counts

        work = Work(counted, stream.waits)
        stream.waits = []
        if stream.captured:
            assert self._nodes is not None
            if stream.last is not None:
                work.after.append(stream.last)
            stream.last = work
            self._nodes.append(work)
        else:
            stream.queue.append(work)
        return work

    def synchronize(self, stream: Stream) -> None:
        """Wait for a stream; work on other streams may run too."""
        while stream.queue or not all(w.done for w in stream.waits):
            ready = [s for s in self._streams if s.queue and all(w.done for w in s.queue[0].after)]
            if not ready:
                raise EmulationError("emulated device: streams wait for each other.")
            work = self._chosen(ready).queue.pop(0)
            work.run()
            work.done = True
        for memory in self._memories:
            memory.verify()

    def _chosen(self, options: Sequence[Any]) -> Any:
        return {"first": options[0], "last": options[-1]}.get(self.policy) or self._random.choice(options)

    def capture(self, work: Callable[[], None], stream: Stream) -> Graph:
        """Capture the work that ``work`` queues as a graph, without running it."""
        self._nodes, stream.captured, stream.last = [], True, None
        try:
            work()
            nodes, last = self._nodes, stream.last
        finally:
            self._nodes = None
            for s in self._streams:
                s.captured, s.last, s.waits = False, None, []
        reached: set[int] = set()
        todo: list[Work] = [] if last is None else [last]
        while todo:
            node = todo.pop()
            if id(node) not in reached:
                reached.add(id(node))
                todo += node.after
        if len(reached) < len(nodes):
            raise EmulationError("emulated device: captured work of a stream is not joined to the one captured.")
        return Graph(nodes)

    def replay(self, graph: Graph, stream: Stream) -> None:
        """Queue a graph, whose nodes run in any order that their edges allow."""

        def run() -> None:
            left = list(graph.nodes)
            finished: set[int] = set()
            while left:
                node = self._chosen([n for n in left if all(id(a) in finished for a in n.after)])
                node.run()
                finished.add(id(node))
                left.remove(node)

        self.push(stream, run, counts=False)
