"""Composable changes to a graph: tasks are selected, then scaled, set, removed or scheduled in a new, named graph.

Tasks are given as sets of ids, so selections compose as sets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from roller.core.renamed import getattr_for_moved_names
from roller.errors import RollerError, shown
from roller.insight.step.graph import Dependency, Provenance, StepGraph, Task

__getattr__ = getattr_for_moved_names(__name__, (__name__,))


def select(graph: StepGraph, which: Callable[[Task], bool]) -> frozenset[int]:
    """Return the ids of the tasks for which ``which`` is true, skipping removed tasks."""
    return frozenset(task.id for task in graph.tasks if not task.is_removed and which(task))


def scale(graph: StepGraph, tasks: Collection[int], factor: float, provenance: Provenance = "assumed") -> StepGraph:
    """Return a graph in which ``tasks`` take ``factor`` times as long.

    Examples
    --------
    >>> from roller.insight.step.graph import Lane
    >>> gemm = Task(0, "gemm", "kernel", Lane(0, "stream", "7"), 90.0, 0.0, 90.0)
    >>> half = scale(StepGraph([gemm], [], {}, 8.0, 1.0), [0], 0.5)
    >>> half.tasks[0].duration_us, half.tasks[0].provenance, half.name
    (45.0, 'assumed', 'profile, 1 task times 0.5')
    """
    _check_not_negative("factor", factor)
    chosen = _check_task_ids(graph, tasks)
    return _replace_durations(
        graph, {n: graph.tasks[n].duration_us * factor for n in chosen}, provenance,
        f"{_count_text(chosen)} times {factor:g}",
    )  # fmt: skip


def scale_each(graph: StepGraph, factors: Mapping[int, tuple[float, Provenance]]) -> StepGraph:
    """Scale each task by its own factor, with its own provenance."""
    _check_task_ids(graph, factors)
    tasks = list(graph.tasks)
    for n, (factor, provenance) in factors.items():
        _check_not_negative("factor", factor)
        if factor != 1.0:
            tasks[n] = replace(tasks[n], duration_us=tasks[n].duration_us * factor, provenance=provenance)
    return replace(graph, tasks=tasks, name=f"{graph.name}, {_count_text(factors)} scaled")


def set_duration(
    graph: StepGraph,
    tasks: Collection[int],
    duration_us: float | Callable[[Task], float],
    provenance: Provenance = "assumed",
) -> StepGraph:
    """Return a graph in which ``tasks`` take a given time: a number, or a function of the task."""
    chosen = _check_task_ids(graph, tasks)
    made = {n: float(duration_us(graph.tasks[n]) if callable(duration_us) else duration_us) for n in chosen}
    for value in made.values():
        _check_not_negative("duration_us", value)
    return _replace_durations(graph, made, provenance, f"{_count_text(chosen)} set")


def remove(graph: StepGraph, tasks: Collection[int], *, launches: bool = True) -> StepGraph:
    """Return a graph without ``tasks``; successors keep their order, and the removed tasks' own waits are dropped.

    Parameters
    ----------
    launches
        Whether to also remove a call, and the host code after it, if all tasks that it launched are removed.
    """
    chosen = set(_check_task_ids(graph, tasks))
    if launches:
        launched: dict[int, list[int]] = {}
        for d in graph.dependencies:
            if d.kind == "launch":
                launched.setdefault(d.source, []).append(d.target)
        chosen |= {call for call, own in launched.items() if chosen.issuperset(own)}
    kept = [replace(t, duration_us=0.0, is_removed=True) if t.id in chosen else t for t in graph.tasks]
    dependencies = [
        replace(d, lag_us=0.0) if _is_lag_removed(d, chosen) else d
        for d in graph.dependencies
        if not (d.to_end and d.target in chosen)
    ]
    return replace(graph, tasks=kept, dependencies=dependencies, name=f"{graph.name}, {_count_text(chosen)} removed")


def _is_lag_removed(d: Dependency, gone: Collection[int]) -> bool:
    """Return whether removing tasks also removes a lag: host code after a call, or a kernel's latency or gap."""
    if d.kind == "thread":
        return d.source in gone
    return d.target in gone and (d.kind == "stream" or (d.kind == "launch" and d.source in gone))


def move_launches(graph: StepGraph, calls: Mapping[int, int]) -> StepGraph:
    """Return a graph in which the call ``calls[n]`` makes the launches of each call ``n`` in ``calls``."""
    _check_task_ids(graph, [*calls.keys(), *calls.values()])
    dependencies = [
        replace(d, source=calls[d.source]) if d.kind == "launch" and d.source in calls else d
        for d in graph.dependencies
    ]
    return replace(graph, dependencies=dependencies, name=f"{graph.name}, {len(calls)} calls joined")


def schedule(graph: StepGraph, policy: Callable[[Task], Any]) -> StepGraph:
    """Return a graph with a scheduling policy: of a lane's ready tasks, the one with the smallest key runs first."""
    return replace(graph, policy=policy, name=f"{graph.name}, scheduled")


def annotate(graph: StepGraph, name: str, *assumptions: str) -> StepGraph:
    """Return a graph with the name and assumptions of a change."""
    said = graph.assumptions + tuple(a for a in assumptions if a not in graph.assumptions)
    return replace(graph, name=name, assumptions=said)


def without_overhead(graph: StepGraph) -> StepGraph:
    """Return a graph without the known recording overhead in calls and in the host code after them."""
    took = graph.overhead_us
    if not took:
        return graph
    nothing = (0.0, 0.0)
    tasks = [
        replace(t, duration_us=max(0.0, t.duration_us - took[t.id][0])) if t.id in took else t for t in graph.tasks
    ]
    dependencies = [
        replace(d, lag_us=max(0.0, d.lag_us - took.get(d.source, nothing)[1])) if d.kind == "thread" else d
        for d in graph.dependencies
    ]
    return replace(graph, tasks=tasks, dependencies=dependencies, overhead_us={})


def with_lags(graph: StepGraph, lag_us: Callable[[Dependency], float]) -> StepGraph:
    """Return a graph in which each dependency's lag is given by a function of the dependency."""
    made = [replace(d, lag_us=lag_us(d)) for d in graph.dependencies]
    for d in made:
        _check_not_negative("lag_us", d.lag_us)
    return replace(graph, dependencies=made, name=f"{graph.name}, lags set")


def _replace_durations(graph: StepGraph, made: dict[int, float], provenance: Provenance, said: str) -> StepGraph:
    tasks = [
        replace(t, duration_us=made[t.id], provenance=provenance) if t.id in made and made[t.id] != t.duration_us else t
        for t in graph.tasks
    ]
    return replace(graph, tasks=tasks, name=f"{graph.name}, {said}")


def _check_task_ids(graph: StepGraph, tasks: Collection[int]) -> Sequence[int]:
    wrong = next(
        (n for n in tasks if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n < len(graph.tasks)), None
    )
    if wrong is not None:
        raise RollerError(
            f"{graph.name}: task: expected one of 0 to {len(graph.tasks) - 1}, got {shown(wrong)}. Select it."
        )
    return sorted(set(tasks))


def _count_text(tasks: Collection[int]) -> str:
    return f"{len(tasks)} task{'' if len(tasks) == 1 else 's'}"


def _check_not_negative(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise RollerError(f"{name}: expected a finite number of at least 0, got {shown(value)}. Correct it.")
