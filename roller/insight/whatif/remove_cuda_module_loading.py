"""Removes the module loading of first launches, which a warm step does not have."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from roller.insight.step.device_task_order import MOST_LATENCY_US
from roller.insight.step.graph import StepGraph


def launch_calls_that_loaded_modules(graph: StepGraph) -> tuple[int, ...]:
    """Return the calls that loaded modules: long first launches of kernels that waited for the call to end."""
    first: dict[str, int] = {}
    for t in sorted((t for t in graph.tasks if t.on_device), key=lambda t: (t.measured_start_us, t.id)):
        first.setdefault(t.name, t.id)
    calls = {d.source for d in graph.dependencies if d.kind == "launch" and d.of_end
             and first[graph.tasks[d.target].name] == d.target}  # fmt: skip
    usual = _median_launch_us(graph)
    return tuple(sorted(n for n in calls if graph.tasks[n].duration_us > max(usual, MOST_LATENCY_US)))


def _median_launch_us(graph: StepGraph) -> float:
    took = [t.duration_us for t in graph.tasks if t.kind == "launch"]
    return median(took) if took else 0.0


def remove_module_loading(graph: StepGraph) -> StepGraph:
    """Replace the times of launches that loaded modules with the median launch time; add a note."""
    slow = launch_calls_that_loaded_modules(graph)
    if not slow:
        return graph
    usual = _median_launch_us(graph)
    took = sum(graph.tasks[n].duration_us - usual for n in slow)
    tasks = [replace(t, duration_us=usual) if t.id in slow else t for t in graph.tasks]
    count = "1 first launch" if len(slow) == 1 else f"{len(slow)} first launches"
    said = f"{count} of kernels loaded modules for {took / 1e3:.3f} ms, which are taken out: a warm step has none."
    return replace(graph, tasks=tasks, notes=(*graph.notes, said))
