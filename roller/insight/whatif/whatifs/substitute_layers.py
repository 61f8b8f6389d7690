"""What-if: graph substitution (MetaFlow), with layers removed, scaled or added as found by an external search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from roller.insight.step.graph import StepGraph
from roller.insight.whatif.primitives import scale
from roller.insight.whatif.task_selection import compute_tasks_in_layers
from roller.insight.whatif.what_if import WhatIf
from roller.insight.whatif.whatifs.add_layer import AddLayer
from roller.insight.whatif.whatifs.remove_layer import RemoveLayer


@dataclass(frozen=True)
class Substitute(WhatIf):
    """Apply the given substitutions, without searching for others.

    Parameters
    ----------
    remove
        Patterns of layers to remove, including their launches and their share of the update.
    scale
        Maps patterns of layers to factors on the times of their kernels.
    add
        Maps layers to numbers of additional copies.
    """

    remove: tuple[str, ...] = ()
    scale: Mapping[str, float] = field(default_factory=dict)
    add: Mapping[str, int] = field(default_factory=dict)
    of_several_ranks = True

    def change(self, graph: StepGraph) -> StepGraph:
        """Return the graph of the substituted model."""
        for pattern, factor in self.scale.items():
            graph = scale(graph, compute_tasks_in_layers(graph, pattern), factor)
        for layer, times in self.add.items():
            graph = AddLayer(layer, times).change(graph)
        return RemoveLayer(self.remove).change(graph) if self.remove else graph
