"""The graph of a profile: one launch latency and one gap per device, and a dependency for each wait."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from roller.insight.cost.host_costs import load_host_costs
from roller.insight.step.device_task_order import MOST_LATENCY_US, ROUNDING_US, WAITING, DeviceTaskOrder
from roller.insight.step.drop_contradictory_dependencies import drop_contradictory_dependencies
from roller.insight.step.graph import Dependency, DependencyKind, Kind, Lane, StepGraph, Task, TaskContext
from roller.insight.step.kineto_reader import Event
from roller.insight.step.marks_around_calls import contexts_of_calls, is_batch_loading
from roller.insight.step.profile_gradients import profile_gradients
from roller.insight.step.sync_events import SyncEvents
from roller.insight.step.task_drafts import TaskDraft
from roller_runtime.core.gc_pause import gc_paused

#: Duration above which a launch has waited if the launch queue is full; other long launches are only slow.
LONG_CALL_US = 20.0
#: Name of calls that only wait, and their time to return in microseconds: the median of 23 public profiles (1 to 68).
_SYNCHRONISES, _RETURN_US = "Synchronize", 6.0
#: PyTorch's mark of an optimizer's step.
_OPTIMIZER = re.compile(r"Optimizer\.step#(\w+)\.step$")
#: Minimum pause of a thread that another thread may have ended.
PAUSE_US = 200.0


@gc_paused()
def build_graph(
    events: Iterable[Event], *, rank: int = 0, name: str = "profile", overhead_us: float | None = None
) -> StepGraph:
    """Return the graph for one process's profile."""
    rows = list(events)
    builder = _ProfileGraphBuilder(rows, rank)
    graph = builder.build(name)
    if overhead_us:
        graph = replace(graph, overhead_us=_recording_overheads_by_call(rows, builder.threads, overhead_us))
    builder.clear_draft_references()
    return graph


def _recording_overheads_by_call(
    events: Sequence[Event], threads: Mapping[str, Sequence[TaskDraft]], each_us: float
) -> dict[int, tuple[float, float]]:
    """Return the recording overhead within and after each call: ``each_us`` per event that begins there."""
    begins: dict[str, list[float]] = defaultdict(list)
    for event in events:
        if event.kind in ("operator", "mark", "call"):
            begins[event.lane].append(event.start_us)
    found = {}
    for lane, own in threads.items():
        starts = sorted(begins[lane])
        for item, then in zip(own, [*own[1:], None], strict=True):
            first, last = bisect_left(starts, item.start), bisect_left(starts, item.end)
            behind = bisect_left(starts, then.start) if then is not None else last
            found[item.id] = (each_us * (last - first), each_us * (behind - last))
    return found


_BEFORE = TaskContext(iteration=-1)


