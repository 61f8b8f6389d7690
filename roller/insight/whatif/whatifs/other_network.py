"""Another network between devices."""

from __future__ import annotations

from dataclasses import dataclass

from roller.insight.whatif.change import WhatIf
from roller.insight.whatif.graph import Graph
from roller.insight.whatif.pick import transfers
from roller.insight.whatif.primitives import scale


@dataclass(frozen=True)
class OtherNetwork(WhatIf):
    """Scale what crosses the network.

    Parameters
    ----------
    bandwidth
        Factor on the bandwidth.
    """

    bandwidth: float = 2.0
    assumptions = ("Transfers are bound by the bandwidth: their latency shrinks and grows along.",)
    of_several_ranks = True

    def change(self, graph: Graph) -> Graph:
        """Return the graph with the other network."""
        return scale(graph, transfers(graph), 1.0 / self.bandwidth)
