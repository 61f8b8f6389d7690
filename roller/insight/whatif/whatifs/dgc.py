"""What-if: deep gradient compression, which sends only the largest gradients over the network."""

from __future__ import annotations

from dataclasses import dataclass

from roller.insight.step.graph import StepGraph
from roller.insight.whatif.collective_communication_times import link_rates, sparse_all_gather_us
from roller.insight.whatif.insertion import NewTask, insert
from roller.insight.whatif.price_changed_tasks import TaskPrices
from roller.insight.whatif.primitives import set_duration
from roller.insight.whatif.task_selection import network_tasks
from roller.insight.whatif.what_if import WhatIf


@dataclass(frozen=True)
class DGC(WhatIf):
    """Compress every reduction of a preceding DDP: values and indices of the largest gradients are gathered.

    Parameters
    ----------
    devices, bandwidth
        See :class:`DDP`.
    density
        Share of the gradients that is sent.
    index_bytes, value_bytes
        Bytes per sent index and per sent value.
    """

    devices: int = 2
    bandwidth: float | None = None
    density: float = 0.001
    index_bytes: int = 4
    value_bytes: int = 4
    assumptions = ("Selecting and unpacking take a pass over the gradients each.",)

    def change(self, graph: StepGraph) -> StepGraph:
        """Return the graph with compressed reductions."""
        prices, (bandwidth, _), new = TaskPrices(graph), link_rates(graph, self.bandwidth, None), []
        collectives = [n for n in network_tasks(graph) if graph.tasks[n].kind == "collective"]
        reductions = [n for n in collectives if graph.tasks[n].size_bytes]
        for n in reductions:
            size = graph.tasks[n].size_bytes
            makers = [d.source for d in graph.dependencies if d.target == n and graph.tasks[d.source].kind == "kernel"]
            users = [d.target for d in graph.dependencies if d.source == n and graph.tasks[d.target].kind == "kernel"]
            pack = prices.price_stream("compress", size, size * self.density)
            unpack = prices.price_stream("unpack", 0, size)
            new += [NewTask("compress", "kernel", pack.value, behind=m, before=(n,), provenance=pack.provenance)
                    for m in makers]  # fmt: skip
            new += [NewTask("unpack", "kernel", unpack.value, ahead=u, after=(n,), provenance=unpack.provenance)
                    for u in users]  # fmt: skip
        made = set_duration(graph, reductions, lambda t: sparse_all_gather_us(
            t.size_bytes, self.devices, bandwidth, self.density, self.index_bytes, self.value_bytes))  # fmt: skip
        return insert(made, *new)
