"""Order of a device's tasks: each depends on its stream's previous task, its launch, and tasks in other streams.

A wait beyond these dependencies is unexplained; it is counted but never kept as a lag.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from roller.insight.cost.host_costs import load_host_costs
from roller.insight.step.graph import Dependency, DependencyKind
from roller.insight.step.sync_events import SyncEvents
from roller.insight.step.task_drafts import TaskDraft

#: Parts of the names of calls that wait for the device, so that their duration is not only their own work.
WAITING = ("Synchronize", "Memcpy", "Free")
#: Tolerances for rounding to whole microseconds in older profiles and for differences between the clocks of calls and
#: devices.
ROUNDING_US = 0.5
_TOLERANCE_US, _EARLY_US = 2.0, 5.0
#: Longest time from the end of another stream's task to the start of a task that waited for it, without and with an
#: event that marks the wait.
_NEAR_US, _NEAR_EVENT_US = 8.0, 40.0
#: A kernel was queued if its stream was busy for this long after the launch. A pause longer than the largest gap is a
#: wait.
_QUEUED_US, _MOST_GAP_US = 30.0, 20.0
#: Longest latency of a launch: a kernel that starts later has waited.
MOST_LATENCY_US = 100.0
#: A launch is late if its kernel starts later than this many latencies.
_LATE = 3.0
#: The launch queue is full if kernels hold at least this share of its slots, since some launches are not kernels.
_FULL = 0.88
#: Smallest share of a wait for which other streams must keep the device busy to explain it, and share of a kernel's
#: duration, at its end, in which another kernel may start.
_BUSY, _TAIL = 0.95, 0.1
_MARKED_WAIT = "WaitEvent"


class LaunchLags(NamedTuple):
    """The launch latency, the gap between kernels, and whether the latency is measured."""

    latency_us: float
    gap_us: float
    is_measured: bool


class _LaunchDependency(NamedTuple):
    """The launch event on which a task depends, and the task's latest start without a wait."""

    of_end: bool
    lag_us: float
    ready_us: float
    due_us: float


