"""What-if: additional copies of a layer."""

from __future__ import annotations

from dataclasses import dataclass

from roller.insight.step.graph import StepGraph
from roller.insight.whatif.repeat_tasks import repeat_tasks
from roller.insight.whatif.scale_layer_updates import scale_update_of_layers
from roller.insight.whatif.task_selection import compute_tasks, compute_tasks_in_layers, tasks_by_step
from roller.insight.whatif.what_if import WhatIf


@dataclass(frozen=True)
class AddLayer(WhatIf):
    """Repeat layers matching a pattern ``times`` more times, with their kernels, launches and share of the update."""

    layers: tuple[str, ...] | str
    times: int = 1

    def change(self, graph: StepGraph) -> StepGraph:
        """Return the graph of the deeper model."""
        chosen = compute_tasks_in_layers(graph, self.layers)
        made = scale_update_of_layers(graph, self.layers, 1.0 + self.times)
        for phase in ("forward", "backward"):
            for own in tasks_by_step(graph, chosen & compute_tasks(graph, phase)).values():
                made = repeat_tasks(made, own, behind=own[-1], times=self.times)
        return made
