"""What-if: workers that load batches in parallel with training."""

from __future__ import annotations

import re
from dataclasses import dataclass

from roller.insight.cost.host_costs import load_host_costs
from roller.insight.step.graph import StepGraph
from roller.insight.whatif import detect_already_applied_changes
from roller.insight.whatif.batch_loading_by_workers import (
    STEADY,
    batch_loading_task_ids,
    batch_loading_times_us,
    new_loader_worker_tasks,
)
from roller.insight.whatif.insertion import insert
from roller.insight.whatif.primitives import set_duration
from roller.insight.whatif.task_selection import copy_tasks, tasks_by_step, total_size_bytes
from roller.insight.whatif.unroll_steps import unroll_steps
from roller.insight.whatif.what_if import WhatIf

_FROM_PAGES = re.compile(r"(HtoD|HostToDevice).*Pageable")


@dataclass(frozen=True)
class LoaderWorkers(WhatIf):
    """Load batches in worker processes, which pass them through shared memory.

    Parameters
    ----------
    workers
        Number of workers.
    prefetch
        Number of batches that each worker keeps ready.
    of
        Number of workers in the profiled run, which the profile does not give; ``None`` if the training thread loads
        batches.
    """

    workers: int = 4
    prefetch: int = 2
    of: int | None = None
    traced_with = ()
    assumptions = ("Every worker has a core of its own, and begins with its share of a batch done.",)

    def in_place(self, graph: StepGraph) -> str:
        """Return the reason if workers already load the batches; otherwise ``""``."""
        return detect_already_applied_changes.loader_workers_reason(
            graph, batch_loading_task_ids(graph), self.workers, self.of
        )

    def change(self, graph: StepGraph) -> StepGraph:
        """Return the graph with batches loaded by workers."""
        graph = unroll_steps(graph, STEADY) if batch_loading_task_ids(graph) else graph
        loads, took = (
            batch_loading_task_ids(graph),
            batch_loading_times_us(graph, batch_loading_task_ids(graph), self.of),
        )
        batch = [n for n in copy_tasks(graph) if _FROM_PAGES.search(graph.tasks[n].name)]
        size = max((total_size_bytes(graph, own) for own in tasks_by_step(graph, batch).values()), default=0.0)
        made = set_duration(graph, loads, load_host_costs().fetch_batch_us(size), "assumed")
        if self.of is None:
            made = set_duration(
                made, batch, lambda t: t.duration_us + load_host_costs().batch_page_faults_us(t.size_bytes), "assumed"
            )
        ready = self.workers * self.prefetch
        return insert(made, *new_loader_worker_tasks(loads, took, self.workers, ready, is_measured=self.of is None))
