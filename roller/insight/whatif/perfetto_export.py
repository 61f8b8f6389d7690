"""Timelines before and after a change, for Perfetto and ``chrome://tracing``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from roller.core.files import whole_file
from roller.insight.step.graph import StepGraph
from roller.insight.step.simulate import Timeline
from roller.insight.whatif.predict import Answer


def write_perfetto(answer: Answer, path: str | Path) -> None:
    """Write both timelines to one file of trace events: process 1 is the profile, process 2 the prediction."""
    events: list[dict[str, Any]] = []
    for process, (graph, timeline, said) in enumerate(
        zip(answer.graphs, answer.timelines, ("before (replayed)", "after (predicted)"), strict=True), 1
    ):
        events += _trace_events(graph, timeline, process, said)
    with whole_file(Path(path)) as file:
        file.write(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}).encode())


def _trace_events(graph: StepGraph, timeline: Timeline, process: int, said: str) -> list[dict[str, Any]]:
    lanes = sorted({t.lane for t in graph.tasks}, key=lambda x: (x.rank, x.kind != "thread", x.kind, x.name))
    numbers = {lane: n for n, lane in enumerate(lanes)}
    events: list[dict[str, Any]] = [_metadata_event("process_name", process, 0, said)]
    events += [_metadata_event("thread_name", process, n, f"{lane.kind} {lane.name}") for lane, n in numbers.items()]
    for t in graph.tasks:
        if not t.is_removed:
            context = t.context
            events.append(
                {
                    "ph": "X", "pid": process, "tid": numbers[t.lane], "name": t.name, "cat": t.kind,
                    "ts": timeline.start_us[t.id], "dur": timeline.end_us[t.id] - timeline.start_us[t.id],
                    "args": {"phase": context.phase, "layer": context.module, "operator": context.operator,
                             "step": context.iteration, "time is": t.provenance},
                }
            )  # fmt: skip
    return events


def _metadata_event(kind: str, process: int, lane: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": lane, "name": kind, "args": {"name": name}}
