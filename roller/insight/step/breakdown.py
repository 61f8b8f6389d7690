"""The cost of a simulated step by module, line, operator, phase, kernel and lane, and its critical path."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from roller.errors import RollerError, shown
from roller.insight.step.graph import NETWORK_KINDS, Dependency, StepGraph, Task
from roller.insight.step.simulate import Timeline


@dataclass(frozen=True)
class LaneCost:
    """The number of tasks on a lane, the lane's busy time, and the time of the critical path on the lane."""

    lane: str
    tasks: int
    busy_us: float
    critical_us: float


@dataclass(frozen=True)
class BreakdownRow:
    """The cost of one module, line, operator, phase or kernel in a step.

    Parameters
    ----------
    name
        Name of the module, line, etc.; ``""`` for tasks without a name, such as tasks outside all modules.
    tasks
        Number of tasks: calls on threads, kernels and copies.
    kernels
        Number of tasks among them that compute: kernels and copies on a device, and operators that a thread computes
        itself, but no collectives.
    cpu_us, device_us
        Durations on threads and on devices, without waits and without host code between calls.
    critical_us
        Length of the critical path in these tasks, including the lags and host code after them.
    compute_us
        Total duration of ``kernels``.
    share
        Share of the step's ``compute_us``.
    resource
        Resource that bounds most of ``compute_us`` according to the prices: ``"compute"``, ``"dram"``, ...; ``""``
        without prices.
    """

    name: str
    tasks: int
    kernels: int
    cpu_us: float
    device_us: float
    critical_us: float
    compute_us: float
    share: float
    resource: str


#: Name of a breakdown's key.
Key = Literal["module", "line", "operator", "phase", "kernel"]


def source_line_of_task(task: Task) -> str:
    """Return ``file:line`` for the innermost frame in the project; ``""`` if it is unknown."""
    stack = task.context.stack
    return f"{stack[-1].file}:{stack[-1].line}" if stack else ""


KEYS: Mapping[Key, Callable[[Task], str]] = {
    "module": lambda task: task.context.module,
    "line": source_line_of_task,
    "operator": lambda task: task.context.operator,
    "phase": lambda task: task.context.phase,
    "kernel": lambda task: task.name,
}


def breakdown(graph: StepGraph, timeline: Timeline, key: Key | Callable[[Task], str]) -> tuple[BreakdownRow, ...]:
    """Return the cost of a simulated step by module, line, operator, phase or kernel.

    The breakdown applies to forecasts, replays of profiles and what-ifs, since each of these is a simulated graph.

    Parameters
    ----------
    graph, timeline
        The step, and the simulated times of its tasks.
    key
        One of :data:`KEYS`, or a function that returns the name of a task's row.

    Returns
    -------
    tuple[BreakdownRow, ...]
        The rows, in descending order of their time on the critical path. For any key, ``cpu_us``, ``device_us`` and
        ``critical_us`` over all rows add up to the totals of the graph.

    Raises
    ------
    RollerError
        If ``key`` is neither a function nor one of :data:`KEYS`.
    """
    name_of = KEYS.get(key) if isinstance(key, str) else key
    if name_of is None:
        raise RollerError(
            f"breakdown: key: expected one of {', '.join(KEYS)}, or a function of a task, got {shown(key)}. Choose one."
        )
    critical = dict(critical_path(graph, timeline))
    rows: dict[str, _RowSums] = {}
    for task in graph.tasks:
        took = critical.get(task.id, 0.0)
        if not task.is_removed:
            rows.setdefault(name_of(task), _RowSums()).add(task, took, task.id in graph.operators)
        elif took:  # lags after a task that was removed
            rows.setdefault(name_of(task), _RowSums()).critical_us += took
    whole = math.fsum(row.compute_us for row in rows.values())
    found = [row.named(name, whole) for name, row in rows.items()]
    return tuple(sorted(found, key=lambda x: (-x.critical_us, -x.device_us, x.name)))


@dataclass
class _RowSums:
    tasks: int = 0
    kernels: int = 0
    cpu_us: float = 0.0
    device_us: float = 0.0
    critical_us: float = 0.0
    compute_us: float = 0.0
    bound_us: dict[str, float] = field(default_factory=dict)

    def add(self, task: Task, critical_us: float, is_operator: bool) -> None:
        self.tasks += 1
        self.critical_us += critical_us
        if task.on_device:
            self.device_us += task.duration_us
        else:
            self.cpu_us += task.duration_us
        if is_operator or (task.on_device and task.kind not in NETWORK_KINDS):
            self.kernels += 1
            self.compute_us += task.duration_us
            self.bound_us[task.resource] = self.bound_us.get(task.resource, 0.0) + task.duration_us

    def named(self, name: str, whole_us: float) -> BreakdownRow:
        resource = max(self.bound_us, key=lambda r: self.bound_us[r], default="")
        share = self.compute_us / whole_us if whole_us else 0.0
        return BreakdownRow(
            name, self.tasks, self.kernels, self.cpu_us, self.device_us, self.critical_us, self.compute_us, share,
            resource,
        )  # fmt: skip


