"""The share of some layers in the update of all."""

from __future__ import annotations

from collections.abc import Sequence

from roller.insight.step.graph import StepGraph
from roller.insight.whatif.primitives import remove, scale
from roller.insight.whatif.select import by_iteration, in_layers, parameter_bytes, spread, total_us, work


def with_update_of(graph: StepGraph, layers: str | Sequence[str], factor: float) -> StepGraph:
    """Return a graph whose update works on ``factor`` times as much of some layers' parameters.

    The update's time goes with the bytes of parameters. Where it has kernels for every parameter, those of parameters
    that go are removed with their launches. A profile without gradients has no parameters, and stays as it is.
    """
    if not graph.gradients:
        return graph
    patterns = (layers,) if isinstance(layers, str) else tuple(layers)
    whole, part = parameter_bytes(graph), parameter_bytes(graph, patterns)
    share = 1.0 + (factor - 1.0) * part / whole if whole else 1.0
    first = graph.gradients[0].iteration
    own = [g for g in graph.gradients if g.iteration == first]
    gone = sum(in_layers(g.module, patterns) for g in own) / len(own)
    removed: list[int] = []
    for tasks in by_iteration(graph, work(graph, "optimizer")).values():
        if factor == 0.0 and len(tasks) >= len(own):
            removed += spread(tasks, round(gone * len(tasks)))
    kept = work(graph, "optimizer") - set(removed)
    before, left = total_us(graph, work(graph, "optimizer")), total_us(graph, kept)
    return scale(remove(graph, removed), kept, share * before / left if left else 1.0)