class DeviceTaskOrder:
    """The device tasks of a profile, in order by stream, and their dependencies."""

    def __init__(
        self, streams: Mapping[str, list[TaskDraft]], threads: Mapping[str, list[TaskDraft]], sync_events: SyncEvents
    ) -> None:
        self.streams, self.sync_events = streams, sync_events
        self.dependencies: list[Dependency] = []
        self.waits = {lane: [c.start for c in own if _MARKED_WAIT in c.name] for lane, own in threads.items()}
        self.by_end = sorted((t for own in streams.values() for t in own), key=lambda t: (t.end, t.id))
        self.ends = [t.end for t in self.by_end]
        self.launches = sorted(t.call.start for t in self.by_end if t.call is not None)
        self.launched = Counter(t.call.id for t in self.by_end if t.call is not None)
        self.issued: dict[str, list[tuple[float, int, TaskDraft]]] = {
            lane: sorted(
                ((t.call.start, t.id, t) for t in own if t.call is not None),
                key=lambda row: row[:2],
            )
            for lane, own in streams.items()
        }
        self.lags = self._median_launch_lags()
        self.busy = {
            device: _busy_spans(own, _TOLERANCE_US + self.lags.gap_us)
            for device, own in self._occupying_tasks_by_device()
        }
        # the time from the end of a call of median duration to its kernel
        calls = [t.call.end - t.call.start for t in self.by_end if t.call is not None]
        self.behind_us = max(0.0, self.lags.latency_us - (median(calls) if calls else 0.0))

    def _occupying_tasks_by_device(self) -> list[tuple[str, list[TaskDraft]]]:
        """Return the tasks that occupy each device: all except copies to and from the host."""
        found: dict[str, list[TaskDraft]] = defaultdict(list)
        for task in self.by_end:
            if task.kind != "copy" or "DtoD" in task.name:
                found[_device_name_of_task(task)].append(task)
        return list(found.items())

    def _median_launch_lags(self) -> LaunchLags:
        """Return the median launch latency and the median gap, over tasks that wait for nothing else."""
        # The first task of a stream may wait for work from before the profile, so it counts only if there is no other
        # task. A time longer than the longest latency is a wait.
        first: list[float] = []
        latencies: list[float] = []
        gaps: list[float] = []
        for item in (t for own in self.streams.values() for t in own if t.call is not None):
            launch, previous = item.call, item.previous
            assert launch is not None
            if self._last_wait_event_us(item, launch) is not None:
                continue
            if previous is None or previous.end < launch.start:
                late = item.start - launch.start
                if late <= MOST_LATENCY_US:
                    (first if previous is None else latencies).append(late)
            elif (
                previous.end > max(launch.start + _QUEUED_US, launch.end) and item.start - previous.end <= _MOST_GAP_US
            ):
                gaps.append(item.start - previous.end)
        found = latencies or first
        latency = median(found) if found else load_host_costs().launch_latency_us
        return LaunchLags(max(0.0, latency), median(gaps) if gaps else 1.0, bool(found))

    def find_task_dependencies(self) -> list[Dependency]:
        """Return the dependencies of all device tasks and store each task's unexplained wait."""
        waits = self.sync_events.awaited_tasks_by_waiting_task()
        tied: list[tuple[TaskDraft, TaskDraft]] = []
        late: list[tuple[TaskDraft, float]] = []
        for item in (t for own in self.streams.values() for t in own):
            ready, is_late = self._add_stream_launch_dependencies(item)
            others: Sequence[TaskDraft] = waits.get(item.id, ())
            if is_late and not others and item.call is not None:
                others = self._awaited_tasks_in_other_stream(item, item.call, ready)
            tied += [(other, item) for other in others]
            if is_late:
                late.append((item, max([ready, *(other.end for other in others)])))
        near = [t.start - o.end for o, t in tied if abs(t.start - o.end) <= _NEAR_EVENT_US]
        lag = max(0.0, median(near)) if near else 0.0
        for other, item in tied:
            self._add_dependency(other, True, item, lag, "event")
        waiting = {item.id for _, item in tied}
        for item, ready in late:
            if item.start > ready + (_NEAR_EVENT_US if item.id in waiting else 0.0):
                item.unexplained = item.start - ready
        return self.dependencies

    def _add_dependency(
        self, source: TaskDraft, of_end: bool, target: TaskDraft, lag: float, because: DependencyKind
    ) -> None:
        self.dependencies.append(Dependency(source.id, of_end, target.id, False, lag, because))

    def _add_stream_launch_dependencies(self, item: TaskDraft) -> tuple[float, bool]:
        """Add stream and launch dependencies; return when both were met, and whether the task started after that."""
        gap, ready, due = self.lags.gap_us, float("-inf"), float("-inf")
        if item.previous is not None:
            self._add_dependency(item.previous, True, item, gap, "stream")
            ready = item.previous.end + gap
        if item.call is not None:
            launched = self._launch_dependency(item, item.call, ready)
            self._add_dependency(item.call, launched.of_end, item, launched.lag_us, "launch")
            ready, due = max(ready, launched.ready_us), launched.due_us
        return ready, ready != float("-inf") and item.start > max(due, ready + _TOLERANCE_US)

    def _launch_dependency(self, item: TaskDraft, call: TaskDraft, free: float) -> _LaunchDependency:
        """Return the dependency of a task on its call if the task's stream is free from time ``free`` on."""
        # A long call does other work, such as loading the kernel's module, and launches at its end or, for a graph of
        # many kernels, earlier. The duration of a call that may wait for the device is not its own work.
        latency = self.lags.latency_us
        is_late = item.start > max(free + _TOLERANCE_US, call.start + _LATE * latency)
        lasts = call.end > call.start + _LATE * latency
        if not (is_late and lasts) or self.may_wait_for_device(call):
            return _LaunchDependency(False, latency, call.start + latency, call.start + _LATE * latency)
        if item.start >= call.end - max(latency, _EARLY_US):
            return _LaunchDependency(True, self.behind_us, call.end + self.behind_us, call.end + _LATE * latency)
        if self.launched[call.id] > 1:
            return _LaunchDependency(False, item.start - call.start, item.start, item.start)
        return _LaunchDependency(False, latency, call.start + latency, call.start + _LATE * latency)

    def may_wait_for_device(self, call: TaskDraft) -> bool:
        """Return whether a call may wait for the device, because of its kind or because its queue is full."""
        return any(part in call.name for part in WAITING) or self.is_queue_full(call)

    def _last_wait_event_us(self, item: TaskDraft, launch: TaskDraft) -> float | None:
        """Return the start of the thread's last ``WaitEvent`` since the stream's previous launch, else ``None``."""
        waits = self.waits[launch.lane.name]
        before = bisect_right(waits, launch.start) - 1
        since = item.previous.call.start if item.previous is not None and item.previous.call is not None else 0.0
        return waits[before] if before >= 0 and waits[before] >= since else None

    def _awaited_tasks_in_other_stream(self, item: TaskDraft, launch: TaskDraft, ready: float) -> Sequence[TaskDraft]:
        """Return the task in another stream for which a late task waited, as a list; empty if there is none."""
        marked = self._last_wait_event_us(item, launch)
        near = _NEAR_EVENT_US if marked is not None else _NEAR_US
        at = bisect_right(self.ends, item.start + _EARLY_US)
        while at > 0 and self.ends[at - 1] >= item.start - near:
            other = self.by_end[at - 1]
            at -= 1
            launched = other.call is None or other.call.start < launch.start
            if other.lane != item.lane and launched and other.start < item.start:
                return [other]
        found = self._last_task_before_wait_event(item, marked, ready) if marked is not None else None
        full = self._task_that_freed_device(item, ready)
        both = [other for other in (found, full) if other is not None]
        return [min(both, key=lambda other: (abs(item.start - other.end), other.id))] if both else []

    def _last_task_before_wait_event(self, item: TaskDraft, marked: float, ready: float) -> TaskDraft | None:
        """Return the latest-ending task issued to another stream before a ``WaitEvent`` call, else ``None``."""
        # Only tasks that ended during the wait count.
        found = None
        for lane, own in self.issued.items():
            context = bisect_left(own, (marked,))
            other = own[context - 1][2] if context and lane != item.lane.name else None
            ends = other is not None and ready < other.end <= item.start + _EARLY_US
            if other is not None and ends and (found is None or other.end > found.end):
                found = other
        return found

    def _task_that_freed_device(self, item: TaskDraft, ready: float) -> TaskDraft | None:
        """Return the task whose end let ``item`` start if other streams kept the device busy, else ``None``."""
        # Blocks of a kernel start as blocks of another kernel end, so a kernel may start in another's last wave.
        if item.kind == "copy" and "DtoD" not in item.name:
            return None
        device = _device_name_of_task(item)
        if _covered_time(self.busy.get(device, ([], [])), ready, item.start) < _BUSY * (item.start - ready):
            return None
        at, found = bisect_right(self.ends, item.start), None
        for context in range(at, min(at + 64, len(self.by_end))):  # tasks that still run
            other = self.by_end[context]
            tail = max(_EARLY_US, _TAIL * (other.end - other.start))
            if (
                self._was_occupying_same_device(other, item)
                and other.kind != "collective"
                and other.end <= item.start + tail
            ):
                found = other
                break
        for context in range(at - 1, max(at - 65, -1), -1):  # tasks that have ended
            other = self.by_end[context]
            if other.end <= ready:
                break
            if self._was_occupying_same_device(other, item):
                return other if found is None or item.start - other.end <= found.end - item.start else found
        return found

    def _was_occupying_same_device(self, other: TaskDraft, item: TaskDraft) -> bool:
        is_computing = other.kind != "copy" or "DtoD" in other.name
        return (
            is_computing
            and other.lane != item.lane
            and other.start < item.start
            and _device_name_of_task(other) == _device_name_of_task(item)
        )

    def is_queue_full(self, call: TaskDraft) -> bool:
        """Return whether the launch queue was full at a call, so that the call had to wait."""
        launched = bisect_right(self.launches, call.start)
        return launched - bisect_right(self.ends, call.start) >= _FULL * load_host_costs().launch_queue_places

    def last_task_before_call(self, call: TaskDraft) -> TaskDraft | None:
        """Return the last device task that was launched before a call and ended during it, else ``None``."""
        at = bisect_right(self.ends, call.end + ROUNDING_US)
        while at > 0 and self.ends[at - 1] > call.start:
            other = self.by_end[at - 1]
            if other.call is None or other.call.start < call.start:
                return other
            at -= 1
        return None


def _device_name_of_task(item: TaskDraft) -> str:
    return item.lane.name.split(",")[0]


def _busy_spans(tasks: Sequence[TaskDraft], gap: float) -> tuple[list[float], list[float]]:
    """Return the union of the tasks' time spans as starts and ends, closing gaps of up to ``gap``."""
    starts: list[float] = []
    ends: list[float] = []
    for start, end in sorted((t.start, t.end) for t in tasks):
        if ends and start <= ends[-1] + gap:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(start)
            ends.append(end)
    return starts, ends


def _covered_time(spans: tuple[list[float], list[float]], since: float, until: float) -> float:
    """Return the time between ``since`` and ``until`` that is covered by the spans."""
    starts, ends = spans
    found = 0.0
    for context in range(bisect_right(ends, since), bisect_left(starts, until)):
        found += min(ends[context], until) - max(starts[context], since)
    return found
