"""Stubs of ``torch.cuda`` and ``torch.accelerator`` for the traced device."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch

_ONE_STREAM = (
    "streams: the step makes some of its own; all of it is traced on one stream, so nothing overlaps, and memory is "
    "not kept apart by stream."
)
_NOT_HERE = (
    "torch.cuda.{}: no device is asked, so the answer is made up: no memory in use, 1 TiB of it free. A step that "
    "decides by it may be traced on another branch than it takes."
)
#: Functions that query the memory and the load of a device.
_MEMORY = (
    "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "memory_cached",
    "max_memory_cached", "utilization", "temperature",
)  # fmt: skip


class Stream:
    """Stub of a stream that behaves as the only one."""

    device_index, stream_id, cuda_stream, priority = 0, 0, 0, 0

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = torch.device("cuda", 0)

    def _do_nothing(self, *_: Any, **__: Any) -> None: ...

    wait_stream = wait_event = synchronize = _do_nothing

    def query(self) -> bool:
        """Return whether all work is done, which is always the case."""
        return True

    def record_event(self, event: Any = None) -> Any:
        """Return an event of this stream."""
        return event or Event()

    def __enter__(self) -> Stream:
        """Make the stream current; this has no effect."""
        return self

    def __exit__(self, *_: Any) -> None:
        """Make the previous stream current; this has no effect."""


class Event:
    """Stub of an event that has always completed."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def _do_nothing(self, *_: Any, **__: Any) -> None: ...

    record = wait = synchronize = _do_nothing

    def query(self) -> bool:
        """Return whether the event has completed, which is always the case."""
        return True

    def elapsed_time(self, _: Any) -> float:
        """Return one millisecond, since nothing is timed."""
        return 1.0


class DeviceOrStreamScope(nullcontext[None]):
    """Stub of a context that selects a device or a stream; this has no effect, since there is only one."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()


def cuda_function_stubs(
    host: bool, capability: Callable[[], tuple[int, int]], note: Callable[[str], None]
) -> Mapping[str, Any]:
    """Return the stub for each function of ``torch.cuda``, keyed by the function's name."""

    class Own(Stream):  # PyTorch's modules ask for classes of these names
        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__()
            note(_ONE_STREAM)

    def device_properties(*_: Any, **__: Any) -> SimpleNamespace:
        major, minor = capability()
        return SimpleNamespace(
            name="GPU", major=major, minor=minor, total_memory=1 << 40, multi_processor_count=100, warp_size=32
        )

    def note_user_calls(name: str, reply: Callable[..., Any]) -> Callable[..., Any]:
        """Return a stub that notes calls from the user's code, which may branch on the result."""

        def call_stub(*args: Any, **kwargs: Any) -> Any:
            if not host and str(sys._getframe(1).f_globals.get("__name__", "")).split(".")[0] != "torch":
                note(_NOT_HERE.format(name))
            return reply(*args, **kwargs)

        return call_stub

    nothing = lambda *_, **__: None  # noqa: E731
    zero = lambda *_, **__: 0  # noqa: E731
    silent = (
        "synchronize", "empty_cache", "reset_peak_memory_stats", "reset_max_memory_allocated", "manual_seed",
        "manual_seed_all", "seed", "seed_all", "set_device", "set_stream", "ipc_collect", "init",
        "set_per_process_memory_fraction", "reset_accumulated_memory_stats", "reset_max_memory_cached",
        "set_rng_state_all", "_lazy_init",
    )  # fmt: skip
    numbers = {
        **dict.fromkeys(_MEMORY, zero), "mem_get_info": lambda *_, **__: (1 << 40, 1 << 40),
        "get_device_properties": device_properties,
    }  # fmt: skip
    return {
        **dict.fromkeys(silent, nothing),
        **dict.fromkeys(("current_device", "initial_seed"), zero),
        **{name: note_user_calls(name, reply) for name, reply in numbers.items()},
        "is_available": lambda: not host,
        "is_initialized": lambda: not host,
        "device_count": lambda: 0 if host else 1,
        "is_bf16_supported": lambda *_, **__: capability() >= (8, 0),
        "get_device_capability": lambda *_, **__: capability(),
        "get_device_name": lambda *_, **__: "GPU",
        "get_arch_list": list,
        "memory_stats": lambda *_, **__: {},
        "memory_summary": lambda *_, **__: "",
        "is_current_stream_capturing": lambda: False,
        "get_rng_state": lambda *_, **__: torch.zeros(16, dtype=torch.uint8),
        "get_rng_state_all": list,
        "set_rng_state": nothing,
        "device": DeviceOrStreamScope,
        "StreamContext": DeviceOrStreamScope,
        "device_of": DeviceOrStreamScope,
        "stream": DeviceOrStreamScope,
        "current_stream": lambda *_, **__: Stream(),
        "default_stream": lambda *_, **__: Stream(),
        "Stream": Own,
        "Event": Event,
    }


def accelerator_stubs(host: bool) -> Mapping[str, Any]:
    """Return the stub for each function of ``torch.accelerator``, keyed by name; PyTorch's own calls bypass the stubs.

    PyTorch also queries the accelerator in C++, which cannot be stubbed.
    """
    answers: Mapping[str, Callable[..., Any]] = {
        "is_available": lambda: not host,
        "current_accelerator": lambda *_, **__: None if host else torch.device("cuda"),
        "device_count": lambda: 0 if host else 1,
        "current_device_index": lambda: 0,
        "synchronize": lambda *_, **__: None,
        "set_device_index": lambda *_, **__: None,
        "empty_cache": lambda: None,
    }
    real = {name: getattr(torch.accelerator, name, None) for name in answers}

    def stub_for_user_code(name: str) -> Callable[..., Any]:
        def call_stub(*args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1).f_globals.get("__name__", "")
            function = real[name] if str(caller).split(".")[0] == "torch" else answers[name]
            return function(*args, **kwargs) if function is not None else None

        return call_stub

    return {name: stub_for_user_code(name) for name in answers}


def nvtx_stubs() -> Mapping[str, Any]:
    """Return the stub for each function of ``torch.cuda.nvtx``, keyed by the function's name."""
    return {
        "range_push": lambda *_, **__: 0, "range_pop": lambda *_, **__: 0, "mark": lambda *_, **__: None,
        "range": lambda *_, **__: nullcontext(),
    }  # fmt: skip
