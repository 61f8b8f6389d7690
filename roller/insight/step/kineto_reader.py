"""Reader for PyTorch's profiles (Kineto's Chrome JSON) of all versions, one event at a time."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median_low
from typing import Any, NamedTuple

from roller.insight.step.graph import Kind
from roller.insight.step.kineto_event_rows import KinetoRows, not_a_profile_error
from roller.insight.step.memory_records import MEMORY, MemoryRecords, thread_lane_name
from roller_runtime.core.gc_pause import gc_paused

#: Categories in lower case: old and new spellings, for CUDA and ROCm.
_CALLS = frozenset({"cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "hip_driver", "driver"})
_DEVICE: Mapping[str, Kind] = {
    "kernel": "kernel", "gpu_memcpy": "copy", "memcpy": "copy", "gpu_memset": "set", "memset": "set"
}  # fmt: skip
_OPERATORS = frozenset({"cpu_op", "operator"})
_MARKS = frozenset({"user_annotation", "python_function"})
#: Marks that older profiles list among operators.
_MARKED = re.compile(r"ProfilerStep|enumerate\(|Optimizer\.|## ")
#: Key of a recorded profile for the overhead per recorded event, in microseconds.
OVERHEAD = "roller_overhead_us"
#: Prefix of the frames of modules; other Python frames are not marks.
MODULE = "nn.Module: "
_SYNC = "cuda_sync"
#: A day: no event of a profile is longer, but a damaged number often is.
_LONGEST_US = 86_400e6
_KNOWN = _CALLS | _DEVICE.keys() | _OPERATORS | _MARKS | {_SYNC}
_NOTHING: Mapping[str, Any] = {}
_SAID = re.compile(rf'"{OVERHEAD}"\s*:\s*"?([0-9.eE+-]+)')
#: Patterns in the head of a profile: the machine's GPUs, the size of the job, and its communication library.
_PROPERTIES = re.compile(r'"deviceProperties"\s*:\s*\[\s*\{')
_WORLD = re.compile(r'"world_size"\s*:\s*(\d{1,9})\b')
_BACKEND = re.compile(r'"backend"\s*:\s*"[^"]*?(nccl|rccl)')
#: Patterns of operators and marks that occur only on GPUs, and of PyTorch's names for GPUs.
_ON_DEVICE = re.compile(
    r"(nccl|rccl):|fbgemm_gpu|aten::(_?(cudnn|miopen|cuda|cublas)|_(flash|efficient)_attention|_pin_memory|record_stream)"
)
_DEVICE_NAME = re.compile(r"(cuda|hip|xpu)(:\d+)?$")


class Event(NamedTuple):
    """An event in a profile: a call, a device task, an operator, or a mark around others."""

    name: str
    #: ``"call"``, ``"operator"``, ``"mark"`` (a named region of code, or a module's run), ``"wait"`` (the record of a
    #: synchronization), or the kind of a device task.
    kind: str
    start_us: float
    duration_us: float
    #: Process and thread, or device and stream.
    lane: str
    #: Number that a call shares with the tasks it launched; ``None`` if the event has none.
    correlation: int | None
    #: For a wait, its event; for an operator, its shapes, dtypes and the sequence number that it shares with its
    #: backward operator; for a device task, the bytes it moves; otherwise empty.
    arguments: Mapping[str, Any]

    @property
    def end_us(self) -> float:
        """End of the event."""
        return self.start_us + self.duration_us


class Profile(NamedTuple):
    """The content of a Kineto file."""

    events: list[Event]
    #: Recording overhead per event in microseconds; ``None`` if the profile does not give it.
    overhead_us: float | None = None
    #: Evidence of GPU use other than device tasks; ``""`` if there is none.
    device_signs: str = ""
    #: Whether the file describes a GPU of the machine, which need not have been used.
    has_properties: bool = False
    #: Number of processes in the job; 0 if the profile does not give it.
    world_size: int = 0
    #: Defects of the file that do not prevent reading it, one sentence each.
    notes: tuple[str, ...] = ()
    #: Allocations and frees, if requested.
    memory: MemoryRecords | None = None


def read_events(path: str | Path) -> list[Event]:
    """Return the events read by :func:`read_profile`."""
    return read_profile(path).events


@gc_paused()
def read_profile(path: str | Path, *, memory: bool = False) -> Profile:
    """Read a profile of PyTorch.

    Damaged events are skipped and noted; bytes that are not UTF-8 are replaced.

    Parameters
    ----------
    path
        Kineto's JSON, plain or gzipped: an object with ``traceEvents``, or the list itself. The file is read one event
        at a time.
    memory
        Whether to keep the records of allocations, for
        :func:`~roller.insight.step.memory_curve.memory_curves`.

    Returns
    -------
    Profile
        The events in file order, and notes on defects.

    Raises
    ------
    ArtifactError
        If the file cannot be read, is truncated, has too many damaged events, or is not a profile.
    """
    found: list[Event] = []
    shared: dict[str, Any] = {}
    signs, rows = "", KinetoRows(Path(path))
    records = MemoryRecords() if memory else None
    for row in rows:
        if not isinstance(row, dict):
            rows.damaged.append(f"event {rows.count - 1}: no object")
            continue
        signs = signs or _gpu_use_evidence_in_event(row)
        if row.get("ph") != "X":
            if records is not None and row.get("name") == MEMORY and (said := records.add(row)):
                rows.damaged.append(f"event {rows.count - 1}: {said}")
            continue
        category = str(row.get("cat") or "").lower()
        if category not in _KNOWN:
            category = _guess_category(row)
        if not category or (category == "python_function" and not str(row.get("name")).startswith(MODULE)):
            continue
        try:
            found.append(_parse_event(category, row, shared))
        except (TypeError, ValueError, KeyError, OverflowError) as error:
            rows.damaged.append(f"event {rows.count - 1}: without a usable name, time and lane ({error!r})")
    found = _drop_stray_events(found, rows)
    if all(event.kind == "mark" for event in found):
        first = f", and {rows.damaged[0]}" if rows.damaged else ""
        raise not_a_profile_error(path, f"no calls, kernels or operators in it{first}")
    size = _WORLD.search(rows.head)
    return Profile(
        found, _recording_overhead_per_event_us(rows.head), signs or _gpu_backend_evidence(rows.head),
        _PROPERTIES.search(rows.head) is not None, 0 if size is None else int(size[1]), rows.notes,
        records,
    )  # fmt: skip


def _drop_stray_events(found: list[Event], rows: KinetoRows) -> list[Event]:
    """Return the events without those more than a day away from the others, whose times are damaged."""
    starts = [event.start_us for event in found]
    if not starts or max(starts) - min(starts) <= _LONGEST_US:
        return found
    usual_us = median_low(starts)
    kept = [event for event in found if abs(event.start_us - usual_us) <= _LONGEST_US]
    stray = next(event.start_us for event in found if abs(event.start_us - usual_us) > _LONGEST_US)
    rows.damaged += [f"an event more than a day from the others, at {stray:g} us"] * (len(found) - len(kept))
    rows.raise_if_too_damaged()
    return kept


def _recording_overhead_per_event_us(head: str) -> float | None:
    said = _SAID.search(head)
    try:
        each_us = float(said[1]) if said is not None else math.nan
    except ValueError:
        return None
    return each_us if 0.0 <= each_us < math.inf else None


def _gpu_use_evidence_in_event(row: Mapping[str, Any]) -> str:
    """Return the evidence for GPU use in an event that is not a device task; ``""`` if there is none.

    Examples
    --------
    >>> _gpu_use_evidence_in_event({"cat": "user_annotation", "name": "nccl:all_to_all"})
    'nccl:all_to_all'
    >>> _gpu_use_evidence_in_event({"cat": "cpu_op", "name": "aten::mm", "args": {"Concrete Inputs": ["", "cpu"]}})
    ''
    """
    category, name, given = str(row.get("cat") or "").lower(), str(row.get("name")), row.get("args")
    carried = given if isinstance(given, Mapping) else {}
    if category == "gpu_user_annotation" or _ON_DEVICE.match(name):
        return name
    if name == MEMORY and carried.get("Device Type") not in (None, 0):
        return "memory of a device"
    values = carried.get("Concrete Inputs")
    devices = [v for v in values if isinstance(v, str) and _DEVICE_NAME.match(v)] if isinstance(values, list) else []
    return f"{name} on {devices[0]}" if devices else ""


def _gpu_backend_evidence(head: str) -> str:
    found = _BACKEND.search(head)
    return "" if found is None else f"a job over {found[1]}"


def _guess_category(row: Mapping[str, Any]) -> str:
    """Return the category of an event of unknown category from its arguments; ``""`` if the event is irrelevant.

    Examples
    --------
    >>> _guess_category({"cat": "mtia_op", "name": "matmul", "args": {"stream": 3, "correlation": 7}})
    'kernel'
    >>> _guess_category({"cat": "mtia_runtime", "name": "launch", "args": {"correlation": 7}})
    'runtime'
    """
    # A device task has a stream and a correlation number; a call has only a correlation number.
    carried = row.get("args")
    if not isinstance(carried, Mapping) or "correlation" not in carried:
        return ""
    if "stream" not in carried:
        return "runtime"
    name = str(row.get("name")).lower()
    return _SYNC if "cuda_sync_kind" in carried else next((w for w in ("memcpy", "memset") if w in name), "kernel")


def _parse_event(category: str, row: Mapping[str, Any], shared: dict[str, Any]) -> Event:
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
        lane = thread_lane_name(row)
        kind = "call" if category in _CALLS else "wait" if category == _SYNC else "operator"
        if category in _MARKS or (kind == "operator" and _MARKED.match(str(row["name"]))):
            kind = "mark"
    number = None if correlation is None else int(correlation)
    # names of kernels are long and occur many times
    name, lane = sys.intern(str(row["name"])), sys.intern(lane)
    return Event(name, kind, start, duration, lane, number, _keep_used_arguments(kind, arguments, shared))


def _keep_used_arguments(kind: str, arguments: Mapping[str, Any], shared: dict[str, Any]) -> Mapping[str, Any]:
    """Return those arguments of an event that are used, with equal shapes interned."""
    if kind == "wait":
        return arguments
    if kind == "operator":
        kept = {
            "shapes": _intern_nested_lists(
                _list_or_none(arguments.get("Input Dims") or arguments.get("Input dims")), shared
            ),
            "dtypes": _intern_nested_lists(_list_or_none(arguments.get("Input type")), shared),
            "sequence": arguments.get("Sequence number"),
        }
    elif kind in ("copy", "set"):
        kept = {"bytes": arguments.get("bytes")}
    elif kind == "collective":
        kept = {"elements": arguments.get("In msg nelems"), "dtype": arguments.get("dtype")}
    else:
        return _NOTHING
    return {name: value for name, value in kept.items() if value not in (None, [], "")} or _NOTHING


def _list_or_none(value: Any) -> Any:
    """Return the value if it is a list; ``None`` for any other value, as in a damaged profile."""
    return value if isinstance(value, list) else None


def _intern_nested_lists(value: Any, known: dict[str, Any]) -> Any:
    """Return nested lists as interned nested tuples; ``None`` for an empty value."""
    if not value:
        return None
    key = repr(value)
    if key not in known:
        known[key] = _to_tuple(value)
    return known[key]


def _to_tuple(value: Any) -> Any:
    return tuple(_to_tuple(x) for x in value) if isinstance(value, list) else value
