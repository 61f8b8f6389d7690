"""Batches loaded by workers: the time for each batch, and the workers' tasks."""

from __future__ import annotations

from collections.abc import Sequence

from roller.insight.step.graph import Lane, StepGraph, TaskContext
from roller.insight.step.simulate import simulate
from roller.insight.step.steady_step_time import steady_step_us
from roller.insight.whatif.insertion import NewTask
from roller.insight.whatif.primitives import select
from roller.insight.whatif.task_selection import sort_by_start

#: Number of steps until a pipeline of workers reaches its steady state.
STEADY = 4


def batch_loading_task_ids(graph: StepGraph) -> tuple[int, ...]:
    """Return the tasks that load batches on the training thread, sorted by start time."""
    return sort_by_start(graph, select(graph, lambda t: t.kind == "data" and t.lane.kind == "thread"))


def batch_loading_times_us(graph: StepGraph, loads: Sequence[int], of: int | None) -> list[float]:
    """Return the loading time of each batch on the training thread or on one of ``of`` workers."""
    if of is None:
        return [graph.tasks[n].duration_us for n in loads]
    return [of * steady_step_us(graph, simulate(graph))] * len(loads)


def new_loader_worker_tasks(
    loads: Sequence[int], took_us: Sequence[float], workers: int, ready: int, *, is_measured: bool
) -> list[NewTask]:
    """Return the loading tasks of workers, which start staggered and run at most ``ready`` batches ahead."""
    return [
        NewTask("load", "data", min(1.0, (at + 1) / workers) * took_us[at],
            lane=Lane(0, "loader", f"worker {at % workers}"),
            after=(loads[at - ready],) if at >= ready else (), before=(load,),
            provenance="measured" if is_measured else "calibrated", context=TaskContext(-1, "data"))
        for at, load in enumerate(loads)
    ]  # fmt: skip
