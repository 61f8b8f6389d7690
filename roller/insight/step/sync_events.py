"""Waits that a profile tells of: which stream waits for which event, and which call for what.

What is told is a dependency even where nothing had to wait: after a change it may have to.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from roller.insight.step.kineto_reader import Event
from roller.insight.step.task_drafts import TaskDraft

_WHOLE_DEVICE = ("DeviceSynchronize", "CtxSynchronize", "ContextSynchronize")
_ONE_STREAM, _ONE_EVENT = "StreamSynchronize", "EventSynchronize"
#: How much sooner a task may have started than what it is told to wait for ended: clocks of streams differ.
_EARLY_US = 5.0


class SyncEvents:
    """What the calls and the records of waits in a profile say.

    Parameters
    ----------
    waits
        Records of waits; profiles of CUDA have them since 2024.
    streams
        Device tasks by stream, in order.
    call_of
        Correlation -> call.
    """

    def __init__(
        self, waits: Iterable[Event], streams: Mapping[str, Sequence[TaskDraft]], call_of: Mapping[int, TaskDraft]
    ) -> None:
        self.waits, self.call_of = list(waits), call_of
        self.issued = {
            lane: sorted(((t.call.start, t.id, t) for t in own if t.call is not None), key=lambda row: row[:2])
            for lane, own in streams.items()
        }
        self.of_call = {e.correlation: e.arguments for e in self.waits if e.correlation is not None}

    def streams(self) -> dict[int, list[TaskDraft]]:
        """Return tasks that were told to wait, by id, with the tasks of other streams that they were to wait for."""
        found: dict[int, list[TaskDraft]] = {}
        for event in sorted(self.waits, key=lambda e: (e.start_us, e.correlation or 0)):
            call = self.call_of.get(-1 if event.correlation is None else event.correlation)
            source = self._recorded(event.arguments)
            if call is None or source is None:
                continue
            own = self.issued.get(_lane(event.arguments, "stream"), [])
            context = bisect_left(own, (call.start,))
            target = own[context][2] if context < len(own) else None
            if target is None or source.lane == target.lane or source in found.get(target.id, ()):
                continue
            # a record that the times contradict is another event's of the same number
            if source.start < target.start and source.end <= target.start + _EARLY_US:
                found.setdefault(target.id, []).append(source)
        return found

    def call(self, call: TaskDraft, until: float) -> list[TaskDraft]:
        """Return the tasks that a synchronising call waits for by what it is; none that ended behind ``until``."""
        said = self.of_call.get(-1 if call.correlation is None else call.correlation, {})
        if any(name in call.name for name in _WHOLE_DEVICE):
            lanes = list(self.issued)
        elif _ONE_STREAM in call.name:
            lane = _lane(said, "stream")
            lanes = [lane] if lane in self.issued else list(self.issued) if len(self.issued) == 1 else []
        elif _ONE_EVENT in call.name:
            source = self._recorded(said)
            return [source] if source is not None and source.end <= until else []
        else:
            return []
        last = [self._last(lane, call.start) for lane in lanes]
        return [task for task in last if task is not None and task.end <= until]

    def _recorded(self, said: Mapping[str, Any]) -> TaskDraft | None:
        """Return the last task that a stream had been given when an event was recorded on it."""
        record = self.call_of.get(_number(said.get("wait_on_cuda_event_record_corr_id")))
        return None if record is None else self._last(_lane(said, "wait_on_stream"), record.start)

    def _last(self, lane: str, before_us: float) -> TaskDraft | None:
        own = self.issued.get(lane, [])
        context = bisect_left(own, (before_us,))
        return own[context - 1][2] if context else None


def _lane(said: Mapping[str, Any], stream: str) -> str:
    """Return the lane of a stream, as the device's tasks name it."""
    return f"device {said.get('device')}, stream {said.get(stream)}"


def _number(value: Any) -> int:
    return value if isinstance(value, int) else -1