class _ProfileGraphBuilder:
    def __init__(self, events: list[Event], rank: int) -> None:
        self.rank = rank
        self.dependencies: list[Dependency] = []
        device = [e for e in events if e.kind not in ("call", "operator", "mark", "wait")]
        launched = {e.correlation for e in device if e.correlation is not None}
        calls = [e for e in events if e.kind == "call"]
        busy = {e.lane for e in calls if e.correlation in launched}
        if device and busy:
            # Threads that launch nothing only poll events, and no task depends on them.
            calls = [e for e in calls if e.lane in busy]
        elif not device:
            calls = [e for e in events if e.kind == "operator"] or calls
        calls += _batch_loading_marks(events, calls)
        where = contexts_of_calls(calls, events)
        self.call_of: dict[int, TaskDraft] = {}
        self.threads = self._calls_by_thread(calls, where)
        self.streams = self._tasks_by_stream(device)
        items = [
            *(t for own in self.threads.values() for t in own),
            *(t for own in self.streams.values() for t in own),
        ]
        self.items = sorted(items, key=lambda t: (t.start, t.end, t.lane.kind, t.lane.name))
        for number, item in enumerate(self.items):
            item.id = number
        named = (_OPTIMIZER.match(e.name) for e in events if e.kind == "mark")
        self.optimizers = tuple(sorted({found[1] for found in named if found is not None}))
        self.gradients = profile_gradients([e for e in events if e.kind == "operator"], self.threads)
        self.sync_events = SyncEvents([e for e in events if e.kind == "wait"], self.streams, self.call_of)

    def _calls_by_thread(self, calls: Sequence[Event], where: Sequence[TaskContext]) -> Mapping[str, list[TaskDraft]]:
        """Return the calls by thread; a nested call and its launches are part of the outer call."""
        threads: dict[str, list[TaskDraft]] = defaultdict(list)
        ordered = sorted(range(len(calls)), key=lambda n: (calls[n].start_us, -calls[n].duration_us, calls[n].name))
        for event, context in ((calls[n], where[n]) for n in ordered):
            own = threads[event.lane]
            last = own[-1] if own else None
            if last is None or event.end_us > last.end or event.start_us >= last.end:
                item = TaskDraft(event, _KINDS.get(event.kind, "cpu"), Lane(self.rank, "thread", event.lane))
                item.context = context
                if last is not None:
                    item.clip_start_to_previous_end(last)
                own.append(item)
                last = item
            if event.correlation is not None:
                self.call_of[event.correlation] = last
        return threads

    def _tasks_by_stream(self, device: Sequence[Event]) -> Mapping[str, list[TaskDraft]]:
        streams: dict[str, list[TaskDraft]] = defaultdict(list)
        for event in sorted(device, key=lambda e: (e.start_us, e.duration_us, e.name)):
            own = streams[event.lane]
            kind: Kind = event.kind  # type: ignore[assignment]
            item = TaskDraft(event, kind, Lane(self.rank, "stream", event.lane))
            item.call = None if event.correlation is None else self.call_of.get(event.correlation)
            if item.call is not None:
                item.context = item.call.context
                item.call.last = item
            elif own:  # a lost launch came after the launch of the previous task
                item.context = own[-1].context._replace(operator="", shapes=(), dtypes=())
            else:  # the task was running when the profile began
                item.context = _BEFORE
            if own:
                item.clip_start_to_previous_end(own[-1])
            own.append(item)
        return streams

    def clear_draft_references(self) -> None:
        """Clear references between drafts, so that all can be freed at once without the garbage collector."""
        for item in self.items:
            item.call = item.last = item.previous = None

    def build(self, name: str) -> StepGraph:
        """Return the graph of the profile."""
        order = DeviceTaskOrder(self.streams, self.threads, self.sync_events)
        latency, gap, is_measured = order.lags
        self.dependencies += order.find_task_dependencies()
        self._add_wait_dependencies(order)
        self._add_queue_dependencies()
        self._add_thread_order()
        origin = min((t.start for t in self.items), default=0.0)
        tasks = [
            Task(t.id, t.name, t.kind, t.lane, t.own, t.start - origin, t.end - origin, t.unexplained,
                 context=t.context, size_bytes=t.size_bytes)
            for t in self.items
        ]  # fmt: skip
        dependencies = drop_contradictory_dependencies(tasks, self.dependencies)
        left_out = len(self.dependencies) - len(dependencies)
        said = f"Its times contradict {left_out} of its dependencies, which are left out."
        held = {d.target for d in dependencies if not d.to_end}
        starts = {t.id: t.measured_start_us for t in tasks if t.id not in held}
        return StepGraph(
            tasks, dependencies, starts, latency, gap, name, self.gradients, is_latency_measured=is_measured,
            notes=(said,) if left_out else (),
            optimizers=self.optimizers, captured_share=_captured_task_share(order.by_end), origin_us=origin,
        )  # fmt: skip

    def _add_dependency(
        self, source: TaskDraft, of_end: bool, target: TaskDraft, to_end: bool, lag: float, because: DependencyKind
    ) -> None:
        self.dependencies.append(Dependency(source.id, of_end, target.id, to_end, lag, because))

    def _add_wait_dependencies(self, order: DeviceTaskOrder) -> None:
        """Make the end of each waiting call depend on the tasks it awaits; its duration becomes its time to return."""
        copies: dict[int, list[TaskDraft]] = defaultdict(list)
        for item in order.by_end:
            if item.call is not None and item.kind in ("copy", "set"):
                copies[item.call.id].append(item)
        for call in (c for own in self.threads.values() for c in own if c.kind == "launch"):
            waits = any(part in call.name for part in WAITING)
            if not waits and not (call.own > LONG_CALL_US and order.is_queue_full(call)):
                continue
            own = [t for t in copies[call.id] if t.end <= call.end + ROUNDING_US]
            others = own[-1:] or self.sync_events.tasks_awaited_by_call(call, call.end + ROUNDING_US)
            if not others and (last := order.last_task_before_call(call)) is not None:
                others = [last]
            since = max([call.start, *(other.end for other in others)])
            if others:
                for other in others:
                    self._add_dependency(other, True, call, True, 0.0, "synchronisation")
                call.own, call.kind = max(0.0, call.end - since), "sync"
            if _SYNCHRONISES in call.name and call.own > MOST_LATENCY_US:
                # no known task ended so late: the wait is not the call's own time
                call.unexplained, call.own = call.own - _RETURN_US, _RETURN_US

    def _add_queue_dependencies(self) -> None:
        """Make a launch depend on the earlier task whose end frees a slot in the launch queue."""
        # If the profile shows that the launch did not wait, the queue is longer.
        for own in self.streams.values():
            for task, later in zip(own, own[load_host_costs().launch_queue_places :], strict=False):
                if later.call is not None and task.end <= later.call.end:
                    self._add_dependency(task, True, later.call, True, 0.0, "queue")

    def _add_thread_order(self) -> None:
        calls = sorted((c for own in self.threads.values() for c in own), key=lambda c: (c.end, c.id))
        ends = [c.end for c in calls]

        def last_call_of_other_threads(item: TaskDraft, since: float) -> TaskDraft | None:
            at = bisect_right(ends, item.start)
            while at > 0 and ends[at - 1] > since:
                if calls[at - 1].lane != item.lane and calls[at - 1].id != item.id:
                    return calls[at - 1]
                at -= 1
            return None

        for own in self.threads.values():
            first = last_call_of_other_threads(own[0], float("-inf"))
            if first is not None:
                self._add_dependency(first, True, own[0], False, own[0].start - first.end, "hand-over")
            for one, then in pairwise(own):
                pause = then.start - one.end
                other = last_call_of_other_threads(then, one.end) if pause > PAUSE_US else None
                self._add_dependency(one, True, then, False, 0.0 if other is not None else pause, "thread")
                if other is not None:
                    self._add_dependency(other, True, then, False, then.start - other.end, "hand-over")


def _captured_task_share(device: Sequence[TaskDraft]) -> float:
    """Return the share of device tasks whose call launched several tasks."""
    launched = Counter(t.call.id for t in device if t.call is not None)
    return sum(n for n in launched.values() if n > 1) / len(device) if device else 0.0


#: Kind of an event on a thread -> kind of its task.
_KINDS: Mapping[str, Kind] = {"call": "launch", "mark": "data"}


def _batch_loading_marks(events: Sequence[Event], calls: Sequence[Event]) -> list[Event]:
    """Return the marks of batch loading on the threads of the calls; these marks become tasks."""
    # A mark that contains calls to the device is left out: it is only the context of these calls.
    starts: dict[str, list[float]] = {}
    for call in sorted(calls, key=lambda e: e.start_us):
        starts.setdefault(call.lane, [])
        if call.kind == "call":
            starts[call.lane].append(call.start_us)
    found = [e for e in events if is_batch_loading(e) and e.lane in starts]
    return [e for e in found if bisect_right(starts[e.lane], e.end_us) == bisect_right(starts[e.lane], e.start_us)]
