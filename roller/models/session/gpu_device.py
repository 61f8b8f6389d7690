"""What the runner of a model asks of a GPU: memory, copies, kernels, streams, events, graphs. And CuPy's answer.

Two devices speak this interface: :class:`CupyDevice`, and :class:`roller.emulator.device.EmulatedDevice`, which holds
the runner to what streams and events promise, and no more.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from roller.artifact import KernelArtifact
from roller.backends.cuda.launcher import as_cupy, device_view, is_torch
from roller.backends.cuda.module import Module
from roller.backends.cuda.runtime import allocate, captured, cupy, properties, use
from roller.core.dtypes import storage_dtype
from roller.errors import LaunchError
from roller.targets import DEVICES, device_name

#: Kinds of devices as DLPack numbers them whose memory CuPy takes: CUDA, managed by it, ROCm.
_ON_DEVICE = (2, 10, 13)

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


class Device(Protocol):
    """A GPU. Everything that takes a stream returns at once; work of one stream is done in order, streams are not.

    ``needs_images`` says whether kernels must be built before they are loaded.
    """

    needs_images: bool

    @property
    def xp(self) -> Any:
        """The array module of the device."""

    def properties(self) -> dict[str, Any]:
        """Return ``name``, ``arch`` and ``versions``, and what else it knows of itself."""

    def allocate(self, nbytes: int) -> Memory:
        """Return new memory, not initialised, aligned to 256 bytes."""

    def load(self, artifact: KernelArtifact) -> Kernel:
        """Load a built kernel."""

    def entered(self, arrays: Sequence[Any] = ()) -> AbstractContextManager[Stream]:
        """Make the device this thread's own; yield the stream that the library of these arrays works in now."""

    def holds(self, value: Any) -> bool:
        """Whether a caller's array lies on a device, not in host memory."""

    def viewed(self, value: Any, where: str) -> Any:
        """Return a caller's array on the device as one of :attr:`xp`, without a copy; LaunchError where it cannot."""

    def contiguous(self, array: Any) -> Any:
        """Return an array of :attr:`xp` as a contiguous one: itself, or a copy in the stream of :meth:`entered`."""

    def made(self, shape: Sequence[int], dtype: str, like: Sequence[Any]) -> Any:
        """Return a new array for a caller: of torch where one of ``like`` is, else of :attr:`xp`, bfloat16 as bits."""

    def address(self, array: Any) -> int:
        """Return the device address of an array of :attr:`xp`."""

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


def open_device(name: str, arch: str) -> Device:
    """Return the device of a name."""
    kind, _, rest = device_name(name).partition(":")
    target = DEVICES.get(kind)
    if target is None or (target.numbered and not (rest or "0").isdecimal()):
        raise LaunchError(f"device '{name}': expected 'cuda:N', 'rocm:N' or 'emulated'. Name a GPU of this machine.")
    found: Device = target.open_session_device(int(rest or 0) if target.numbered else 0, arch)
    return found


class CupyDevice:
    """A GPU through CuPy.

    Parameters
    ----------
    index
        Number of the device.
    rocm
        Whether CuPy must be built for ROCm.

    Raises
    ------
    LaunchError
        Where CuPy or the device is missing.
    """

    needs_images = True

    def __init__(self, index: int = 0, rocm: bool = False) -> None:
        self.xp = self._cp = cupy(rocm)
        use(self._cp, index)
        self._index = index

    def properties(self) -> dict[str, Any]:
        """Return what the device says of itself."""
        return properties(self._cp, self._index)

    def allocate(self, nbytes: int) -> Any:
        """Return new memory."""
        return allocate(self._cp, nbytes)

    def load(self, artifact: KernelArtifact) -> Kernel:
        """Load a built kernel."""
        return Module(self._cp, artifact)

    @contextlib.contextmanager
    def entered(self, arrays: Sequence[Any] = ()) -> Iterator[Stream]:
        """Make the device current, and CuPy's current stream the one of the arrays' library."""
        tensor = next((a for a in arrays if is_torch(a)), None)
        with self._cp.cuda.Device(self._index):
            stream = None if tensor is None else sys.modules["torch"].cuda.current_stream(tensor.device)
            with as_cupy(self._cp.cuda, stream) as current:
                yield current

    def holds(self, value: Any) -> bool:
        """Whether a caller's array lies on a device."""
        if isinstance(value, np.ndarray):
            return False
        if isinstance(value, self._cp.ndarray) or hasattr(value, "__cuda_array_interface__"):
            return True
        return hasattr(value, "__dlpack_device__") and int(value.__dlpack_device__()[0]) in _ON_DEVICE

    def viewed(self, value: Any, where: str) -> Any:
        """Return a caller's array on the device as one of CuPy."""
        found = device_view(self._cp, value, where)
        place = getattr(getattr(found, "device", None), "id", self._index)
        if place != self._index:
            raise LaunchError(
                f"{where}: expected an array on device {self._index}, got one on device {place}. Move it there."
            )
        return found

    def contiguous(self, array: Any) -> Any:
        """Return a CuPy array as a contiguous one."""
        return array if array.flags.c_contiguous else self._cp.ascontiguousarray(array)

    def made(self, shape: Sequence[int], dtype: str, like: Sequence[Any]) -> Any:
        """Return a new array, allocated by whose library will free it."""
        tensor = next((a for a in like if is_torch(a) and a.is_cuda), None)
        if tensor is None:
            return self._cp.empty(tuple(shape), storage_dtype(dtype))
        torch = sys.modules["torch"]
        return torch.empty(tuple(shape), dtype=getattr(torch, dtype), device=tensor.device)

    def address(self, array: Any) -> int:
        """Return the address of a CuPy array."""
        return int(array.data.ptr)

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
        """Return the work as a CUDA graph."""
        return captured(self._cp, stream, work)

    def replay(self, graph: Graph, stream: Stream) -> None:
        """Run a graph in a stream."""
        graph.launch(stream)
