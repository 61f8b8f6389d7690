"""Device interface of the GPU runner (memory, copies, kernels, streams, events, graphs) and its CuPy implementation.

:class:`roller.emulator.emulated_device.EmulatedDevice` also implements it, but guarantees only the order that streams
and events define.
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
from roller.backends.cuda.cupy_runtime import allocate, capture_graph, import_cupy, properties, select_device
from roller.backends.cuda.launcher import as_cupy_array, as_cupy_stream, is_torch_object
from roller.backends.cuda.loaded_gpu_module import LoadedImage
from roller.errors import LaunchError
from roller.targets import DEVICES, canonical_device_name
from roller_runtime.core.dtypes import storage_dtype

#: DLPack device types whose memory CuPy accepts: CUDA, CUDA managed, ROCm.
_ON_DEVICE = (2, 10, 13)

#: Device objects that are opaque to the runner: a stream, an event, a captured graph.
Stream = Any
Event = Any
Graph = Any


class Memory(Protocol):
    """Device memory at address ``ptr``, freed when its last reference is dropped."""

    @property
    def ptr(self) -> int: ...  # noqa: D102


class Kernel(Protocol):
    """A loaded kernel; ``pointers`` maps argument names to device addresses."""

    def launch(self, pointers: Mapping[str, int], stream: Stream) -> None: ...  # noqa: D102

    def prepare(self, pointers: Mapping[str, int], stream: Stream) -> None: ...  # noqa: D102


class Device(Protocol):
    """A GPU. Operations on a stream are asynchronous and ordered only within the stream.

    Parameters
    ----------
    needs_images
        Whether kernels must be built before they are loaded.
    """

    needs_images: bool

    @property
    def xp(self) -> Any:
        """The array module of the device."""

    def properties(self) -> dict[str, Any]:
        """Return ``name``, ``arch``, ``versions`` and further properties."""

    def allocate(self, nbytes: int) -> Memory:
        """Return new uninitialized memory, aligned to 256 bytes."""

    def load(self, artifact: KernelArtifact) -> Kernel:
        """Load a built kernel."""

    def entered(self, arrays: Sequence[Any] = ()) -> AbstractContextManager[Stream]:
        """Make the device current; yield the current stream of the library that owns ``arrays``."""

    def holds(self, value: Any) -> bool:
        """Return whether a caller's array is in device memory."""

    def viewed(self, value: Any, where: str) -> Any:
        """Return a caller's device array as an array of :attr:`xp`, without a copy."""

    def contiguous(self, array: Any) -> Any:
        """Return an array of :attr:`xp` in contiguous form: the array itself or a copy."""

    def made(self, shape: Sequence[int], dtype: str, like: Sequence[Any]) -> Any:
        """Return a new array: a torch tensor if ``like`` contains one, otherwise of :attr:`xp` (bfloat16 as bits)."""

    def address(self, array: Any) -> int:
        """Return the device address of an array of :attr:`xp`."""

    def upload(self, pointer: int, array: np.ndarray, stream: Stream) -> None:
        """Copy a host array to the device; the array may be changed once this returns."""

    def download(self, pointer: int, nbytes: int, stream: Stream) -> np.ndarray:
        """Wait for a stream; return device memory as bytes, shape ``(nbytes,)``."""

    def copy(
        self, target: int, target_pitch: int, source: int, source_pitch: int, row_bytes: int, rows: int, stream: Stream
    ) -> None:
        """Copy rows between addresses; pitches are in bytes."""

    def array(self, pointer: int, shape: Sequence[int], dtype: np.dtype[Any], owner: Any) -> Any:
        """Return memory within ``owner`` as an array of :attr:`xp`."""

    def call(self, function: Callable[[], None], stream: Stream) -> None:
        """Call a function with ``stream`` as the current stream of :attr:`xp`."""

    def stream(self) -> Stream:
        """Return a new stream."""

    def event(self, timing: bool = False) -> Event:
        """Return a new event; ``timing`` enables :meth:`elapsed_s`."""

    def record(self, event: Event, stream: Stream) -> None:
        """Record the work submitted to a stream so far in an event."""

    def wait(self, event: Event, stream: Stream) -> None:
        """Make a stream wait for an event."""

    def elapsed_s(self, start: Event, end: Event) -> float:
        """Return the time between two completed events in seconds."""

    def synchronize(self, stream: Stream) -> None:
        """Wait for a stream."""

    def capture(self, work: Callable[[], None], stream: Stream) -> Graph:
        """Return the operations of ``work`` on a stream as a graph, without running them."""

    def replay(self, graph: Graph, stream: Stream) -> None:
        """Run a graph on a stream."""


def open_device(name: str, arch: str) -> Device:
    """Return the device called ``name``; ``arch`` applies only to the emulated device and the null device."""
    kind, _, rest = canonical_device_name(name).partition(":")
    target = DEVICES.get(kind)
    if target is None or (target.numbered and not (rest or "0").isdecimal()):
        raise LaunchError(f"device '{name}': expected 'cuda:N', 'rocm:N' or 'emulated'. Name a GPU of this machine.")
    found: Device = target.open_session_device(int(rest or 0) if target.numbered else 0, arch)
    return found


