"""Median durations over the steps of a profile, which suppress disturbances in single steps."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from statistics import median

from roller.insight.step.graph import Lane, StepGraph

#: Minimum number of steps for which medians are taken.
LEAST_STEPS = 3


def use_median_durations(graph: StepGraph) -> StepGraph:
    """Set the durations of each task and of the host gap after it to their medians over all steps."""
    # tasks correspond by lane, name, and position among the tasks with the same name
    groups: dict[tuple[Lane, str, int], list[int]] = defaultdict(list)
    seen: dict[tuple[int, Lane, str], int] = defaultdict(int)
    steps = len(graph.iterations)
    if steps < LEAST_STEPS:
        return graph
    for t in sorted(graph.tasks, key=lambda t: (t.measured_start_us, t.id)):
        step = t.context.iteration
        if step >= 0:
            groups[t.lane, t.name, seen[step, t.lane, t.name]].append(t.id)
            seen[step, t.lane, t.name] += 1
    tasks, behind = list(graph.tasks), {d.source: d.lag_us for d in graph.dependencies if d.kind == "thread"}
    lags: dict[int, float] = {}
    for own in groups.values():
        if len(own) == steps:
            took = median(tasks[n].duration_us for n in own)
            for n in own:
                tasks[n] = replace(tasks[n], duration_us=took)
            followed = [behind[n] for n in own if n in behind]
            if followed:
                lags |= dict.fromkeys(own, median(followed))
    dependencies = [
        replace(d, lag_us=lags[d.source]) if d.kind == "thread" and d.source in lags else d for d in graph.dependencies
    ]
    return replace(graph, tasks=tasks, dependencies=dependencies)