class JoinedRow(NamedTuple):
    """The same row of two breakdowns, per step; ``None`` in place of a breakdown that lacks the row."""

    name: str
    measured: BreakdownRow | None
    predicted: BreakdownRow | None


def join(
    measured: tuple[StepGraph, Timeline], predicted: tuple[StepGraph, Timeline], key: Key | Callable[[Task], str]
) -> tuple[JoinedRow, ...]:
    """Return the breakdowns of a profile and of a forecast side by side, per step.

    Parameters
    ----------
    measured, predicted
        Graph and timeline of each; a graph of several steps is averaged over them.
    key
        See :func:`breakdown`. Modules have the same paths in both if the profile was made by ``roller record``.

    Returns
    -------
    tuple[JoinedRow, ...]
        The rows, in descending order of the longer of both times on the critical path.
    """
    old, new = ({row.name: row for row in _breakdown_rows_per_step(*one, key)} for one in (measured, predicted))
    found = [JoinedRow(name, old.get(name), new.get(name)) for name in {**old, **new}]
    return tuple(sorted(found, key=lambda r: (-max(x.critical_us for x in r[1:] if x is not None), r.name)))


def _breakdown_rows_per_step(
    graph: StepGraph, timeline: Timeline, key: Key | Callable[[Task], str]
) -> Iterator[BreakdownRow]:
    steps = max(1, len(graph.iterations))
    for row in breakdown(graph, timeline, key):
        yield replace(
            row, tasks=round(row.tasks / steps), kernels=round(row.kernels / steps), cpu_us=row.cpu_us / steps,
            device_us=row.device_us / steps, critical_us=row.critical_us / steps, compute_us=row.compute_us / steps,
        )  # fmt: skip


def lanes(graph: StepGraph, timeline: Timeline) -> tuple[LaneCost, ...]:
    """Return the cost of each lane, in descending order of the time of the critical path on it."""
    critical = dict(critical_path(graph, timeline))
    is_joint = any(task.lane.rank for task in graph.tasks)
    tasks: dict[str, list[float]] = {}
    for task in graph.tasks:
        name = f"rank {task.lane.rank}: {task.lane.name}" if is_joint else task.lane.name
        row = tasks.setdefault(name, [0, 0.0, 0.0])
        row[0] += 1
        row[1] += task.duration_us
        row[2] += critical.get(task.id, 0.0)
    rows = [LaneCost(name, int(n), busy, path) for name, (n, busy, path) in tasks.items()]
    return tuple(sorted(rows, key=lambda x: (-x.critical_us, -x.busy_us, x.lane)))


def critical_path(graph: StepGraph, timeline: Timeline) -> list[tuple[int, float]]:
    """Return the ids of the tasks on the critical path, last first, each with its time including the lags after it."""
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
        found = _latest_awaited_event(waits, timeline, start)
        since = timeline.end_us[at] - graph.tasks[at].duration_us if found is not None else start
        path.append((at, max(0.0, until - since)))
        if found is None:
            found = _latest_awaited_event(before.get((at, False), []), timeline, float("-inf"))
            since = start
        if found is None:
            break
        at, of_end, until = found[0], found[1], since
    merged: dict[int, float] = {}
    for number, took in path:
        merged[number] = merged.get(number, 0.0) + took
    return list(merged.items())


def _latest_awaited_event(
    waits: Sequence[tuple[int, bool, float]], timeline: Timeline, later_than: float
) -> tuple[int, bool, float] | None:
    """Return the wait whose event is the latest; ``None`` if no event is later than ``later_than``."""

    def event_time(wait: tuple[int, bool, float]) -> float:
        return (timeline.end_us if wait[1] else timeline.start_us)[wait[0]] + wait[2]

    late = [w for w in waits if event_time(w) > later_than]
    return max(late, key=event_time) if late else None


def thread_work_us(graph: StepGraph) -> float:
    """Return the time that threads take to issue everything: their calls and the code between them, without waits."""
    # Operators that a thread computes itself, without a device, are left out, too.
    calls = sum(t.duration_us for t in graph.tasks if t.lane.kind == "thread" and t.id not in graph.operators)
    return calls + sum(d.lag_us for d in graph.dependencies if d.kind == "thread")


def exposed_network_us(graph: StepGraph, timeline: Timeline) -> float:
    """Return the time for which device tasks wait only for the network, after all else that they wait for has ended."""
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
        max(0.0, timeline.start_us[n] - max((_dependency_met_us(d, timeline) for d in own), default=0.0))
        for n, own in waits.items()
    )


def _dependency_met_us(d: Dependency, timeline: Timeline) -> float:
    return (timeline.end_us if d.of_end else timeline.start_us)[d.source] + d.lag_us
