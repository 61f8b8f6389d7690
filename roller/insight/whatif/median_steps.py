"""Steps of a profile as one: every task takes what it takes in the median of all steps, and so does the code behind it.

A single step is disturbed here and there; what is common to all of them is what a change is asked of.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from statistics import median

from roller.insight.step.graph import Lane, StepGraph

#: Of fewer steps a median is no better than each.
LEAST_STEPS = 3


def median_step(graph: StepGraph) -> StepGraph:
    """Return a graph whose steps take the median of all; one of fewer than three steps is returned as it is.

    Tasks of two steps are the same one if they are of one name, and as many of that name ran before on their lane. What
    not every step has stays as it was.
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
