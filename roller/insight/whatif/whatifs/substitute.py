"""Graph substitution (MetaFlow): layers go, change or come, as a search elsewhere has found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from roller.insight.step.graph import StepGraph
from roller.insight.whatif.primitives import scale
from roller.insight.whatif.select import some_layers
from roller.insight.whatif.what_if import WhatIf
from roller.insight.whatif.whatifs.add_layer import AddLayer
from roller.insight.whatif.whatifs.remove_layer import RemoveLayer


@dataclass(frozen=True)
class Substitute(WhatIf):
    """Apply substitutions: this prices what a search for them proposes, and searches for none.

    Parameters
    ----------
    remove
        Patterns of layers that go, with launches and their share of the update.
    scale
        Pattern of layers -> factor on their kernels.
    add
        Layer -> how many more like it follow it.
    """

    remove: tuple[str, ...] = ()
    scale: Mapping[str, float] = field(default_factory=dict)
    add: Mapping[str, int] = field(default_factory=dict)
    of_several_ranks = True

    def change(self, graph: StepGraph) -> StepGraph:
        """Return the graph of the other model."""
        for pattern, factor in self.scale.items():
            graph = scale(graph, some_layers(graph, pattern), factor)
        for layer, times in self.add.items():
            graph = AddLayer(layer, times).change(graph)
        return RemoveLayer(self.remove).change(graph) if self.remove else graph
