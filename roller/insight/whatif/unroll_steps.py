"""Repeats a graph's steps, for changes that span several steps."""

from __future__ import annotations

from dataclasses import replace

from roller.insight.step.graph import Dependency, DependencyKind, Lane, StepGraph, Task
from roller.insight.trace.gradient_buckets import Gradient


def unroll_steps(graph: StepGraph, times: int) -> StepGraph:
    """Repeat a graph until it has at least ``times`` steps; each lane continues after its last task.

    Examples
    --------
    >>> from roller.insight.step.graph import Lane, TaskContext
    >>> from roller.insight.step.simulate import simulate
    >>> gemm = Task(0, "gemm", "kernel", Lane(0, "stream", "7"), 90.0, 0.0, 90.0, context=TaskContext(0))
    >>> simulate(unroll_steps(StepGraph([gemm], [], {0: 0.0}, 8.0, 1.0), 3)).makespan_us
    272.0
    """
    steps = max(1, len(graph.iterations))
    copies = -(-times // steps)
    if copies <= 1 or not graph.tasks:
        return graph
    count, length = len(graph.tasks), graph.measured_us
    firsts, lasts = _first_and_last_tasks_by_lane(graph)
    tasks: list[Task] = []
    dependencies: list[Dependency] = []
    gradients: list[Gradient] = []
    starts = dict(graph.starts_us)
    held = {d.target for d in graph.dependencies if not d.to_end}
    for copy in range(copies):
        base, shift, step = copy * count, copy * length, copy * steps
        for t in graph.tasks:
            context = (
                t.context._replace(iteration=t.context.iteration + step) if t.context.iteration >= 0 else t.context
            )
            tasks.append(
                replace(t, id=base + t.id, context=context, measured_start_us=t.measured_start_us + shift,
                        measured_end_us=t.measured_end_us + shift)
            )  # fmt: skip
        dependencies += [replace(d, source=base + d.source, target=base + d.target) for d in graph.dependencies]
        gradients += [g.shift_ids(base, step) for g in graph.gradients]
        if copy:
            for lane, first in firsts.items():
                because: DependencyKind = "stream" if lane.kind == "stream" else "thread"
                lag = graph.gap_us if lane.kind == "stream" else 0.0
                dependencies.append(Dependency(base - count + lasts[lane], True, base + first, False, lag, because))
            starts |= {base + n: 0.0 for n in graph.starts_us if n not in held and n not in firsts.values()}
    operators = {c * count + n: o for c in range(copies) for n, o in graph.operators.items()}
    return replace(
        graph, tasks=tasks, dependencies=dependencies, starts_us=starts, gradients=gradients, operators=operators
    )


def _first_and_last_tasks_by_lane(graph: StepGraph) -> tuple[dict[Lane, int], dict[Lane, int]]:
    firsts: dict[Lane, int] = {}
    lasts: dict[Lane, int] = {}
    for t in sorted(graph.tasks, key=lambda t: (t.measured_start_us, t.id)):
        if t.lane.kind in ("thread", "stream"):
            firsts.setdefault(t.lane, t.id)
            lasts[t.lane] = t.id
    return firsts, lasts
