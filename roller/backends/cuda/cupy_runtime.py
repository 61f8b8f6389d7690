"""Finds CuPy for NVIDIA GPUs or ROCm, selects a device, queries its properties, and times work."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from roller.errors import LaunchError

_ELSEWHERE = (
    "Constructing, building, emulating, bundling and reading the source work without: name a spec (device='v100')."
)
#: Subject and installation hint for error messages; packs show the first sentence only.
_CUDA = ("GPU", "install it with 'pip install cupy-cuda12x' (CUDA 13: cupy-cuda13x, AMD: its ROCm build)")
_ROCM = ("HIP launch", "install its ROCm build with 'pip install cupy-rocm-7-0' (from source: CUPY_INSTALL_USE_HIP=1)")
#: Fields of a specification -> the driver's names (not every release has every one).
_STATED = {
    "units": "multiProcessorCount",
    "teu.lanes": "warpSize",
    "limits.registers_per_unit": "regsPerMultiprocessor",
    "limits.threads_per_block": "maxThreadsPerBlock",
    "limits.threads_per_unit": "maxThreadsPerMultiProcessor",
    "limits.blocks_per_unit": "maxBlocksPerMultiProcessor",
    "limits.shared_bytes_per_block": "sharedMemPerBlock",
    "memory_layers.shared.capacity_bytes": "sharedMemPerMultiprocessor",
    "memory_layers.shared.usable_bytes": "sharedMemPerBlockOptin",
    "memory_layers.l2.capacity_bytes": "l2CacheSize",
    "memory_layers.global.capacity_bytes": "totalGlobalMem",
}
#: Fields whose definition in HIP differs from that in specifications.
_OTHERWISE = ("limits.registers_per_unit", "memory_layers.shared.usable_bytes")


def import_cupy(rocm: bool = False) -> Any:
    """Return the CuPy module, built for ROCm if ``rocm``; raise an error if it or a usable device is missing."""
    what, install = _ROCM if rocm else _CUDA
    try:
        import cupy as module
    except ImportError as err:
        raise LaunchError(f"{what}: expected CuPy, got {err}: {install}. {_ELSEWHERE}") from err
    if rocm and not module.cuda.runtime.is_hip:
        raise LaunchError(f"{what}: expected CuPy for ROCm, found one for CUDA: {install}. {_ELSEWHERE}")
    try:
        devices = module.cuda.runtime.getDeviceCount()
    except RuntimeError as err:  # CUDARuntimeError, whose module differs between releases
        raise LaunchError(
            f"{what}: expected a usable device, got {err}. Install its driver, or run elsewhere. {_ELSEWHERE}"
        ) from err
    if devices < 1:
        raise LaunchError(f"{what}: expected a device, found none. Run on a GPU machine. {_ELSEWHERE}")
    return module


def select_device(cp: Any, index: int) -> None:
    """Make device ``index`` current for this thread."""
    count = cp.cuda.runtime.getDeviceCount()
    if index >= count:
        raise LaunchError(f"device {index}: expected one of the {count} found, counted from 0. Use 0.")
    cp.cuda.Device(index).use()


@contextlib.contextmanager
def image_errors_as_launch_errors(name: str, target: object = "") -> Iterator[None]:
    """Turn the driver's refusal of an image or kernel into a :class:`LaunchError`."""
    try:
        yield
    except RuntimeError as err:  # CUDADriverError
        what = f"{name}: the device refuses the image{f' for {target}' if target else ''}"
        raise LaunchError(f"{what} ({err}). Build for the device's own architecture.") from err


def allocate(cp: Any, nbytes: int) -> Any:
    """Allocate memory on the current device."""
    try:
        return cp.cuda.alloc(max(1, nbytes))
    except MemoryError as err:
        raise LaunchError(
            f"GPU: expected {nbytes / 1e6:.4g} MB of free memory, got less ({err}). Use a smaller batch."
        ) from err


def capture_graph(cp: Any, stream: Any, work: Callable[[], None]) -> Any:
    """Capture the launches that ``work`` queues in a stream as a graph, without running them."""
    if is_hip(cp):
        raise LaunchError("GPU: CuPy captures no graphs on HIP. Steps are launched one by one.")
    stream.begin_capture()
    try:
        work()
        graph = stream.end_capture()
    except RuntimeError as err:  # CUDARuntimeError, CUDADriverError
        with contextlib.suppress(RuntimeError):  # end the capture in any case
            stream.end_capture()
        raise LaunchError(f"GPU: the driver captured no graph ({err}). Steps are launched one by one.") from err
    return graph


def repeatable_launch(cp: Any, stream: Any, work: Callable[[], None]) -> Callable[[], None]:
    """Return a function that starts the same work on each call: a graph's launch, or ``work`` itself on HIP."""
    if is_hip(cp):
        return work
    graph = capture_graph(cp, stream, work)
    return lambda: graph.launch(stream)


def time_by_events(cp: Any, stream: Any, work: Callable[[], None]) -> float:
    """Wait for the work that ``work`` queues in a stream; return its time in seconds, measured with events."""
    start, end = cp.cuda.Event(), cp.cuda.Event()
    start.record(stream)
    work()
    end.record(stream)
    end.synchronize()
    return float(cp.cuda.get_elapsed_time(start, end)) * 1e-3


def is_hip(cp: Any) -> bool:
    """Return whether CuPy is built for ROCm."""
    return bool(getattr(cp.cuda.runtime, "is_hip", False))


def properties(cp: Any, index: int) -> dict[str, Any]:
    """Return the properties of a device; see :class:`roller.backends.parse_device_names.DeviceProperties`."""
    runtime = cp.cuda.runtime
    raw, hip = runtime.getDeviceProperties(index), is_hip(cp)
    arch = _decode_text(raw["gcnArchName"]).partition(":")[0] if hip else f"sm_{raw['major']}{raw['minor']}"
    return {
        "name": _decode_text(raw["name"]),
        "arch": arch,
        "units": int(raw["multiProcessorCount"]),
        "memory_bytes": int(raw["totalGlobalMem"]),
        "cache_bytes": int(raw.get("l2CacheSize", 0)),
        "stated": {p: int(raw[k]) for p, k in _STATED.items() if raw.get(k) and not (hip and p in _OTHERWISE)},
        "versions": {
            "cupy": str(cp.__version__),
            "driver": str(runtime.driverGetVersion()),
            "runtime": str(runtime.runtimeGetVersion()),
        },
    }


def _decode_text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
