"""Where the time of a run goes: processors and devices, lanes, phases and layers, and the path nothing can shorten."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from roller.insight.step.graph import NETWORK_KINDS, Dependency, Lane, StepGraph, Task
from roller.insight.step.simulate import Timeline


@dataclass(frozen=True)
class Breakdown:
    """Where the time goes: the three sum to the whole.

    Parameters
    ----------
    cpu_only_us
        Nothing runs on a device.
    device_only_us
        A device runs, and every thread waits, or has nothing to do.
    both_us
        Both.
    """

    cpu_only_us: float
    device_only_us: float
    both_us: float

    @property
    def total_us(self) -> float:
        """The whole."""
        return self.cpu_only_us + self.device_only_us + self.both_us


@dataclass(frozen=True)
class LanePart:
    """A lane's share of the critical path, and what it works."""

    lane: str
    tasks: int
    busy_us: float
    critical_us: float


@dataclass(frozen=True)
class Part:
    """What one phase or layer takes.

    Parameters
    ----------
    name
        Of the phase or the layer; ``""`` outside of all layers.
    tasks
        In it.
    cpu_us, device_us
        Durations on threads and on devices, without waits and the host's code between calls.
    critical_us
        Length of the critical path in it, with the lags and the host's code behind its tasks.
    """

    name: str
    tasks: int
    cpu_us: float
    device_us: float
    critical_us: float


def breakdown(graph: StepGraph, timeline: Timeline) -> Breakdown:
    """Return how long devices, processors and both work: a gap behind a call is work, a wait within one is none."""
    device = _union((timeline.start_us[t.id], timeline.end_us[t.id]) for t in graph.tasks if t.on_device)
    waits = {
        t.id: (timeline.start_us[t.id], max(timeline.start_us[t.id], timeline.end_us[t.id] - t.duration_us))
        for t in graph.tasks if t.kind == "sync"
    }  # fmt: skip
    begin, end = min(timeline.start_us, default=0.0), max(timeline.end_us, default=0.0)
    # Behind its last call a thread has nothing to do; a process works while any thread does.
    works: list[tuple[float, float]] = []
    of_lane: dict[Lane, list[int]] = {}
    for task in graph.tasks:
        if task.lane.kind == "thread":
            of_lane.setdefault(task.lane, []).append(task.id)
    for own in of_lane.values():
        first, last = min(timeline.start_us[n] for n in own), max(timeline.end_us[n] for n in own)
        works += _less((first, last), _union(waits[n] for n in own if n in waits))
    busy = _union(works)
    on_device, on_both = _length(device), _length(_meet(device, busy))
    whole = end - begin
    return Breakdown(whole - on_device, on_device - on_both, on_both)


