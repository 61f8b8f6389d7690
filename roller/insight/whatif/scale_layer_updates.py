"""Scales the optimizer's update by the share of given layers."""

from __future__ import annotations

from collections.abc import Sequence

from roller.insight.step.graph import StepGraph
from roller.insight.whatif.primitives import remove, scale
from roller.insight.whatif.task_selection import (
    compute_tasks,
    matches_layers,
    parameter_bytes,
    pick_evenly_spaced_tasks,
    tasks_by_step,
    total_duration_us,
)


def scale_update_of_layers(graph: StepGraph, layers: str | Sequence[str], factor: float) -> StepGraph:
    """Scale the update as if the layers had ``factor`` times as many parameters; without gradients, change nothing."""
    if not graph.gradients:
        return graph
    whole, part = parameter_bytes(graph), parameter_bytes(graph, layers)
    share = 1.0 + (factor - 1.0) * part / whole if whole else 1.0  # the update's time is proportional to bytes
    first = graph.gradients[0].iteration
    own = [g for g in graph.gradients if g.iteration == first]
    gone = sum(matches_layers(g.module, layers) for g in own) / len(own)
    removed: list[int] = []
    for tasks in tasks_by_step(graph, compute_tasks(graph, "optimizer")).values():
        if factor == 0.0 and len(tasks) >= len(own):  # the update has kernels for every parameter
            removed += pick_evenly_spaced_tasks(tasks, round(gone * len(tasks)))
    kept = compute_tasks(graph, "optimizer") - set(removed)
    before, left = total_duration_us(graph, compute_tasks(graph, "optimizer")), total_duration_us(graph, kept)
    return scale(remove(graph, removed), kept, share * before / left if left else 1.0)
