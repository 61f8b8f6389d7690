"""Repeats tasks in a graph."""

from __future__ import annotations

from collections.abc import Sequence

from roller.errors import RollerError
from roller.insight.step.graph import StepGraph
from roller.insight.whatif.insertion import NewTask, insert


def repeat_tasks(
    graph: StepGraph, tasks: Sequence[int], *, behind: int | None = None, ahead: int | None = None, times: int = 1
) -> StepGraph:
    """Insert copies of ``tasks``, in order, after or before a task; they keep durations, provenance and launches."""
    if (behind is None) == (ahead is None):
        raise RollerError("repeated: expected one of behind= and ahead=, got both or neither. Name one.")
    launched = {d.target for d in graph.dependencies if d.kind == "launch"}
    new: list[NewTask] = []
    for _ in range(times):
        for task in (graph.tasks[n] for n in tasks):
            last = behind if not new else len(graph.tasks) + len(new) - 1
            new.append(
                NewTask(
                    task.name, task.kind, task.duration_us, behind=last if ahead is None else None, ahead=ahead,
                    launch=task.id in launched, provenance=task.provenance, size_bytes=task.size_bytes,
                    resource=task.resource, context=task.context,
                )
            )  # fmt: skip
    return insert(graph, *new)
