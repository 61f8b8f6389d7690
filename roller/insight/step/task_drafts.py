"""A mutable task, used while a graph is built from a profile."""

from __future__ import annotations

from typing import Any

from roller.insight.step.graph import NO_CONTEXT, Kind, Lane
from roller.insight.step.kineto_reader import Event
from roller.insight.step.parse_profile_dtype_names import element_bytes

#: Bytes per element of a collective with no or an unknown dtype: most are float32.
_UNSAID_BYTES = 4
#: More bytes or elements than any event moves.
_MOST_COUNT = 1 << 60


class TaskDraft:
    """A mutable task, made from an event."""

    __slots__ = (
        "call",
        "context",
        "correlation",
        "end",
        "id",
        "kind",
        "lane",
        "last",
        "name",
        "own",
        "previous",
        "size_bytes",
        "start",
        "unexplained",
    )  # fmt: skip

    def __init__(self, event: Event, kind: Kind, lane: Lane) -> None:
        self.name, self.kind, self.lane, self.correlation = event.name, kind, lane, event.correlation
        self.start, self.end, self.own = event.start_us, event.end_us, event.duration_us
        self.unexplained, self.id = 0.0, -1
        self.size_bytes, self.context = _bytes_moved_by_event(event), NO_CONTEXT
        self.call: TaskDraft | None = None
        self.previous: TaskDraft | None = None
        self.last: TaskDraft | None = None  # of a call, the last device task it launched

    def clip_start_to_previous_end(self, previous: TaskDraft) -> None:
        """Clip the start to the end of the previous task, since older profiles have a resolution of one microsecond."""
        self.previous = previous
        if self.start < previous.end:
            self.start, self.end = previous.end, max(self.end, previous.end)
            self.own = self.end - self.start


def _bytes_moved_by_event(event: Event) -> int:
    said = event.arguments
    if event.kind == "collective":
        return _parse_count(said.get("elements")) * element_bytes(str(said.get("dtype", "")), _UNSAID_BYTES)
    return _parse_count(said.get("bytes")) if event.kind in ("copy", "set") else 0


def _parse_count(value: Any) -> int:
    """Return a count from a profile, which may be given as text; return 0 if it is invalid."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return 0
    return number if 0 <= number < _MOST_COUNT else 0
