"""Sets every task, and the host gap after it, to its median over all steps of a profile.

A single step has disturbances; changes are predicted for the median of the steps.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from statistics import median

from roller.insight.step.graph import Lane, StepGraph

#: Least number of steps for a median.
LEAST_STEPS = 3


def use_median_durations(graph: StepGraph) -> StepGraph:
    """Return a graph whose tasks take their median over all steps; a graph of fewer than three steps is unchanged.

    Tasks of two steps correspond if they have the same name and the same position among the tasks of that name on their
    lane. Tasks that not every step has are unchanged.
    """
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
