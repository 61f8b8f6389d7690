"""Workers that load batches beside the training."""

from __future__ import annotations

import re
from dataclasses import dataclass

from roller.insight.whatif.change import WhatIf
from roller.insight.whatif.graph import Graph, Lane
from roller.insight.whatif.host import host
from roller.insight.whatif.insertion import New, insert
from roller.insight.whatif.pick import by_iteration, copies, ordered, total_bytes
from roller.insight.whatif.primitives import select, set_duration

_FROM_PAGES = re.compile(r"(HtoD|HostToDevice).*Pageable")


@dataclass(frozen=True)
class LoaderWorkers(WhatIf):
    """Load batches in processes of their own, which hand them over through shared memory.

    Parameters
    ----------
    workers
        How many.
    prefetch
        Batches that each keeps ready.
    """

    workers: int = 4
    prefetch: int = 2
    assumptions = ("Every worker has a core of its own, and the profile begins with batches that are ready.",)

    def change(self, graph: Graph) -> Graph:
        """Return the graph whose batches come from workers."""
        loads, new = ordered(graph, select(graph, lambda t: t.kind == "data")), []
        batch = [n for n in copies(graph) if _FROM_PAGES.search(graph.tasks[n].name)]
        size = max((total_bytes(graph, own) for own in by_iteration(graph, batch).values()), default=0.0)
        for at in range(ready := self.workers * self.prefetch, len(loads)):
            load, lane = graph.tasks[loads[at]], Lane(0, "loader", f"worker {at % self.workers}")
            new.append(New("load", "data", load.duration_us, lane=lane, after=(loads[at - ready],), before=(load.id,),
                           provenance="measured"))  # fmt: skip
        made = set_duration(graph, loads, host().batch_us(size), "assumed")
        made = set_duration(made, batch, lambda t: t.duration_us + host().touch_us(t.size_bytes), "assumed")
        return insert(made, *new)
