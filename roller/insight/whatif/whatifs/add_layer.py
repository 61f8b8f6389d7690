"""A model with more layers like one it has."""

from __future__ import annotations

from dataclasses import dataclass

from roller.insight.step.graph import StepGraph
from roller.insight.whatif.layer_share import with_update_of
from roller.insight.whatif.repeat_tasks import repeated
from roller.insight.whatif.select import by_iteration, some_layers, work
from roller.insight.whatif.what_if import WhatIf


@dataclass(frozen=True)
class AddLayer(WhatIf):
    """Repeat a layer, or a block of them, behind itself: forward, backward, launches, and its share of the update.

    Parameters
    ----------
    layers
        Pattern of the layer.
    times
        How many more there are.
    """

    layers: tuple[str, ...] | str
    times: int = 1

    def change(self, graph: StepGraph) -> StepGraph:
        """Return the graph of the deeper model."""
        chosen = some_layers(graph, self.layers)
        made = with_update_of(graph, self.layers, 1.0 + self.times)
        for phase in ("forward", "backward"):
            for own in by_iteration(graph, chosen & work(graph, phase)).values():
                made = repeated(made, own, behind=own[-1], times=self.times)
        return made
