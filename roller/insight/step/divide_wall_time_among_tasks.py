"""Division of a step's wall time among its tasks: each instant belongs to one task, so all parts add up to the step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from roller.insight.step.graph import NETWORK_KINDS, StepGraph, Task

_Span = tuple[float, float]


def wall_time_us(
    graph: StepGraph, start_us: Sequence[float], end_us: Sequence[float], tasks: Sequence[Task] | None = None,
    within: Sequence[_Span] | None = None,
) -> tuple[dict[int, float], float]:  # fmt: skip
    """Return the wall time of each task, keyed by id, and the remaining time, in which no task runs.

    Examples
    --------
    >>> from roller.insight.step.graph import Lane, StepGraph, Task
    >>> host, stream = Lane(0, "thread", "1"), Lane(0, "stream", "7")
    >>> tasks = [Task(0, "launch", "launch", host, 5.0, 0, 0), Task(1, "gemm", "kernel", stream, 6.0, 0, 0)]
    >>> wall_time_us(StepGraph(tasks, [], {}, 0.0, 0.0), [0.0, 4.0], [5.0, 10.0])
    ({1: 6.0, 0: 4.0}, 0.0)
    """
    # While a device computes, the time belongs to its kernel; otherwise, to a collective or a transfer over a network
    # or, if there is none, to a call on a thread. Among several tasks of one such class, the first to start gets the
    # time. ``within`` has the spans that count, sorted and disjoint; by default, the single span from the first start
    # to the last end.
    chosen = graph.tasks if tasks is None else tasks
    found: dict[int, float] = {}
    covered = [] if within is None else _gaps_between_spans(within)
    for members in _device_network_and_other_tasks(chosen):
        spans = sorted((start_us[t.id], end_us[t.id], t.id) for t in members)
        found.update(_uncovered_length_by_task(spans, covered))
        covered = _union_of_spans([*covered, *((a, b) for a, b, _ in spans)])
    whole = 0.0
    if within is not None:
        whole = math.fsum(b - a for a, b in within)
    elif chosen:
        whole = max(end_us[t.id] for t in chosen) - min(start_us[t.id] for t in chosen)
    return found, max(0.0, whole - math.fsum(found.values()))


def _gaps_between_spans(spans: Sequence[_Span]) -> list[_Span]:
    """Return the times outside the spans."""
    ends, starts = [-math.inf, *(b for _, b in spans)], [*(a for a, _ in spans), math.inf]
    return [(end, start) for end, start in zip(ends, starts, strict=True) if end < start]


def _device_network_and_other_tasks(tasks: Sequence[Task]) -> tuple[list[Task], ...]:
    classes: tuple[list[Task], ...] = ([], [], [])
    for task in tasks:
        if not task.is_removed:
            on_network = task.kind in NETWORK_KINDS
            classes[1 if on_network else 0 if task.on_device else 2].append(task)
    return classes


def _uncovered_length_by_task(spans: Sequence[tuple[float, float, int]], covered: Sequence[_Span]) -> dict[int, float]:
    """Return the length of each span outside earlier spans and outside the covered ones."""
    found: dict[int, float] = {}
    at, own_end = 0, -math.inf
    for start, end, number in spans:
        since, length = max(start, own_end), 0.0
        own_end = max(own_end, end)
        while since < end:
            while at < len(covered) and covered[at][1] <= since:
                at += 1
            if at == len(covered) or covered[at][0] >= end:
                length += end - since
                break
            length += max(0.0, covered[at][0] - since)
            since = covered[at][1]
        found[number] = length
    return found


def _union_of_spans(spans: Iterable[_Span]) -> list[_Span]:
    found: list[list[float]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([start, end])
    return [(a, b) for a, b in found]
