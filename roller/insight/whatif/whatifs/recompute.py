"""Activation recomputation: a block runs forward once more before its backward."""

from __future__ import annotations

from dataclasses import dataclass

from roller.insight.step.graph import StepGraph
from roller.insight.whatif.repeat_tasks import repeated
from roller.insight.whatif.select import by_iteration, some_layers, work
from roller.insight.whatif.what_if import WhatIf


@dataclass(frozen=True)
class Recompute(WhatIf):
    """Repeat the forward of blocks before their backward.

    Parameters
    ----------
    blocks
        Patterns of layers; what each matches is one block, of which only the input is kept.
    """

    blocks: tuple[str, ...]

    def change(self, graph: StepGraph) -> StepGraph:
        """Return the graph with recomputation."""
        made = graph
        for block in self.blocks:
            chosen = some_layers(graph, block)
            backward = by_iteration(graph, chosen & work(graph, "backward"))
            for iteration, own in by_iteration(graph, chosen & work(graph, "forward")).items():
                if iteration in backward:
                    made = repeated(made, own, ahead=backward[iteration][0])
        return made
