"""Synchronization events in a profile: the event for which each stream waits, and the tasks for which each call waits.

An event is a dependency even if no task had to wait in the profile, since a task may have to wait after a change.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from roller.insight.step.kineto_reader import Event
from roller.insight.step.task_drafts import TaskDraft

_WHOLE_DEVICE = ("DeviceSynchronize", "CtxSynchronize", "ContextSynchronize")
_ONE_STREAM, _ONE_EVENT = "StreamSynchronize", "EventSynchronize"
#: Longest time by which a task may start before the end of the task it waits for, since clocks of streams differ.
_EARLY_US = 5.0


class SyncEvents:
    """The synchronizations in a profile, from its calls and its wait records (recorded by CUDA since 2024)."""

    def __init__(
        self, waits: Iterable[Event], streams: Mapping[str, Sequence[TaskDraft]], call_of: Mapping[int, TaskDraft]
    ) -> None:
        self.waits, self.call_of = list(waits), call_of
        self.issued = {
            lane: sorted(
                ((t.call.start, t.id, t) for t in own if t.call is not None),
                key=lambda row: row[:2],
            )
            for lane, own in streams.items()
        }
        self.of_call = {e.correlation: e.arguments for e in self.waits if e.correlation is not None}

    def awaited_tasks_by_waiting_task(self) -> dict[int, list[TaskDraft]]:
        """Map the id of each waiting device task to the tasks on other streams for which the task waits."""
        found: dict[int, list[TaskDraft]] = {}
        for event in sorted(self.waits, key=lambda e: (e.start_us, e.correlation or 0)):
            call = self.call_of.get(-1 if event.correlation is None else event.correlation)
            source = self._last_task_before_event_record(event.arguments)
            if call is None or source is None:
                continue
            own = self.issued.get(_stream_lane_name(event.arguments, "stream"), [])
            context = bisect_left(own, (call.start,))
            target = own[context][2] if context < len(own) else None
            if target is None or source.lane == target.lane or source in found.get(target.id, ()):
                continue
            # a record that the times contradict belongs to a different event with the same number
            if source.start < target.start and source.end <= target.start + _EARLY_US:
                found.setdefault(target.id, []).append(source)
        return found

    def tasks_awaited_by_call(self, call: TaskDraft, until: float) -> list[TaskDraft]:
        """Return the tasks for which a synchronizing call waits, excluding those that end after ``until``."""
        said = self.of_call.get(-1 if call.correlation is None else call.correlation, {})
        if any(name in call.name for name in _WHOLE_DEVICE):
            lanes = list(self.issued)
        elif _ONE_STREAM in call.name:
            lane = _stream_lane_name(said, "stream")
            lanes = [lane] if lane in self.issued else list(self.issued) if len(self.issued) == 1 else []
        elif _ONE_EVENT in call.name:
            source = self._last_task_before_event_record(said)
            return [source] if source is not None and source.end <= until else []
        else:
            return []
        last = [self._last_task_issued_to_lane(lane, call.start) for lane in lanes]
        return [task for task in last if task is not None and task.end <= until]

    def _last_task_before_event_record(self, said: Mapping[str, Any]) -> TaskDraft | None:
        """Return the last task issued to a stream before an event was recorded on it; ``None`` if there is none."""
        record = self.call_of.get(_int_or_minus_1(said.get("wait_on_cuda_event_record_corr_id")))
        return (
            None
            if record is None
            else self._last_task_issued_to_lane(_stream_lane_name(said, "wait_on_stream"), record.start)
        )

    def _last_task_issued_to_lane(self, lane: str, before_us: float) -> TaskDraft | None:
        own = self.issued.get(lane, [])
        context = bisect_left(own, (before_us,))
        return own[context - 1][2] if context else None


def _stream_lane_name(said: Mapping[str, Any], stream: str) -> str:
    return f"device {said.get('device')}, stream {said.get(stream)}"


def _int_or_minus_1(value: Any) -> int:
    return value if isinstance(value, int) else -1
