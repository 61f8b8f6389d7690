"""Reads profiles of PyTorch (Kineto's Chrome JSON), of every spelling, an event at a time."""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TextIO, cast

from roller.core.files import open_file
from roller.errors import ArtifactError
from roller.insight.whatif.graph import Kind

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
_KNOWN = _CALLS | _DEVICE.keys() | _OPERATORS | _MARKS | {_SYNC}
_NOTHING: Mapping[str, Any] = {}
#: Characters of one event at most: a damaged or hostile file must not fill the memory.
_MOST_EVENT = 1 << 26
_CHUNK = 1 << 20
_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
_SAID = re.compile(rf'"{OVERHEAD}"\s*:\s*"?([0-9.eE+-]+)')


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


def read_events(path: str | Path) -> list[Event]:
    """Return the events of a profile that a graph is made of.

    Parameters
    ----------
    path
        Kineto's JSON, plain or gzipped, an object with ``traceEvents`` or their list. It is read an event at a time.

    Raises
    ------
    ArtifactError
        It cannot be read, is cut off, or is no profile.
    """
    found = []
    shared: dict[str, Any] = {}
    for number, row in enumerate(_rows(Path(path))):
        if not isinstance(row, dict) or row.get("ph") != "X":
            continue
        category = str(row.get("cat") or "").lower()
        if category not in _KNOWN:
            category = _meant(row)
        if category:
            if category == "python_function" and not str(row.get("name")).startswith(MODULE):
                continue
            try:
                found.append(_event(category, row, shared))
            except (TypeError, ValueError, KeyError, OverflowError) as error:
                raise _wrong(path, f"event {number} without a usable name, time and lane ({error!r})") from error
    if all(event.kind == "mark" for event in found):
        raise _wrong(path, "no calls, kernels or operators in it")
    return found


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
    if not (math.isfinite(start) and 0 <= duration < math.inf):
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


def read_overhead(path: str | Path) -> float | None:
    """Return the microseconds that recording took an event; ``None`` of a profile that does not say."""
    with _opened(Path(path)) as file:
        found = _SAID.search(_head(file, Path(path), whole=True))
    return None if found is None else float(found[1])


def _rows(path: Path) -> Iterator[Any]:
    """Yield the events of a file, which is never held whole."""
    try:
        with _opened(path) as file:
            yield from _array(file, path)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise _wrong(path, f"what cannot be read ({error})") from error


def _opened(path: Path) -> TextIO:
    with open_file(path) as file:
        zipped = file.read(2) == b"\x1f\x8b"
    return cast("TextIO", gzip.open(path, "rt", encoding="utf-8")) if zipped else path.open(encoding="utf-8")


def _array(file: TextIO, path: Path) -> Iterator[Any]:
    """Yield the members of the list of events, one decoded at a time."""
    buffer, decode = _head(file, path), json.JSONDecoder().raw_decode
    position, more = 0, True
    while True:
        while position < len(buffer) and buffer[position] in " \t\r\n,":
            position += 1
        if position < len(buffer) and buffer[position] == "]":
            return
        try:
            row, end = decode(buffer, position)
            # A number at the end of what is read may go on; objects, which events are, end where they end.
            yield row
            position = end
        except (ValueError, RecursionError) as error:
            if not more or isinstance(error, RecursionError):
                raise _wrong(path, f"a list of events that is cut off or broken ({error})") from error
            if len(buffer) - position > _MOST_EVENT:
                raise _wrong(path, f"an event of more than {_MOST_EVENT} characters") from error
            text = file.read(_CHUNK)
            more = bool(text)
            buffer, position = buffer[position:] + text, 0


def _head(file: TextIO, path: Path, *, whole: bool = False) -> str:
    """Return what was read, from behind the bracket of the list on; ``whole`` what stands before it, too."""
    buffer = file.read(_CHUNK)
    if buffer.lstrip().startswith("["):
        return buffer.lstrip()[1:]
    if not buffer.lstrip().startswith("{"):
        raise _wrong(path, "what is no JSON object or list")
    while (found := _EVENTS.search(buffer)) is None:
        text = file.read(_CHUNK)
        if not text:
            raise _wrong(path, "no traceEvents in it")
        buffer = buffer[-64:] + text if len(buffer) > 64 * _CHUNK else buffer + text
    return buffer if whole else buffer[found.end() :]


def _wrong(path: str | Path, got: str) -> ArtifactError:
    return ArtifactError(
        f"{path}: expected a profile of PyTorch, got {got}. Write it with torch.profiler's export_chrome_trace."
    )
