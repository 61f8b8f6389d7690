"""What-if: frozen layers, which have no weight gradients and no update."""

from __future__ import annotations

from dataclasses import dataclass

from roller.insight.step.graph import StepGraph
from roller.insight.whatif.primitives import remove, scale
from roller.insight.whatif.scale_layer_updates import scale_update_of_layers
from roller.insight.whatif.task_selection import compute_tasks, compute_tasks_in_layers, tasks_by_layer, tasks_by_step
from roller.insight.whatif.what_if import WhatIf


@dataclass(frozen=True)
class Freeze(WhatIf):
    """Freeze layers, which then have no weight gradients and no update.

    Layers before the first trained layer lose their backward pass; that layer and later frozen layers lose half of it.
    """

    layers: tuple[str, ...] | str
    assumptions = ("Half of a layer's backward is the gradient of its weights, half that of its input.",)

    def change(self, graph: StepGraph) -> StepGraph:
        """Return the graph with frozen layers."""
        frozen, made = compute_tasks_in_layers(graph, self.layers), scale_update_of_layers(graph, self.layers, 0.0)
        with_weights = {g.module for g in graph.gradients}
        first = next(iter(tasks_by_step(graph, compute_tasks(graph, "forward")).values()))
        order = list(tasks_by_layer(graph, first))
        kept = {graph.tasks[n].context.module for n in compute_tasks(graph, "forward") - frozen}
        learns = next((at for at, x in enumerate(order) if x in kept and (x in with_weights or not with_weights)), 0)
        backward = tasks_by_layer(graph, compute_tasks(graph, "backward"))
        gone = {n for layer in set(order[:learns]) for n in backward.get(layer, ())}
        half = (frozen & compute_tasks(graph, "backward")) | set(backward.get(order[learns], ()) if gone else ())
        return scale(remove(made, gone), half - gone, 0.5)
