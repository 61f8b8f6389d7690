"""Reads profiles of PyTorch (Kineto's Chrome JSON), of every spelling, an event at a time."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from roller.insight.step.event_rows import Rows, wrong
from roller.insight.step.graph import Kind

#: Categories, in lower case: old and new spellings, CUDA and ROCm.
_CALLS = frozenset({"cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "hip_driver", "driver"})
_DEVICE: Mapping[str, Kind] = {
    "kernel": "kernel", "gpu_memcpy": "copy", "memcpy": "copy", "gpu_memset": "set", "memset": "set"
}  # fmt: skip
_OPERATORS = frozenset({"cpu_op", "operator"})
_MARKS = frozenset({"user_annotation", "python_function"})
#: Marks that older profiles list among the operators.
_MARKED = re.compile(r"ProfilerStep|enumerate\(|Optimizer\.|## ")
#: What a recorded profile says of itself: microseconds that recording took, an event.
OVERHEAD = "roller_overhead_us"
#: What the frames of modules begin with; other frames of Python are no marks.
MODULE = "nn.Module: "
_SYNC = "cuda_sync"
#: A day: nothing of a profile takes longer, and a damaged number often does.
_LONGEST_US = 86_400e6
_KNOWN = _CALLS | _DEVICE.keys() | _OPERATORS | _MARKS | {_SYNC}
_NOTHING: Mapping[str, Any] = {}
_SAID = re.compile(rf'"{OVERHEAD}"\s*:\s*"?([0-9.eE+-]+)')
#: What a profile says ahead of its events of the machine's GPUs, and of the library that a job communicates by.
_PROPERTIES = re.compile(r'"deviceProperties"\s*:\s*\[\s*\{')
_WORLD = re.compile(r'"world_size"\s*:\s*(\d{1,9})\b')
_BACKEND = re.compile(r'"backend"\s*:\s*"[^"]*?(nccl|rccl)')
#: Operators and marks of what only runs on GPUs, and what PyTorch calls a GPU.
_ON_DEVICE = re.compile(
    r"(nccl|rccl):|fbgemm_gpu|aten::(_?(cudnn|miopen|cuda|cublas)|_(flash|efficient)_attention|_pin_memory|record_stream)"
)
_DEVICE_NAME = re.compile(r"(cuda|hip|xpu)(:\d+)?$")


class Event(NamedTuple):
    """An event with a duration that matters: a call, a device's task, an operator, or a mark around others.

    Parameters
    ----------
    name, kind
        ``kind`` is ``"call"``, ``"operator"``, ``"mark"`` (a named region of code, or a module's run), ``"wait"``
        (what a call or stream waited for) or a device task's.
    start_us, duration_us
        As the profile has them.
    lane
        Process and thread, or device and stream.
    correlation
        Number that a call shares with what it launched; ``None`` where it has none.
    arguments
        What a wait says of its event; of an operator its shapes, dtypes and the sequence number that its backward
        shares; of a device task the bytes it moves. Empty otherwise.
    """

    name: str
    kind: str
    start_us: float
    duration_us: float
    lane: str
    correlation: int | None
    arguments: Mapping[str, Any]

    @property
    def end_us(self) -> float:
        """When it ends."""
        return self.start_us + self.duration_us


class Profile(NamedTuple):
    """What a file of Kineto says.

    Parameters
    ----------
    events
        Those a graph is made of.
    overhead_us
        Microseconds that recording took an event; ``None`` where the profile does not say.
    device_signs
        What shows that a GPU was at work, beside its own tasks; ``""`` where nothing does.
    has_properties
        Whether it describes a GPU of the machine, which need not have been at work.
    world_size
        Processes of the job, where the profile says so; else 0.
    notes
        What is wrong with the file and does not keep it from being read, a sentence each.
    """

    events: list[Event]
    overhead_us: float | None = None
    device_signs: str = ""
    has_properties: bool = False
    world_size: int = 0
    notes: tuple[str, ...] = ()


def read_events(path: str | Path) -> list[Event]:
    """Return the events of a profile that a graph is made of: those of :func:`read_profile`."""
    return read_profile(path).events


def read_profile(path: str | Path) -> Profile:
    """Read a profile.

    Damaged events are passed over, and said; bytes that are no UTF-8 are replaced.

    Parameters
    ----------
    path
        Kineto's JSON, plain or gzipped, an object with ``traceEvents`` or their list. It is read an event at a time.

    Raises
    ------
    ArtifactError
        It cannot be read, is cut off, too much of it is damaged, or it is no profile.
    """
    found: list[Event] = []
    shared: dict[str, Any] = {}
    signs, rows = "", Rows(Path(path))
    for row in rows:
        if not isinstance(row, dict):
            rows.damaged.append(f"event {rows.count - 1}: no object")
            continue
        signs = signs or _device_sign(row)
        if row.get("ph") != "X":
            continue
        category = str(row.get("cat") or "").lower()
        if category not in _KNOWN:
            category = _meant(row)
        if not category or (category == "python_function" and not str(row.get("name")).startswith(MODULE)):
            continue
        try:
            found.append(_event(category, row, shared))
        except (TypeError, ValueError, KeyError, OverflowError) as error:
            rows.damaged.append(f"event {rows.count - 1}: without a usable name, time and lane ({error!r})")
    if all(event.kind == "mark" for event in found):
        first = f", and {rows.damaged[0]}" if rows.damaged else ""
        raise wrong(path, f"no calls, kernels or operators in it{first}")
    size = _WORLD.search(rows.head)
    return Profile(
        found, _overhead(rows.head), signs or _backend_sign(rows.head),
        _PROPERTIES.search(rows.head) is not None, 0 if size is None else int(size[1]), rows.notes,
    )  # fmt: skip


def _overhead(head: str) -> float | None:
    said = _SAID.search(head)
    try:
        each_us = float(said[1]) if said is not None else math.nan
    except ValueError:
        return None
    return each_us if 0.0 <= each_us < math.inf else None


def _device_sign(row: Mapping[str, Any]) -> str:
    """Return what an event that is no device's task tells of a GPU at work; ``""`` where it tells nothing.

    Examples
    --------
    >>> _device_sign({"cat": "user_annotation", "name": "nccl:all_to_all"})
    'nccl:all_to_all'
    >>> _device_sign({"cat": "cpu_op", "name": "aten::mm", "args": {"Concrete Inputs": ["", "cpu"]}})
    ''
    """
    category, name, given = str(row.get("cat") or "").lower(), str(row.get("name")), row.get("args")
    carried = given if isinstance(given, Mapping) else {}
    if category == "gpu_user_annotation" or _ON_DEVICE.match(name):
        return name
    if name == "[memory]" and carried.get("Device Type") not in (None, 0):
        return "memory of a device"
    values = carried.get("Concrete Inputs")
    devices = [v for v in values if isinstance(v, str) and _DEVICE_NAME.match(v)] if isinstance(values, list) else []
    return f"{name} on {devices[0]}" if devices else ""


def _backend_sign(head: str) -> str:
    found = _BACKEND.search(head)
    return "" if found is None else f"a job over {found[1]}"


def _meant(row: Mapping[str, Any]) -> str:
    """Return the category of an event whose own is new, by what it carries; ``""`` where it is none of ours.

    A device's task has a stream and the number of its call; a call has the number alone, and stands on a thread.

    Examples
    --------
    >>> _meant({"cat": "mtia_op", "name": "matmul", "args": {"stream": 3, "correlation": 7}})
    'kernel'
    >>> _meant({"cat": "mtia_runtime", "name": "launch", "args": {"correlation": 7}})
    'runtime'
    """
    carried = row.get("args")
    if not isinstance(carried, Mapping) or "correlation" not in carried:
        return ""
    if "stream" not in carried:
        return "runtime"
    name = str(row.get("name")).lower()
    return _SYNC if "cuda_sync_kind" in carried else next((w for w in ("memcpy", "memset") if w in name), "kernel")


def _event(category: str, row: Mapping[str, Any], shared: dict[str, Any]) -> Event:
    given = row.get("args")
    arguments: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    correlation = arguments.get("correlation")
    start, duration = float(row["ts"]), float(row["dur"])
    if not (math.isfinite(start) and 0 <= duration < _LONGEST_US):
        raise ValueError(f"ts {row['ts']}, dur {row['dur']}")
    if category in _DEVICE:
        lane = f"device {arguments.get('device', row.get('pid'))}, stream {arguments.get('stream', row.get('tid'))}"
        kind: str = _DEVICE[category]
        if kind == "kernel" and ("nccl" in (low := str(row["name"]).lower()) or "rccl" in low):
            kind = "collective"
    else:
        lane = f"process {row['pid']}, thread {row['tid']}"
        kind = "call" if category in _CALLS else "wait" if category == _SYNC else "operator"
        if category in _MARKS or (kind == "operator" and _MARKED.match(str(row["name"]))):
            kind = "mark"
    number = None if correlation is None else int(correlation)
    return Event(str(row["name"]), kind, start, duration, lane, number, _kept(kind, arguments, shared))


def _kept(kind: str, arguments: Mapping[str, Any], shared: dict[str, Any]) -> Mapping[str, Any]:
    """Return what is read of an event's arguments: large profiles have many that nobody reads, and shapes repeat."""
    if kind == "wait":
        return arguments
    if kind == "operator":
        kept = {
            "shapes": _shared(_list(arguments.get("Input Dims") or arguments.get("Input dims")), shared),
            "dtypes": _shared(_list(arguments.get("Input type")), shared),
            "sequence": arguments.get("Sequence number"),
        }
    elif kind in ("copy", "set"):
        kept = {"bytes": arguments.get("bytes")}
    elif kind == "collective":
        kept = {"elements": arguments.get("In msg nelems"), "dtype": arguments.get("dtype")}
    else:
        return _NOTHING
    return {name: value for name, value in kept.items() if value not in (None, [], "")} or _NOTHING


def _list(value: Any) -> Any:
    """Return a list; nothing of what is none, as in a damaged profile."""
    return value if isinstance(value, list) else None


def _shared(value: Any, known: dict[str, Any]) -> Any:
    """Return nested lists as tuples; equal ones are one."""
    if not value:
        return None
    key = repr(value)
    if key not in known:
        known[key] = _frozen(value)
    return known[key]


def _frozen(value: Any) -> Any:
    return tuple(_frozen(x) for x in value) if isinstance(value, list) else value
