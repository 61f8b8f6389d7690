"""Timelines before and after a change, for Perfetto and ``chrome://tracing``."""

from __future__ import annotations

from pathlib import Path

from roller.insight.step.trace_events import write_trace_events
from roller.insight.whatif.predict import Answer


def write_perfetto(answer: Answer, path: str | Path) -> None:
    """Write both timelines to one file of trace events: process 1 is the profile, process 2 the prediction."""
    titles = ("before (replayed)", "after (predicted)")
    write_trace_events(path, zip(titles, answer.graphs, answer.timelines, strict=True))
