"""Timelines of graphs as trace events, for Perfetto and ``chrome://tracing``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from roller.insight.step.breakdown import source_line_of_task
from roller.insight.step.graph import StepGraph
from roller.insight.step.simulate import Timeline
from roller_runtime.core.files import write_atomically


def write_trace_events(path: str | Path, timelines: Iterable[tuple[str, StepGraph, Timeline]]) -> None:
    """Write timelines to one file of trace events, which is replaced atomically."""
    events: list[dict[str, Any]] = []
    for process, (title, graph, timeline) in enumerate(timelines, 1):
        events += _trace_events(graph, timeline, process, title)
    with write_atomically(Path(path)) as file:
        file.write(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}).encode())


def _trace_events(graph: StepGraph, timeline: Timeline, process: int, title: str) -> list[dict[str, Any]]:
    lanes = sorted({t.lane for t in graph.tasks}, key=lambda x: (x.rank, x.kind != "thread", x.kind, x.name))
    numbers = {lane: n for n, lane in enumerate(lanes)}
    events: list[dict[str, Any]] = [_metadata_event("process_name", process, 0, title)]
    events += [_metadata_event("thread_name", process, n, f"{lane.kind} {lane.name}") for lane, n in numbers.items()]
    for t in graph.tasks:
        if not t.is_removed:
            context = t.context
            events.append(
                {
                    "ph": "X", "pid": process, "tid": numbers[t.lane], "name": t.name, "cat": t.kind,
                    "ts": timeline.start_us[t.id], "dur": timeline.end_us[t.id] - timeline.start_us[t.id],
                    "args": {"phase": context.phase, "layer": context.module, "operator": context.operator,
                             "step": context.iteration, "time is": t.provenance, "line": source_line_of_task(t)},
                }
            )  # fmt: skip
    return events


def _metadata_event(kind: str, process: int, lane: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": lane, "name": kind, "args": {"name": name}}
