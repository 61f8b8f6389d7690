"""Time on the CPU only, on the device only, and on both in a simulated step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from roller.insight.step.graph import Lane, StepGraph
from roller.insight.step.simulate import Timeline


@dataclass(frozen=True)
class Overlap:
    """Time on the CPU only, on the device only, and on both; the three add up to the total."""

    #: Time in which no device runs a task.
    cpu_only_us: float
    #: Time in which a device runs a task and every thread waits or has finished.
    device_only_us: float
    #: Time in which a device runs a task while a thread works.
    both_us: float

    @property
    def total_us(self) -> float:
        """Total time of the step."""
        return self.cpu_only_us + self.device_only_us + self.both_us


def overlap_of_cpu_and_device(graph: StepGraph, timeline: Timeline) -> Overlap:
    """Return the overlap of CPU and device; a gap between calls counts as CPU work, a wait within a call does not."""
    device = _union_of_spans((timeline.start_us[t.id], timeline.end_us[t.id]) for t in graph.tasks if t.on_device)
    waits = {
        t.id: (timeline.start_us[t.id], max(timeline.start_us[t.id], timeline.end_us[t.id] - t.duration_us))
        for t in graph.tasks if t.kind == "sync"
    }  # fmt: skip
    begin, end = min(timeline.start_us, default=0.0), max(timeline.end_us, default=0.0)
    # After its last call a thread has finished; a process works while any thread does.
    works: list[tuple[float, float]] = []
    of_lane: dict[Lane, list[int]] = {}
    for task in graph.tasks:
        if task.lane.kind == "thread":
            of_lane.setdefault(task.lane, []).append(task.id)
    for own in of_lane.values():
        first, last = min(timeline.start_us[n] for n in own), max(timeline.end_us[n] for n in own)
        works += _subtract_spans((first, last), _union_of_spans(waits[n] for n in own if n in waits))
    busy = _union_of_spans(works)
    on_device, on_both = _total_length(device), _total_length(_intersect_spans(device, busy))
    whole = end - begin
    return Overlap(whole - on_device, on_device - on_both, on_both)


def _union_of_spans(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if end <= start:
            continue
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def _subtract_spans(span: tuple[float, float], holes: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    found, at = [], span[0]
    for start, end in holes:
        if start > at:
            found.append((at, start))
        at = max(at, end)
    return [*found, (at, span[1])] if at < span[1] else found


def _intersect_spans(
    one: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    found, i, j = [], 0, 0
    while i < len(one) and j < len(other):
        start, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if start < end:
            found.append((start, end))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return found


def _total_length(spans: Iterable[tuple[float, float]]) -> float:
    return sum(end - start for start, end in spans)
