"""What the runner of a model asks of a GPU: memory, copies, kernels, streams, events, graphs. And CuPy's answer.

Two devices speak this interface: :class:`CupyDevice`, and :class:`roller.emulator.device.EmulatedDevice`, which holds
the runner to what streams and events promise, and no more.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from roller.artifact import KernelArtifact
from roller.backends.cuda.module import Module, cupy
from roller.backends.cuda.packed_module import PackedModule
from roller.errors import LaunchError
from roller.packed import PackedKernel

#: Opaque to the runner: a stream, an event, a captured graph of the device.
Stream = Any
Event = Any
Graph = Any


class Memory(Protocol):
    """Allocated memory; freed with its last reference. ``ptr`` is its device address."""

    @property
    def ptr(self) -> int: ...  # noqa: D102


class Kernel(Protocol):
    """A loaded kernel; ``pointers`` are device addresses of its arguments by name."""

    def launch(self, pointers: Mapping[str, int], stream: Stream) -> None: ...  # noqa: D102

    def prepare(self, pointers: Mapping[str, int], stream: Stream) -> None: ...  # noqa: D102


#: Address and bytes of every argument by name, for every run of a kernel, by its key.
PackPlaces: TypeAlias = Mapping[str, Sequence[Mapping[str, tuple[int, int]]]]


class Packed(Protocol):
    """A loaded packed kernel."""

    def bind(self, places: PackPlaces) -> Sequence[Callable[[Stream], None]]:
        """Return what starts its stages, in order, on these arguments."""


class Device(Protocol):
    """A GPU. Everything that takes a stream returns at once; work of one stream is done in order, streams are not."""

    @property
    def xp(self) -> Any:
        """The array module of the device."""

    def properties(self) -> dict[str, Any]:
        """Return ``name``, ``arch`` and ``versions``."""

    def allocate(self, nbytes: int) -> Memory:
        """Return new memory, not initialised, aligned to 256 bytes."""

    def load(self, artifact: KernelArtifact) -> Kernel:
        """Load a built kernel."""

    def load_packed(self, packed: PackedKernel) -> Packed:
        """Load a built packed kernel."""

    def upload(self, pointer: int, array: np.ndarray, stream: Stream) -> None:
        """Copy a host array; it may be changed once this returns."""

    def download(self, pointer: int, nbytes: int, stream: Stream) -> np.ndarray:
        """Wait for a stream and return bytes, shape ``(nbytes,)``."""

    def copy(
        self, target: int, target_pitch: int, source: int, source_pitch: int, row_bytes: int, rows: int, stream: Stream
    ) -> None:
        """Copy rows between addresses; pitches in bytes."""

    def array(self, pointer: int, shape: Sequence[int], dtype: np.dtype[Any], owner: Any) -> Any:
        """Return memory within ``owner`` as an array of :attr:`xp`."""

    def call(self, function: Callable[[], None], stream: Stream) -> None:
        """Do what a function of arrays asks of :attr:`xp`, in a stream."""

    def stream(self) -> Stream:
        """Return a new stream."""

    def event(self, timing: bool = False) -> Event:
        """Return a new event; ``timing`` where it is asked for its time."""

    def record(self, event: Event, stream: Stream) -> None:
        """Let an event stand for all work of a stream so far."""

    def wait(self, event: Event, stream: Stream) -> None:
        """Let a stream wait for what an event stands for."""

    def elapsed_s(self, start: Event, end: Event) -> float:
        """Return the seconds between two events that are done."""

    def synchronize(self, stream: Stream) -> None:
        """Wait for a stream."""

    def capture(self, work: Callable[[], None], stream: Stream) -> Graph:
        """Return as a graph what ``work`` puts into a stream; nothing is done. LaunchError where that is impossible."""

    def replay(self, graph: Graph, stream: Stream) -> None:
        """Run a graph in a stream."""


class CupyDevice:
    """A GPU through CuPy.

    Parameters
    ----------
    index
        Number of the device.

    Raises
    ------
    LaunchError
        Where CuPy or the device is missing.
    """

    def __init__(self, index: int = 0) -> None:
        self.xp = self._cp = cupy()
        count = self._cp.cuda.runtime.getDeviceCount()
        if index >= count:
            raise LaunchError(f"device {index}: expected one of the {count} found, counted from 0. Use 0.")
        self._cp.cuda.Device(index).use()
        self._index = index

    def properties(self) -> dict[str, Any]:
        """Return what the device says of itself."""
        runtime = self._cp.cuda.runtime
        raw = runtime.getDeviceProperties(self._index)
        name = raw["name"].decode() if isinstance(raw["name"], bytes) else str(raw["name"])
        versions = {"cupy": str(self._cp.__version__), "driver": str(runtime.driverGetVersion()),
                    "runtime": str(runtime.runtimeGetVersion())}  # fmt: skip
        if getattr(runtime, "is_hip", False):
            text = raw["gcnArchName"]
            arch = (text.decode() if isinstance(text, bytes) else str(text)).partition(":")[0]
        else:
            arch = f"sm_{raw['major']}{raw['minor']}"
        return {"name": name, "arch": arch, "versions": versions}

    def allocate(self, nbytes: int) -> Any:
        """Return new memory.

        Raises
        ------
        LaunchError
            Where the device has too little.
        """
        try:
            return self._cp.cuda.alloc(max(1, nbytes))
        except MemoryError as err:
            raise LaunchError(
                f"GPU: expected {nbytes / 1e6:.4g} MB of free memory, got less ({err}). Use a smaller batch."
            ) from err

    def load(self, artifact: KernelArtifact) -> Kernel:
        """Load a built kernel."""
        return Module(self._cp, artifact)

    def load_packed(self, packed: PackedKernel) -> Packed:
        """Load a built packed kernel."""
        return PackedModule(self._cp, packed)

    def upload(self, pointer: int, array: np.ndarray, stream: Stream) -> None:
        """Copy a host array; memory that is not pinned is staged before this returns."""
        data, runtime = np.ascontiguousarray(array), self._cp.cuda.runtime
        if data.nbytes:
            runtime.memcpyAsync(pointer, data.ctypes.data, data.nbytes, runtime.memcpyHostToDevice, stream.ptr)
            stream.synchronize()

    def download(self, pointer: int, nbytes: int, stream: Stream) -> np.ndarray:
        """Wait for a stream and return bytes."""
        out, runtime = np.empty(nbytes, np.uint8), self._cp.cuda.runtime
        if nbytes:
            runtime.memcpyAsync(out.ctypes.data, pointer, nbytes, runtime.memcpyDeviceToHost, stream.ptr)
        stream.synchronize()
        return out

    def copy(
        self, target: int, target_pitch: int, source: int, source_pitch: int, row_bytes: int, rows: int, stream: Stream
    ) -> None:
        """Copy rows; those that overlap or repeat, which the driver does not take together, one by one."""
        runtime = self._cp.cuda.runtime
        kind = runtime.memcpyDeviceToDevice
        if not rows or not row_bytes:
            return
        if rows > 1 and min(target_pitch, source_pitch) >= row_bytes:
            runtime.memcpy2DAsync(target, target_pitch, source, source_pitch, row_bytes, rows, kind, stream.ptr)
            return
        for row in range(rows):
            runtime.memcpyAsync(target + row * target_pitch, source + row * source_pitch, row_bytes, kind, stream.ptr)

    def array(self, pointer: int, shape: Sequence[int], dtype: np.dtype[Any], owner: Any) -> Any:
        """Return memory within ``owner`` as a CuPy array."""
        return self._cp.ndarray(tuple(shape), dtype, owner + (pointer - owner.ptr))

    def call(self, function: Callable[[], None], stream: Stream) -> None:
        """Do what a function of arrays asks, with the stream as CuPy's current one."""
        with stream:
            function()

    def stream(self) -> Stream:
        """Return a new stream."""
        return self._cp.cuda.Stream(non_blocking=True)

    def event(self, timing: bool = False) -> Event:
        """Return a new event."""
        return self._cp.cuda.Event(disable_timing=not timing)

    def record(self, event: Event, stream: Stream) -> None:
        """Let an event stand for all work of a stream so far."""
        event.record(stream)

    def wait(self, event: Event, stream: Stream) -> None:
        """Let a stream wait for what an event stands for."""
        stream.wait_event(event)

    def elapsed_s(self, start: Event, end: Event) -> float:
        """Return the seconds between two events that are done."""
        seconds = float(self._cp.cuda.get_elapsed_time(start, end)) * 1e-3
        return seconds if math.isfinite(seconds) else 0.0

    def synchronize(self, stream: Stream) -> None:
        """Wait for a stream."""
        stream.synchronize()

    def capture(self, work: Callable[[], None], stream: Stream) -> Graph:
        """Return the work as a CUDA graph.

        Raises
        ------
        LaunchError
            Where CuPy captures none here (HIP), or the driver refuses a step.
        """
        if getattr(self._cp.cuda.runtime, "is_hip", False):
            raise LaunchError("GPU: CuPy captures no graphs on HIP. Steps are launched one by one.")
        stream.begin_capture()
        try:
            work()
            graph = stream.end_capture()
        except RuntimeError as err:  # CUDARuntimeError, CUDADriverError
            with contextlib.suppress(RuntimeError):  # the capture has to end, whatever became of it
                stream.end_capture()
            raise LaunchError(f"GPU: the driver captured no graph ({err}). Steps are launched one by one.") from err
        return graph

    def replay(self, graph: Graph, stream: Stream) -> None:
        """Run a graph in a stream."""
        graph.launch(stream)
