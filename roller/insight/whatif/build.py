"""Makes a graph of a profile: one latency and one gap for a device, and every wait tied to what it waited for."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

from roller.insight.whatif.gradients import gradients
from roller.insight.whatif.graph import Because, Dependency, Gradient, Graph, Kind, Lane, Place, Task
from roller.insight.whatif.host import host
from roller.insight.whatif.items import Item
from roller.insight.whatif.kineto import Event
from roller.insight.whatif.places import is_loading, places
from roller.insight.whatif.told import Told

#: A launch that lasts longer has waited, where the queue of launches is full; shorter ones, and those where it is not,
#: are only slow.
LONG_CALL_US = 20.0
#: Share of a queue's places that must be in sight for it to be full, since some launches are no kernels.
_FULL = 0.88
_WAITING = ("Synchronize", "Memcpy", "Free")
#: A pause of a thread that another thread may have ended.
PAUSE_US = 200.0
#: How far clocks of calls and of devices disagree, and whole microseconds of older profiles round.
_TOLERANCE_US, _ROUNDING_US, _EARLY_US = 2.0, 0.5, 5.0
#: How long before a task another stream's may have ended that it waited for; more where an event says that it did.
_NEAR_US, _NEAR_EVENT_US = 8.0, 40.0
#: A kernel that waited so long behind its launch was queued.
_QUEUED_US = 30.0
_MARKED_WAIT = "WaitEvent"


def build(events: Iterable[Event], *, rank: int = 0, name: str = "profile", overhead_us: float | None = None) -> Graph:
    """Return the graph of one process's profile.

    Parameters
    ----------
    events
        As :func:`~roller.insight.whatif.kineto.read_events` gives them, in any order.
    rank
        Of the process in its job.
    name
        Of the profile.
    overhead_us
        What recording took for every event of a thread, where that is known.
    """
    rows = list(events)
    builder = _Builder(rows, rank)
    graph = builder.graph(name)
    return graph if not overhead_us else replace(graph, overhead_us=_overheads(rows, builder.threads, overhead_us))


def _overheads(
    events: Sequence[Event], threads: Mapping[str, Sequence[Item]], each_us: float
) -> dict[int, tuple[float, float]]:
    """Return what recording took within every call and behind it: so much for each event that began there."""
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


_BEFORE = Place(iteration=-1)


class _Builder:
    def __init__(self, events: list[Event], rank: int) -> None:
        self.rank = rank
        self.dependencies: list[Dependency] = []
        device = [e for e in events if e.kind not in ("call", "operator", "mark", "wait")]
        launched = {e.correlation for e in device if e.correlation is not None}
        calls = [e for e in events if e.kind == "call"]
        busy = {e.lane for e in calls if e.correlation in launched}
        if device and busy:
            # Threads that launch nothing watch others: they poll events, and hold nobody back.
            calls = [e for e in calls if e.lane in busy]
        elif not device:
            calls = [e for e in events if e.kind == "operator"]
        calls += _loading(events, calls)
        where = places(calls, events)
        self.call_of: dict[int, Item] = {}
        self.threads = self._threads(calls, where)
        self.streams = self._streams(device)
        items = [*(t for own in self.threads.values() for t in own), *(t for own in self.streams.values() for t in own)]
        self.items = sorted(items, key=lambda t: (t.start, t.end, t.lane.kind, t.lane.name))
        for number, item in enumerate(self.items):
            item.id = number
        self.gradients = gradients([e for e in events if e.kind == "operator"], self.threads)
        self.told = Told([e for e in events if e.kind == "wait"], self.streams, self.call_of)

    def _threads(self, calls: Sequence[Event], where: Sequence[Place]) -> Mapping[str, list[Item]]:
        """Return the calls by thread; one within another is part of it, with what it launched."""
        threads: dict[str, list[Item]] = defaultdict(list)
        ordered = sorted(range(len(calls)), key=lambda n: (calls[n].start_us, -calls[n].duration_us, calls[n].name))
        for event, place in ((calls[n], where[n]) for n in ordered):
            own = threads[event.lane]
            last = own[-1] if own else None
            if last is None or event.end_us > last.end or event.start_us >= last.end:
                item = Item(event, _KINDS.get(event.kind, "cpu"), Lane(self.rank, "thread", event.lane))
                item.place = place
                if last is not None:
                    item.after(last)
                own.append(item)
                last = item
            if event.correlation is not None:
                self.call_of[event.correlation] = last
        return threads

    def _streams(self, device: Sequence[Event]) -> Mapping[str, list[Item]]:
        streams: dict[str, list[Item]] = defaultdict(list)
        for event in sorted(device, key=lambda e: (e.start_us, e.duration_us, e.name)):
            own = streams[event.lane]
            kind: Kind = event.kind  # type: ignore[assignment]
            item = Item(event, kind, Lane(self.rank, "stream", event.lane))
            item.call = None if event.correlation is None else self.call_of.get(event.correlation)
            if item.call is not None:
                item.place = item.call.place
                item.call.last = item
            elif own:  # a lost launch stood behind that of the task before
                item.place = own[-1].place._replace(operator="", shapes=(), dtypes=())
            else:  # it was under way when the profile began
                item.place = _BEFORE
            if own:
                item.after(own[-1])
            own.append(item)
        return streams

    def graph(self, name: str) -> Graph:
        """Return the graph."""
        self.waits = {lane: [c.start for c in own if _MARKED_WAIT in c.name] for lane, own in self.threads.items()}
        latency, gap = self._lags()
        self.by_end = sorted((t for own in self.streams.values() for t in own), key=lambda t: (t.end, t.id))
        self.ends = [t.end for t in self.by_end]
        self.launches = sorted(t.call.start for t in self.by_end if t.call is not None)
        self._order_streams(latency, gap, self.told.streams())
        self._order_waits()
        self._order_queues()
        self._order_threads()
        origin = min((t.start for t in self.items), default=0.0)
        held = {d.target for d in self.dependencies if not d.to_end}
        tasks = [
            Task(t.id, t.name, t.kind, t.lane, t.own, t.start - origin, t.end - origin, t.unexplained,
                 place=t.place, size_bytes=t.size_bytes)
            for t in self.items
        ]  # fmt: skip
        starts = {t.id: t.measured_start_us for t in tasks if t.id not in held}
        return Graph(tasks, self.dependencies, starts, latency, gap, name, self.gradients)

    def _lags(self) -> tuple[float, float]:
        """Return the latency of launches and the gap between kernels: medians where nothing else was waited for."""
        latencies, gaps = [], []
        for item in (t for own in self.streams.values() for t in own if t.call is not None):
            launch, previous = item.call, item.previous
            assert launch is not None
            if self._is_marked(item, launch):
                continue
            if previous is None or previous.end < launch.start:
                latencies.append(item.start - launch.start)
            elif item.start - launch.start > _QUEUED_US:
                gaps.append(item.start - previous.end)
        return (max(0.0, median(latencies)) if latencies else 0.0), (median(gaps) if gaps else 1.0)

    def _add(self, source: Item, of_end: bool, target: Item, to_end: bool, lag: float, because: Because) -> None:
        self.dependencies.append(Dependency(source.id, of_end, target.id, to_end, lag, because))

    def _order_streams(self, latency: float, gap: float, told: Mapping[int, Sequence[Item]]) -> None:
        tied: list[tuple[Item, Item]] = []
        late: list[tuple[Item, float]] = []
        for item in (t for own in self.streams.values() for t in own):
            ready = self._ready(item, latency, gap)
            launch = item.call
            is_late = launch is None or item.start > launch.start + 3 * latency
            is_late = is_late and ready != float("-inf") and item.start > ready + _TOLERANCE_US
            others = told.get(item.id, ())
            if is_late and not others and launch is not None:
                found = self._awaited(item, launch)
                others = () if found is None else (found,)
            tied += [(other, item) for other in others]
            if is_late:
                late.append((item, max([ready, *(other.end for other in others)])))
        near = [t.start - o.end for o, t in tied if abs(t.start - o.end) <= _NEAR_EVENT_US]
        lag = max(0.0, median(near)) if near else 0.0
        for other, item in tied:
            self._add(other, True, item, False, lag, "event")
        waiting = {item.id for _, item in tied}
        for item, ready in late:
            if item.start > ready + (_NEAR_EVENT_US if item.id in waiting else 0.0):
                item.unexplained = item.start - ready

    def _ready(self, item: Item, latency: float, gap: float) -> float:
        """Tie a device task to the one before and to its launch, and return when they let it start."""
        previous, launch = item.previous, item.call
        if previous is not None:
            self._add(previous, True, item, False, gap, "stream")
        if launch is not None:
            self._add(launch, False, item, False, latency, "launch")
        return max(
            previous.end + gap if previous is not None else float("-inf"),
            launch.start + latency if launch is not None else float("-inf"),
        )

    def _is_marked(self, item: Item, launch: Item) -> bool:
        """Whether the launching thread made a stream wait for an event, between the stream's launch before and this."""
        waits = self.waits[launch.lane.name]
        before = bisect_right(waits, launch.start) - 1
        since = item.previous.call.start if item.previous is not None and item.previous.call is not None else 0.0
        return before >= 0 and waits[before] >= since

    def _awaited(self, item: Item, launch: Item) -> Item | None:
        """Return the task of another stream whose end a late task started behind; ``None`` where there is none."""
        near = _NEAR_EVENT_US if self._is_marked(item, launch) else _NEAR_US
        at = bisect_right(self.ends, item.start + _EARLY_US)
        while at > 0 and self.ends[at - 1] >= item.start - near:
            other = self.by_end[at - 1]
            at -= 1
            launched = other.call is None or other.call.start < launch.start
            if other.lane != item.lane and launched and other.start < item.start:
                return other
        return None

    def _order_waits(self) -> None:
        """Tie the end of every call that waited to what it waited for, and leave it the way back as its own time."""
        copies: dict[int, list[Item]] = defaultdict(list)
        for item in self.by_end:
            if item.call is not None and item.kind in ("copy", "set"):
                copies[item.call.id].append(item)
        for call in (c for own in self.threads.values() for c in own if c.kind == "launch"):
            waits = any(part in call.name for part in _WAITING)
            if not waits and not (call.own > LONG_CALL_US and self._is_queue_full(call)):
                continue
            own = [t for t in copies[call.id] if t.end <= call.end + _ROUNDING_US]
            others = own[-1:] or self.told.call(call, call.end + _ROUNDING_US)
            if not others and (last := self._last_before(call)) is not None:
                others = [last]
            if others:
                for other in others:
                    self._add(other, True, call, True, 0.0, "synchronisation")
                since = max([call.start, *(other.end for other in others)])
                call.own, call.kind = max(0.0, call.end - since), "sync"

    def _order_queues(self) -> None:
        """Let a launch wait for the task that was launched so long before that the queue has no place else.

        Where the profile shows that it did not wait, the queue is longer.
        """
        for own in self.streams.values():
            for task, later in zip(own, own[host().launch_queue_places :], strict=False):
                if later.call is not None and task.end <= later.call.end:
                    self._add(task, True, later.call, True, 0.0, "queue")

    def _is_queue_full(self, call: Item) -> bool:
        """Return whether so much was launched and had not ended that a launch has to wait; else it was only slow."""
        launched = bisect_right(self.launches, call.start)
        return launched - bisect_right(self.ends, call.start) >= _FULL * host().launch_queue_places

    def _last_before(self, call: Item) -> Item | None:
        """Return the device's last task that was launched before a call, and ended within it."""
        at = bisect_right(self.ends, call.end + _ROUNDING_US)
        while at > 0 and self.ends[at - 1] > call.start:
            other = self.by_end[at - 1]
            if other.call is not None and other.call.start < call.start:
                return other
            at -= 1
        return None

    def _order_threads(self) -> None:
        calls = sorted((c for own in self.threads.values() for c in own), key=lambda c: (c.end, c.id))
        ends = [c.end for c in calls]

        def last_of_others(item: Item, since: float) -> Item | None:
            at = bisect_right(ends, item.start)
            while at > 0 and ends[at - 1] > since:
                if calls[at - 1].lane != item.lane and calls[at - 1].id != item.id:
                    return calls[at - 1]
                at -= 1
            return None

        for own in self.threads.values():
            first = last_of_others(own[0], float("-inf"))
            if first is not None:
                self._add(first, True, own[0], False, own[0].start - first.end, "hand-over")
            for one, then in pairwise(own):
                pause = then.start - one.end
                other = last_of_others(then, one.end) if pause > PAUSE_US else None
                self._add(one, True, then, False, 0.0 if other is not None else pause, "thread")
                if other is not None:
                    self._add(other, True, then, False, then.start - other.end, "hand-over")


