"""What-if: a model without some of its layers."""

from __future__ import annotations

from dataclasses import dataclass

from roller.insight.step.graph import StepGraph
from roller.insight.whatif.primitives import remove
from roller.insight.whatif.scale_layer_updates import scale_update_of_layers
from roller.insight.whatif.task_selection import compute_tasks, compute_tasks_in_layers
from roller.insight.whatif.what_if import WhatIf


@dataclass(frozen=True)
class RemoveLayer(WhatIf):
    """Remove the layers matching shell-style patterns, with their kernels, launches and share of the update."""

    layers: tuple[str, ...] | str
    assumptions = ("Layers beside a removed one keep the sizes they have.",)

    def change(self, graph: StepGraph) -> StepGraph:
        """Return the graph without the layers."""
        gone = compute_tasks_in_layers(graph, self.layers) - compute_tasks(graph, "optimizer")
        return remove(scale_update_of_layers(graph, self.layers, 0.0), gone)