class CupyDevice:
    """A GPU accessed through CuPy, which must be built for ROCm if ``rocm`` is true."""

    needs_images = True

    def __init__(self, index: int = 0, rocm: bool = False) -> None:
        self.xp = self._cp = import_cupy(rocm)
        select_device(self._cp, index)
        self._index = index

    def properties(self) -> dict[str, Any]:
        """Return the properties of the device."""
        return properties(self._cp, self._index)

    def allocate(self, nbytes: int) -> Any:
        """Return new memory."""
        return allocate(self._cp, nbytes)

    def load(self, artifact: KernelArtifact) -> Kernel:
        """Load a built kernel."""
        return LoadedImage(self._cp, artifact)

    @contextlib.contextmanager
    def entered(self, arrays: Sequence[Any] = ()) -> Iterator[Stream]:
        """Make the device current and make CuPy use the current stream of the arrays' library."""
        tensor = next((a for a in arrays if is_torch_object(a)), None)
        with self._cp.cuda.Device(self._index):
            stream = None if tensor is None else sys.modules["torch"].cuda.current_stream(tensor.device)
            with as_cupy_stream(self._cp.cuda, stream) as current:
                yield current

    def holds(self, value: Any) -> bool:
        """Return whether a caller's array is in device memory."""
        if isinstance(value, np.ndarray):
            return False
        if isinstance(value, self._cp.ndarray) or hasattr(value, "__cuda_array_interface__"):
            return True
        return hasattr(value, "__dlpack_device__") and int(value.__dlpack_device__()[0]) in _ON_DEVICE

    def viewed(self, value: Any, where: str) -> Any:
        """Return a caller's device array as a CuPy array."""
        found = as_cupy_array(self._cp, value, where)
        place = getattr(getattr(found, "device", None), "id", self._index)
        if place != self._index:
            raise LaunchError(
                f"{where}: expected an array on device {self._index}, got one on device {place}. Move it there."
            )
        return found

    def contiguous(self, array: Any) -> Any:
        """Return a CuPy array in contiguous form."""
        return array if array.flags.c_contiguous else self._cp.ascontiguousarray(array)

    def made(self, shape: Sequence[int], dtype: str, like: Sequence[Any]) -> Any:
        """Return a new array, allocated by the library that will free it."""
        tensor = next((a for a in like if is_torch_object(a) and a.is_cuda), None)
        if tensor is None:
            return self._cp.empty(tuple(shape), storage_dtype(dtype))
        torch = sys.modules["torch"]
        return torch.empty(tuple(shape), dtype=getattr(torch, dtype), device=tensor.device)

    def address(self, array: Any) -> int:
        """Return the address of a CuPy array."""
        return int(array.data.ptr)

    def upload(self, pointer: int, array: np.ndarray, stream: Stream) -> None:
        """Copy a host array; unpinned memory is staged before this returns."""
        data, runtime = np.ascontiguousarray(array), self._cp.cuda.runtime
        if data.nbytes:
            runtime.memcpyAsync(pointer, data.ctypes.data, data.nbytes, runtime.memcpyHostToDevice, stream.ptr)
            stream.synchronize()

    def download(self, pointer: int, nbytes: int, stream: Stream) -> np.ndarray:
        """Wait for a stream; return device memory as bytes."""
        out, runtime = np.empty(nbytes, np.uint8), self._cp.cuda.runtime
        if nbytes:
            runtime.memcpyAsync(out.ctypes.data, pointer, nbytes, runtime.memcpyDeviceToHost, stream.ptr)
        stream.synchronize()
        return out

    def copy(
        self, target: int, target_pitch: int, source: int, source_pitch: int, row_bytes: int, rows: int, stream: Stream
    ) -> None:
        """Copy rows; copy overlapping or repeated rows one by one, because a 2-D copy does not support them."""
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
        """Call a function with ``stream`` as CuPy's current stream."""
        with stream:
            function()

    def stream(self) -> Stream:
        """Return a new stream."""
        return self._cp.cuda.Stream(non_blocking=True)

    def event(self, timing: bool = False) -> Event:
        """Return a new event."""
        return self._cp.cuda.Event(disable_timing=not timing)

    def record(self, event: Event, stream: Stream) -> None:
        """Record the work submitted to a stream so far in an event."""
        event.record(stream)

    def wait(self, event: Event, stream: Stream) -> None:
        """Make a stream wait for an event."""
        stream.wait_event(event)

    def elapsed_s(self, start: Event, end: Event) -> float:
        """Return the time between two completed events in seconds."""
        seconds = float(self._cp.cuda.get_elapsed_time(start, end)) * 1e-3
        return seconds if math.isfinite(seconds) else 0.0

    def synchronize(self, stream: Stream) -> None:
        """Wait for a stream."""
        stream.synchronize()

    def capture(self, work: Callable[[], None], stream: Stream) -> Graph:
        """Return the work as a CUDA graph; raise :class:`LaunchError` if CuPy cannot capture (HIP)."""
        return capture_graph(self._cp, stream, work)

    def replay(self, graph: Graph, stream: Stream) -> None:
        """Run a graph on a stream."""
        graph.launch(stream)
