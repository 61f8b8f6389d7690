"""The time of a steady step, without the start and end of a profile, where the pipeline fills and drains."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from roller.insight.step.graph import StepGraph
from roller.insight.step.simulate import Timeline

#: Relative excess of device time over call time above which devices fall behind.
_BEHIND = 0.05


def step_times_us(graph: StepGraph, start_us: Sequence[float], end_us: Sequence[float]) -> tuple[float, ...]:
    """Return the times between the first calls of consecutive steps; for a single step, return its whole time.

    Examples
    --------
    >>> from roller.insight.step.graph import StepGraph, Lane, TaskContext, Task
    >>> lane = Lane(0, "thread", "1")
    >>> tasks = [Task(n, "op", "cpu", lane, 5.0, 10.0 * n, 10.0 * n + 5.0, context=TaskContext(n)) for n in range(3)]
    >>> step_times_us(StepGraph(tasks, [], {}, 0.0, 0.0), [0.0, 10.0, 21.0], [5.0, 15.0, 26.0])
    (10.0, 11.0)
    """
    # Of several ranks, the last one to begin a step counts, since the others wait for it.
    begins: dict[int, dict[int, float]] = {}
    on_device = {t.on_device for t in graph.tasks if t.context.iteration >= 0}
    for t in graph.tasks:
        # kernels of a step may start after the next step's first call, so calls mark the start of a step
        if t.context.iteration < 0 or (t.on_device and False in on_device):
            continue
        ranks = begins.setdefault(t.context.iteration, {})
        ranks[t.lane.rank] = min(ranks.get(t.lane.rank, start_us[t.id]), start_us[t.id])
    times = [max(ranks.values()) for _, ranks in sorted(begins.items())]
    if len(times) < 2:
        return (max(end_us, default=0.0) - min(start_us, default=0.0),)
    return tuple(b - a for a, b in pairwise(times))


def steady_step_us(graph: StepGraph, timeline: Timeline) -> float:
    """Return the time of a steady step: the median time between steps, measured at calls or on devices."""
    # Calls run ahead of a device that is the bottleneck until the launch queue is full, and a profile of few steps may
    # end before that. If devices fall behind from step to step, the time between their steps equals the step time of a
    # long run.
    ends: dict[int, float] = {}
    for t in graph.tasks:
        if t.on_device and t.context.iteration >= 0 and not t.is_removed:
            ends[t.context.iteration] = max(ends.get(t.context.iteration, 0.0), timeline.end_us[t.id])
    between = [b - a for (_, a), (_, b) in pairwise(sorted(ends.items()))]
    calls = step_times_us(graph, timeline.start_us, timeline.end_us)
    falls_behind = len(between) == len(calls) and sum(between) > (1.0 + _BEHIND) * sum(calls)
    return median(between if falls_behind else calls)
