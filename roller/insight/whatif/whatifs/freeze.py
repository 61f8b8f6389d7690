"""Frozen layers: no gradient of their weights is computed, and they are not updated."""

from __future__ import annotations

from dataclasses import dataclass

from roller.insight.step.graph import StepGraph
from roller.insight.whatif.layer_share import with_update_of
from roller.insight.whatif.primitives import remove, scale
from roller.insight.whatif.select import by_iteration, by_layer, some_layers, work
from roller.insight.whatif.what_if import WhatIf


@dataclass(frozen=True)
class Freeze(WhatIf):
    """Freeze layers: those before the first that still learns lose their backward, others and that first half of it.

    Parameters
    ----------
    layers
        Patterns of layers.
    """

    layers: tuple[str, ...] | str
    assumptions = ("Half of a layer's backward is the gradient of its weights, half that of its input.",)

    def change(self, graph: StepGraph) -> StepGraph:
        """Return the graph with frozen layers."""
        frozen, made = some_layers(graph, self.layers), with_update_of(graph, self.layers, 0.0)
        with_weights = {g.module for g in graph.gradients}
        first = next(iter(by_iteration(graph, work(graph, "forward")).values()))
        order = list(by_layer(graph, first))
        kept = {graph.tasks[n].context.module for n in work(graph, "forward") - frozen}
        learns = next((at for at, x in enumerate(order) if x in kept and (x in with_weights or not with_weights)), 0)
        backward = by_layer(graph, work(graph, "backward"))
        gone = {n for layer in set(order[:learns]) for n in backward.get(layer, ())}
        half = (frozen & work(graph, "backward")) | set(backward.get(order[learns], ()) if gone else ())
        return scale(remove(made, gone), half - gone, 0.5)
