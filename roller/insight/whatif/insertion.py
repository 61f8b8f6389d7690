"""Inserts tasks into a graph: next to a task on its lane, with a launch call, or on a separate lane."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from roller.errors import RollerError, shown
from roller.insight.step.graph import Dependency, DependencyKind, Kind, Lane, Provenance, StepGraph, Task, TaskContext

_LANE_ORDER = ("stream", "thread")


@dataclass(frozen=True)
class NewTask:
    """A task to insert; the n-th new task gets the id ``len(graph.tasks) + n``."""

    name: str
    kind: Kind  # kind of the task; a kernel next to a thread's task becomes a ``"cpu"`` task of that thread
    duration_us: float
    behind: int | None = None  # task that it follows on that task's lane; it replaces a removed task
    ahead: int | None = None  # task that it precedes on that task's lane
    lane: Lane | None = None  # lane of a task without a neighbour; tasks on it run as soon as they are ready
    # after, before: tasks whose ends it waits for, and tasks whose starts wait for its end
    after: Sequence[int] = ()
    before: Sequence[int] = ()
    launch: bool = True  # whether to insert a launch call of median duration next to the neighbouring call
    provenance: Provenance = "assumed"
    size_bytes: int = 0
    resource: str = ""
    priority: int = 0
    context: TaskContext | None = None  # position in the step; by default, its neighbour's position


def insert(graph: StepGraph, *new: NewTask) -> StepGraph:
    """Return a graph with additional tasks.

    Raises
    ------
    RollerError
        If the graph does not contain a task that a new task names, or a neighbour does not have a launch call.

    Examples
    --------
    >>> gemm = Task(0, "gemm", "kernel", Lane(0, "stream", "7"), 90.0, 0.0, 90.0)
    >>> both = insert(StepGraph([gemm], [], {}, 8.0, 1.0), NewTask("cast", "kernel", 5.0, behind=0, launch=False))
    >>> both.tasks[1].lane.name, both.dependencies[0].kind, both.name
    ('7', 'stream', 'profile, cast inserted')
    """
    if not new:
        return graph
    insertion = _Insertion(graph, new)
    for number, one in enumerate(new, len(graph.tasks)):
        insertion.add_task(number, one)
    said = new[0].name if len(new) == 1 else f"{len(new)} tasks"
    return replace(
        graph, tasks=insertion.tasks, dependencies=insertion.dependencies, starts_us=insertion.starts_us,
        name=f"{graph.name}, {said} inserted",
    )  # fmt: skip


class _Insertion:
    """Builds the tasks and dependencies of the new graph; dependencies are indexed by task."""

    def __init__(self, graph: StepGraph, new: Sequence[NewTask]) -> None:
        self.graph = graph
        self.tasks = [*graph.tasks, *(self._make_task(graph, n, one) for n, one in enumerate(new, len(graph.tasks)))]
        self.dependencies: list[Dependency] = list(graph.dependencies)
        self.starts_us = dict(graph.starts_us)
        self.of_source: dict[int, list[int]] = defaultdict(list)
        self.of_target: dict[int, list[int]] = defaultdict(list)
        for position, d in enumerate(self.dependencies):
            self.of_source[d.source].append(position)
            self.of_target[d.target].append(position)
        launches = [t.duration_us for t in graph.tasks if t.kind == "launch" and not t.is_removed]
        self.launch_us = median(launches) if launches else 0.0

    def _make_task(self, graph: StepGraph, number: int, new: NewTask) -> Task:
        if not 0 <= new.duration_us < float("inf"):
            raise RollerError(f"insert: duration_us: expected a number of at least 0, got {shown(new.duration_us)}.")
        beside = new.behind if new.behind is not None else new.ahead
        if (beside is None) == (new.lane is None):
            raise RollerError(
                f"insert: {new.name}: expected a lane or a neighbour, got {'neither' if beside is None else 'both'}. "
                f"Name one."
            )
        return Task(
            number, new.name, new.kind, new.lane or Lane(0, "stream", ""), float(new.duration_us), 0.0, 0.0, 0.0,
            new.provenance, False, new.context or TaskContext(), new.size_bytes, new.resource, new.priority,
        )  # fmt: skip

    def add_task(self, number: int, new: NewTask) -> None:
        beside = new.behind if new.behind is not None else new.ahead
        for other in (*new.after, *new.before, *(() if beside is None else (beside,))):
            if not 0 <= other < len(self.tasks):
                raise RollerError(
                    f"{self.graph.name}: task: expected one of 0 to {len(self.tasks) - 1}, got {other}. Select it."
                )
        if beside is not None:
            neighbour = self.tasks[beside]
            kind: Kind = "cpu" if neighbour.lane.kind == "thread" and new.kind == "kernel" else new.kind
            self.tasks[number] = replace(
                self.tasks[number], kind=kind, lane=neighbour.lane, context=new.context or neighbour.context
            )
            behind = new.behind is not None
            self._splice_into_lane(beside, number, behind)
            if neighbour.lane.kind == "stream" and new.launch:
                self._insert_launch(beside, number, behind)
        elif not new.after:
            self.starts_us.setdefault(number, 0.0)
        for other in new.after:
            self._add_dependency(Dependency(other, True, number, False, 0.0, "communication"))
        for other in new.before:
            self._add_dependency(Dependency(number, True, other, False, 0.0, "communication"))

    def _add_dependency(self, d: Dependency) -> None:
        self.of_source[d.source].append(len(self.dependencies))
        self.of_target[d.target].append(len(self.dependencies))
        self.dependencies.append(d)

    def _replace_dependency(self, position: int, d: Dependency) -> None:
        old = self.dependencies[position]
        if old.source != d.source:
            self.of_source[old.source].remove(position)
            self.of_source[d.source].append(position)
        if old.target != d.target:
            self.of_target[old.target].remove(position)
            self.of_target[d.target].append(position)
        self.dependencies[position] = d

    def _splice_into_lane(self, beside: int, new: int, behind: bool) -> None:
        """Insert a task between two neighbours on a lane; host code stays after the later call."""
        on_stream = self.tasks[new].lane.kind == "stream"
        because: DependencyKind = "stream" if on_stream else "thread"
        gap = self.graph.gap_us if on_stream else 0.0
        around = self.of_source[beside] if behind else self.of_target[beside]
        order = next((p for p in around if self._is_lane_order_dependency(self.dependencies[p])), None)
        lag = 0.0 if order is None else self.dependencies[order].lag_us
        if order is None and behind:
            self._add_dependency(Dependency(beside, True, new, False, gap, because))
        elif order is None:
            self.starts_us[new] = self.starts_us.get(beside, 0.0)
            self._add_dependency(Dependency(new, True, beside, False, gap, because))
        elif behind:
            then = 0.0 if self.tasks[self.dependencies[order].target].is_removed else gap
            self._replace_dependency(
                order, replace(self.dependencies[order], source=new, lag_us=then if on_stream else lag)
            )
            self._add_dependency(Dependency(beside, True, new, False, lag if on_stream else 0.0, because))
        else:
            self._replace_dependency(order, replace(self.dependencies[order], target=new))
            self._add_dependency(Dependency(new, True, beside, False, gap, because))
        if behind and self.tasks[beside].is_removed:
            self._move_successors(beside, new)

    def _is_lane_order_dependency(self, d: Dependency) -> bool:
        return d.kind in _LANE_ORDER and d.of_end

    def _move_successors(self, removed: int, new: int) -> None:
        """Move the successors of a removed task to its replacement."""
        for position in list(self.of_source[removed]):
            d = self.dependencies[position]
            if d.of_end:
                self._replace_dependency(
                    position, replace(d, lag_us=0.0) if d.target == new else replace(d, source=new)
                )
        for position in self.of_target[removed]:
            if self.dependencies[position].kind == "stream":
                self._replace_dependency(position, replace(self.dependencies[position], lag_us=self.graph.gap_us))

    def _insert_launch(self, beside: int, new: int, behind: bool) -> None:
        found = (self.dependencies[p] for p in self.of_target[beside])
        call = next((d.source for d in found if d.kind == "launch"), None)
        if call is None:
            raise RollerError(
                f"insert: expected a task that a call launched, got {self.tasks[beside].name} (task {beside}). "
                f"Insert beside another one, or with launch=False."
            )
        number = len(self.tasks)
        self.tasks.append(
            replace(self.tasks[call], id=number, kind="launch", duration_us=self.launch_us, name="launch",
                    provenance="assumed", is_removed=False)
        )  # fmt: skip
        self._splice_into_lane(call, number, behind)
        self._add_dependency(Dependency(number, False, new, False, self.graph.latency_us, "launch"))
