"""A stand-in for CuPy whose device is this machine's memory, and whose kernels are Python functions.

It has what the GPU backends use, with the names and argument orders of CuPy 14; it holds the backends' logic,
not CUDA's.
"""

from __future__ import annotations

import ctypes
import types

import numpy as np

KERNELS: dict[str, object] = {}
LAUNCHES: list[tuple[str, tuple, tuple, int, int]] = []
#: Text that the driver compiles; bytes read by the kernel that empties the cache.
PTX = b"\n.version"
READS: list[int] = []


def view(pointer, shape, dtype):
    """Return the array at an address: for kernels written in Python."""
    count = int(np.prod(shape))
    raw = (ctypes.c_char * (count * np.dtype(dtype).itemsize)).from_address(int(pointer))
    return np.frombuffer(raw, dtype).reshape(shape)


def read(data, count, out):
    """Read so many vectors, as the kernel that empties the cache does; return how many bytes."""
    (vectors,) = view(count, (1,), np.uint64)
    if view(data, (int(vectors) * 16,), np.uint8).any():
        view(out, (1,), np.uint32)[...] = 1
    return int(vectors) * 16


class _Memory:
    def __init__(self, nbytes):
        self.raw = np.zeros(nbytes + 512, np.uint8)
        self.base = -(-self.raw.ctypes.data // 512) * 512


class MemoryPointer:
    def __init__(self, memory, offset):
        self.mem, self.ptr = memory, memory.base + offset
        self._offset = offset

    def __add__(self, offset):
        return MemoryPointer(self.mem, self._offset + offset)

    def memset(self, value, size):
        ctypes.memset(self.ptr, value, size)

    def memset_async(self, value, size, stream=None):
        assert isinstance(stream, Stream)
        self.memset(value, size)


class Graph:
    def __init__(self, work):
        self.work = work

    def launch(self, stream=None):
        stream.clock += sum(stream.cost for _ in self.work)
        for run in self.work:
            run()


class Captured(list):
    """Work of a graph, and the streams that put it there."""

    def __init__(self, first):
        super().__init__()
        self.streams = [first]


class Stream:
    """Runs at once; its clock advances by ``cost`` seconds per kernel."""

    cost = 20e-6

    def __init__(self, null=False, non_blocking=False, ptds=False, ptr=1):
        self.clock, self.captured, self.ptr = 0.0, None, ptr
        if non_blocking:
            self.ptr = 1000 + len(STREAMS)
            STREAMS.append(self)

    @classmethod
    def from_external(cls, obj):
        version, pointer = obj.__cuda_stream__()
        assert version == 0
        return cls(ptr=pointer)

    def begin_capture(self, mode=None):
        self.captured = Captured(self)

    def end_capture(self):
        work = self.captured
        for stream in work.streams:
            stream.captured = None
        return Graph(list(work))

    def wait_event(self, event):
        if event.captured is not None and self.captured is None:
            self.captured = event.captured
            self.captured.streams.append(self)

    def do(self, run):
        """Run what is no kernel, or keep it for the graph."""
        if self.captured is None:
            run()
        else:
            self.captured.append(run)

    def synchronize(self):
        assert self.captured is None

    def __enter__(self):
        return self

    def __exit__(self, *args):
        return None


Stream.null = Stream(ptr=0)


class Event:
    def __init__(self, block=False, disable_timing=False):
        self.disable_timing, self.captured = disable_timing, None

    def record(self, stream=None):
        self.at, self.captured = stream.clock, stream.captured

    def synchronize(self):
        return None


class Function:
    def __init__(self, name):
        self.name, self.ptr = name, 7

    def __call__(self, grid, block, args, shared_mem=0, stream=None, enable_cooperative_groups=False):
        assert all(isinstance(a, (np.uint64, np.int32)) or (isinstance(a, np.ndarray) and a.size == 1) for a in args)
        if self.name == "roller_read":
            READS.append(read(*args))
            return
        run = lambda: KERNELS[self.name](*args)  # noqa: E731
        LAUNCHES.append((self.name, grid, block, shared_mem, stream.ptr))
        if stream.captured is not None:
            stream.captured.append(run)
        else:
            stream.clock += stream.cost
            run()


class Module:
    def load(self, cubin):
        if not cubin.startswith((b"image", PTX)):
            raise RuntimeError("CUDA_ERROR_INVALID_IMAGE: device kernel image is invalid")

    def get_function(self, name):
        return Function(name)


class ndarray:
    def __init__(self, shape, dtype, memptr=None):
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self.itemsize = self.dtype.itemsize
        size = int(np.prod(self.shape)) * self.itemsize
        self.data = memptr or MemoryPointer(_Memory(size), 0)
        self.flags = types.SimpleNamespace(c_contiguous=True)

    @property
    def host(self):
        return view(self.data.ptr, self.shape, self.dtype).copy()

    def copy(self, order="C"):
        return asarray(self.host)


def empty(shape, dtype):
    return ndarray(shape, dtype)


def asarray(value):
    out = ndarray(value.shape, value.dtype)
    view(out.data.ptr, out.shape, out.dtype)[...] = value
    return out


def from_dlpack(value):
    return value.as_cupy()


def _properties(index):
    return {"name": b"Fake GPU", "major": 9, "minor": 0, "multiProcessorCount": 130, "totalGlobalMem": 140 * 10**9,
            "l2CacheSize": 1 << 20, "sharedMemPerMultiprocessor": 233472, "sharedMemPerBlockOptin": 232448}  # fmt: skip


def _stream_at(pointer):
    """Return the stream an address stands for; all streams that matter here have one of their own."""
    return next(s for s in STREAMS if s.ptr == pointer)


STREAMS: list[Stream] = []


def _memcpy_async(to, source, size, kind, stream):
    _stream_at(stream).do(lambda: ctypes.memmove(to, source, size))


def _memcpy_2d_async(to, to_pitch, source, source_pitch, width, height, kind, stream):
    assert min(to_pitch, source_pitch) >= width, "cudaErrorInvalidPitchValue"

    def move():
        for row in range(height):
            ctypes.memmove(to + row * to_pitch, source + row * source_pitch, width)

    _stream_at(stream).do(move)


ATTRIBUTES: list[tuple[int, int, int]] = []
#: Scratchpad of a unit, and what the driver keeps of it per block (bytes), by the numbers of CUDA's attributes.
DEVICE_ATTRIBUTES = {81: 228 * 1024, 111: 1024}
_current = Stream(ptr=11)


class Device:
    def __init__(self, index=0):
        self.index = index

    def use(self):
        return None

    def __enter__(self):
        return self

    def __exit__(self, *args):
        return None


runtime = types.SimpleNamespace(
    getDeviceCount=lambda: 1, getDevice=lambda: 0, getDeviceProperties=_properties, driverGetVersion=lambda: 13000,
    deviceGetAttribute=lambda number, device: DEVICE_ATTRIBUTES[number],
    runtimeGetVersion=lambda: 13000, deviceSynchronize=lambda: None, is_hip=False, memcpyHostToDevice=1,
    memcpyDeviceToHost=2, memcpyDeviceToDevice=3,
    memcpy=lambda to, source, size, kind: ctypes.memmove(to, source, size),
    memcpyAsync=_memcpy_async, memcpy2DAsync=_memcpy_2d_async,
)  # fmt: skip
cuda = types.SimpleNamespace(
    runtime=runtime, Device=Device, Stream=Stream, Event=Event, Module=Module,
    driver=types.SimpleNamespace(funcSetAttribute=lambda *args: ATTRIBUTES.append(args)),
    alloc=lambda size: MemoryPointer(_Memory(size), 0), get_current_stream=lambda: _current,
    get_elapsed_time=lambda a, b: (b.at - a.at) * 1e3,
)  # fmt: skip
__version__ = "14.fake"


def get_default_memory_pool():
    return types.SimpleNamespace(free_all_blocks=lambda: None)