def _union(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if end <= start:
            continue
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def _less(span: tuple[float, float], holes: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    found, at = [], span[0]
    for start, end in holes:
        if start > at:
            found.append((at, start))
        at = max(at, end)
    return [*found, (at, span[1])] if at < span[1] else found


def _meet(one: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    found, i, j = [], 0, 0
    while i < len(one) and j < len(other):
        start, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if start < end:
            found.append((start, end))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return found


def _length(spans: Iterable[tuple[float, float]]) -> float:
    return sum(end - start for start, end in spans)


def lanes(graph: StepGraph, timeline: Timeline) -> tuple[LanePart, ...]:
    """Return the lanes, with the length of the critical path's tasks on each."""
    critical = dict(critical_path(graph, timeline))
    is_joint = any(task.lane.rank for task in graph.tasks)
    tasks: dict[str, list[float]] = {}
    for task in graph.tasks:
        name = f"rank {task.lane.rank}: {task.lane.name}" if is_joint else task.lane.name
        row = tasks.setdefault(name, [0, 0.0, 0.0])
        row[0] += 1
        row[1] += task.duration_us
        row[2] += critical.get(task.id, 0.0)
    rows = [LanePart(name, int(n), busy, path) for name, (n, busy, path) in tasks.items()]
    return tuple(sorted(rows, key=lambda x: (-x.critical_us, -x.busy_us, x.lane)))


def critical_path(graph: StepGraph, timeline: Timeline) -> list[tuple[int, float]]:
    """Return tasks that the end waited for, last first, each with the time it took, lags behind it too."""
    if not graph.tasks:
        return []
    before: dict[tuple[int, bool], list[tuple[int, bool, float]]] = {}
    for d in graph.dependencies:
        before.setdefault((d.target, d.to_end), []).append((d.source, d.of_end, d.lag_us))
    at = max(range(len(graph.tasks)), key=lambda n: timeline.end_us[n])
    of_end, until = True, timeline.end_us[at]
    path: list[tuple[int, float]] = []
    for _ in range(2 * len(graph.tasks)):
        start = timeline.start_us[at]
        waits = before.get((at, True), []) if of_end else []
        found = _latest(waits, timeline, start)
        since = timeline.end_us[at] - graph.tasks[at].duration_us if found is not None else start
        path.append((at, max(0.0, until - since)))
        if found is None:
            found = _latest(before.get((at, False), []), timeline, float("-inf"))
            since = start
        if found is None:
            break
        at, of_end, until = found[0], found[1], since
    merged: dict[int, float] = {}
    for number, took in path:
        merged[number] = merged.get(number, 0.0) + took
    return list(merged.items())


def _latest(
    waits: Sequence[tuple[int, bool, float]], timeline: Timeline, later_than: float
) -> tuple[int, bool, float] | None:
    """Return the event that happened last; ``None`` where none did later than that."""

    def when(wait: tuple[int, bool, float]) -> float:
        return (timeline.end_us if wait[1] else timeline.start_us)[wait[0]] + wait[2]

    late = [w for w in waits if when(w) > later_than]
    return max(late, key=when) if late else None


def parts(graph: StepGraph, timeline: Timeline, key: Callable[[Task], str]) -> tuple[Part, ...]:
    """Return what the tasks of every name take that ``key`` gives them, the most of the critical path first."""
    critical = dict(critical_path(graph, timeline))
    rows: dict[str, list[float]] = {}
    for task in graph.tasks:
        if task.is_removed:
            continue
        row = rows.setdefault(key(task), [0, 0.0, 0.0, 0.0])
        row[0] += 1
        row[2 if task.on_device else 1] += task.duration_us
        row[3] += critical.get(task.id, 0.0)
    found = [Part(name, int(n), cpu, device, path) for name, (n, cpu, device, path) in rows.items()]
    return tuple(sorted(found, key=lambda x: (-x.critical_us, -x.device_us, x.name)))


def thread_work_us(graph: StepGraph) -> float:
    """Return how long threads take to issue everything: their calls and the code between them, waits left out.

    Operators that a thread computes itself, where there is no device, are left out, too.
    """
    calls = sum(t.duration_us for t in graph.tasks if t.lane.kind == "thread" and t.id not in graph.operators)
    return calls + sum(d.lag_us for d in graph.dependencies if d.kind == "thread")


def exposed_us(graph: StepGraph, timeline: Timeline) -> float:
    """Return how long device tasks wait for the network: past all else that they wait for."""
    network = {t.id for t in graph.tasks if t.kind in NETWORK_KINDS}
    waits: dict[int, list[Dependency]] = {}
    for d in graph.dependencies:
        if d.source in network and d.target not in network:
            waits.setdefault(d.target, [])
    if not waits:
        return 0.0
    for d in graph.dependencies:
        if d.target in waits and d.source not in network and not d.to_end:
            waits[d.target].append(d)
    return sum(
        max(0.0, timeline.start_us[n] - max((_event_us(d, timeline) for d in own), default=0.0))
        for n, own in waits.items()
    )


def _event_us(d: Dependency, timeline: Timeline) -> float:
    return (timeline.end_us if d.of_end else timeline.start_us)[d.source] + d.lag_us