#: What an event on a thread becomes.
_KINDS: Mapping[str, Kind] = {"call": "launch", "mark": "data"}


def _loading(events: Sequence[Event], calls: Sequence[Event]) -> list[Event]:
    """Return the loading of batches on the threads of the calls: a task, not a gap of the call before.

    Where calls to the device are made meanwhile they stay, and the loading is only their place.
    """
    starts: dict[str, list[float]] = {}
    for call in sorted(calls, key=lambda e: e.start_us):
        starts.setdefault(call.lane, [])
        if call.kind == "call":
            starts[call.lane].append(call.start_us)
    found = [e for e in events if is_loading(e) and e.lane in starts]
    return [e for e in found if bisect_right(starts[e.lane], e.end_us) == bisect_right(starts[e.lane], e.start_us)]


def join(graphs: Sequence[Graph]) -> Graph:
    """Return the graphs of several ranks as one: a collective ends its transfer's time after the last rank came to it.

    Clocks of ranks are set by the ends of the collectives they share. What a collective takes without waiting is the
    shortest time of all ranks.
    """
    tasks: list[Task] = []
    dependencies: list[Dependency] = []
    starts: dict[int, float] = {}
    members: dict[tuple[str, int], list[int]] = defaultdict(list)
    reduced: list[Gradient] = []
    overhead: dict[int, tuple[float, float]] = {}
    shifts = _shifts(graphs)
    for rank, (graph, shift) in enumerate(zip(graphs, shifts, strict=True)):
        base = len(tasks)
        seen: dict[str, int] = defaultdict(int)
        for task in graph.tasks:
            if task.kind == "collective":
                members[task.name, seen[task.name]].append(base + task.id)
                seen[task.name] += 1
            tasks.append(
                replace(
                    task, id=base + task.id, lane=task.lane._replace(rank=rank),
                    measured_start_us=task.measured_start_us + shift, measured_end_us=task.measured_end_us + shift,
                )
            )  # fmt: skip
        dependencies += [replace(d, source=d.source + base, target=d.target + base) for d in graph.dependencies]
        starts |= {base + n: at + shift for n, at in graph.starts_us.items()}
        reduced += [g.moved(base) for g in graph.gradients]
        overhead |= {base + n: took for n, took in graph.overhead_us.items()}
    for group in members.values():
        if len(group) < 2:
            continue
        transfer = min(tasks[n].measured_end_us - tasks[n].measured_start_us for n in group)
        for one in group:
            tasks[one] = replace(tasks[one], duration_us=transfer)
            dependencies += [Dependency(n, False, one, True, 0.0, "collective") for n in group if n != one]
    latency, gap = median(g.latency_us for g in graphs), median(g.gap_us for g in graphs)
    return Graph(tasks, dependencies, starts, latency, gap, ", ".join(g.name for g in graphs), reduced,
                 overhead_us=overhead)  # fmt: skip


def _shifts(graphs: Sequence[Graph]) -> list[float]:
    """Return what to add to each rank's times, so that the collectives of all end together."""

    def ends(graph: Graph) -> dict[tuple[str, int], float]:
        seen: dict[str, int] = defaultdict(int)
        found = {}
        for task in graph.tasks:
            if task.kind == "collective":
                found[task.name, seen[task.name]] = task.measured_end_us
                seen[task.name] += 1
        return found

    first, shifts = ends(graphs[0]), [0.0]
    for graph in graphs[1:]:
        own = ends(graph)
        both = [first[key] - own[key] for key in first.keys() & own.keys()]
        shifts.append(median(both) if both else 0.0)
    return [s - min(shifts) for s in shifts]
