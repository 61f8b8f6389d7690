"""What-if: a network of different bandwidth between devices."""

from __future__ import annotations

from dataclasses import dataclass

from roller.insight.step.graph import StepGraph
from roller.insight.whatif.primitives import scale
from roller.insight.whatif.task_selection import network_tasks
from roller.insight.whatif.what_if import WhatIf


@dataclass(frozen=True)
class OtherNetwork(WhatIf):
    """Scale the bandwidth of the network by a factor."""

    bandwidth: float = 2.0
    traced_with = ()
    assumptions = ("Transfers are bound by the bandwidth: their latency shrinks and grows along.",)
    of_several_ranks = True

    def change(self, graph: StepGraph) -> StepGraph:
        """Return the graph with scaled network transfers."""
        return scale(graph, network_tasks(graph), 1.0 / self.bandwidth)
