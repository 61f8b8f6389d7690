"""Simulation of a graph: every task starts when its lane is free and its dependencies are met."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from roller.errors import RollerError
from roller.insight.step.graph import Dependency, Lane, StepGraph, Task
from roller_runtime.core.gc_pause import gc_paused


@dataclass(frozen=True)
class Timeline:
    """The simulated start and end of each task of a graph, indexed by task id."""

    start_us: Sequence[float] = field(repr=False)
    end_us: Sequence[float] = field(repr=False)

    @property
    def makespan_us(self) -> float:
        """Time from the first start to the last end."""
        return max(self.end_us, default=0.0) - min(self.start_us, default=0.0)


@gc_paused()
def simulate(graph: StepGraph, policy: Callable[[Task], Any] | None = None) -> Timeline:
    """Return the simulated start and end of each task of a graph; equal inputs give equal times."""
    # Among tasks that could start on a lane at the same time, the one with the smallest ``policy`` value starts first;
    # ties go to the smallest id. Without ``policy``, the graph's own policy applies or, failing that, the tasks'
    # priority. A task whose end waits for a different task occupies its lane until then.
    # start = max(end of the lane's previous task, events of dependencies to the start + lags); end = max(start, events
    # of dependencies to the end + lags) + duration.
    chosen = policy or graph.policy
    return (None if chosen else _simulate_in_id_order(graph)) or _EventSimulation(graph, chosen or _task_priority).run()


def _simulate_in_id_order(graph: StepGraph) -> Timeline | None:
    """Simulate a graph if the order of ids respects all dependencies and lanes; otherwise return ``None``."""
    follows: set[tuple[int, int]] = set()
    of: dict[int, list[Dependency]] = {}
    for d in graph.dependencies:
        if d.source >= d.target:
            return None
        if d.of_end and not d.to_end:
            follows.add((d.source, d.target))
        of.setdefault(d.target, []).append(d)
    last: dict[Lane, int] = {}
    starts, ends = [0.0] * len(graph.tasks), [0.0] * len(graph.tasks)
    for task in graph.tasks:
        number, before = task.id, last.get(task.lane)
        if before is not None and (before, number) not in follows:
            return None
        last[task.lane] = number
        start, floor = graph.starts_us.get(number, 0.0), 0.0
        for d in of.get(number, ()):
            when = (ends if d.of_end else starts)[d.source] + d.lag_us
            if d.to_end:
                floor = max(floor, when)
            else:
                start = max(start, when)
        if before is not None:
            start = max(start, ends[before])
        starts[number], ends[number] = start, max(start, floor) + task.duration_us
    return Timeline(starts, ends)


def _task_priority(task: Task) -> int:
    return -task.priority


class _EventSimulation:
    def __init__(self, graph: StepGraph, policy: Callable[[Task], Any]) -> None:
        count = len(graph.tasks)
        self.graph, self.policy = graph, policy
        self.start, self.end = [0.0] * count, [0.0] * count
        self.earliest, self.floor = [0.0] * count, [0.0] * count
        self.waits_start, self.waits_end = [0] * count, [0] * count
        self.of_start: list[list[Dependency]] = [[] for _ in range(count)]
        self.of_end: list[list[Dependency]] = [[] for _ in range(count)]
        for d in graph.dependencies:
            (self.of_end if d.of_end else self.of_start)[d.source].append(d)
            (self.waits_end if d.to_end else self.waits_start)[d.target] += 1
        for task, at in graph.starts_us.items():
            self.earliest[task] = at
        self.free: dict[Lane, float] = {}
        self.held: dict[Lane, int] = {}
        self.queued: dict[Lane, list[int]] = {}
        self.ready: list[tuple[float, Any, int]] = []
        self.done = [False] * count

    def run(self) -> Timeline:
        """Simulate until no task is ready; raise an error if some tasks then have not run."""
        for task in self.graph.tasks:
            if not self.waits_start[task.id]:
                self._push_if_ready(task.id)
        while self.ready:
            at, _, number = heapq.heappop(self.ready)
            lane = self.graph.tasks[number].lane
            if lane in self.held:
                self.queued.setdefault(lane, []).append(number)
            elif at < self.free.get(lane, at):  # the lane is still occupied; other tasks may also be ready later
                self._push_if_ready(number)
            else:
                self._start_task(number, at)
        if not all(self.done):
            raise RollerError(
                f"{self.graph.name}: expected tasks in an order, got a circle: "
                f"{self._describe_dependency_cycle()}. Correct it."
            )
        return Timeline(self.start, self.end)

    def _push_if_ready(self, number: int) -> None:
        task = self.graph.tasks[number]
        at = max(self.earliest[number], self.free.get(task.lane, self.earliest[number]))
        heapq.heappush(self.ready, (at, self.policy(task), number))

    def _start_task(self, number: int, at: float) -> None:
        self.start[number] = at
        lane = self.graph.tasks[number].lane
        self.held[lane] = number
        self._release_dependencies(self.of_start[number], at)
        if not self.waits_end[number] and not self.done[number]:
            self._finish_task(number)

    def _finish_task(self, number: int) -> None:
        task = self.graph.tasks[number]
        end = self.end[number] = max(self.start[number], self.floor[number]) + task.duration_us
        self.done[number] = True
        self.free[task.lane] = end
        del self.held[task.lane]
        for waiting in self.queued.pop(task.lane, ()):
            self._push_if_ready(waiting)
        self._release_dependencies(self.of_end[number], end)

    def _release_dependencies(self, dependencies: Sequence[Dependency], at: float) -> None:
        for d in dependencies:
            when = at + d.lag_us
            if d.to_end:
                self.floor[d.target] = max(self.floor[d.target], when)
                self.waits_end[d.target] -= 1
                if not self.waits_end[d.target] and self.held.get(self.graph.tasks[d.target].lane) == d.target:
                    self._finish_task(d.target)
            else:
                self.earliest[d.target] = max(self.earliest[d.target], when)
                self.waits_start[d.target] -= 1
                if not self.waits_start[d.target]:
                    self._push_if_ready(d.target)

    def _describe_dependency_cycle(self) -> str:
        """Return the names of the tasks in a dependency cycle."""
        before: dict[int, int] = {}
        for d in self.graph.dependencies:
            if not self.done[d.source] and not self.done[d.target]:
                before.setdefault(d.target, d.source)
        number, seen = next(iter(before), self.done.index(False)), dict[int, None]()
        while number in before and number not in seen:
            seen[number] = None
            number = before[number]
        path = [*list(seen)[list(seen).index(number) if number in seen else 0 :], number]
        return " <- ".join(f"{self.graph.tasks[n].name} (task {n})" for n in path)
