"""Workers that load batches beside the training."""

from __future__ import annotations

import re
from dataclasses import dataclass

from roller.insight.cost.host_costs import load_host_costs
from roller.insight.step.graph import StepGraph
from roller.insight.whatif import already_applied
from roller.insight.whatif.data_loading import STEADY, load_us, loads_of, worker_tasks
from roller.insight.whatif.insertion import insert
from roller.insight.whatif.primitives import set_duration
from roller.insight.whatif.select import by_iteration, copies, total_bytes
from roller.insight.whatif.unroll_steps import unrolled
from roller.insight.whatif.what_if import WhatIf

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
    of
        How many the profile had, where its batches come from workers: it does not say.
    """

    workers: int = 4
    prefetch: int = 2
    of: int | None = None
    assumptions = ("Every worker has a core of its own, and begins with its share of a batch done.",)

    def in_place(self, graph: StepGraph) -> str:
        """Return why, where it is."""
        return already_applied.workers(graph, loads_of(graph), self.workers, self.of)

    def change(self, graph: StepGraph) -> StepGraph:
        """Return the graph whose batches come from workers."""
        graph = unrolled(graph, STEADY) if loads_of(graph) else graph
        loads, took = loads_of(graph), load_us(graph, loads_of(graph), self.of)
        batch = [n for n in copies(graph) if _FROM_PAGES.search(graph.tasks[n].name)]
        size = max((total_bytes(graph, own) for own in by_iteration(graph, batch).values()), default=0.0)
        made = set_duration(graph, loads, load_host_costs().fetch_batch_us(size), "assumed")
        if self.of is None:
            made = set_duration(
                made, batch, lambda t: t.duration_us + load_host_costs().page_faults_us(t.size_bytes), "assumed"
            )
        ready = self.workers * self.prefetch
        return insert(made, *worker_tasks(loads, took, self.workers, ready, told=self.of is None))
