"""What-if: a parameter server with priority propagation (P3), which sends gradient slices in order of use."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from roller.insight.step.graph import Lane, StepGraph
from roller.insight.whatif.collective_communication_times import check_and_return_gradient_bytes, link_rates
from roller.insight.whatif.insertion import NewTask, insert
from roller.insight.whatif.primitives import remove
from roller.insight.whatif.task_selection import compute_tasks, tasks_by_layer, tasks_by_step
from roller.insight.whatif.unroll_steps import unroll_steps
from roller.insight.whatif.what_if import WhatIf, minimum_value_metadata


@dataclass(frozen=True)
class ParameterServer(WhatIf):
    """Push gradients to servers, which update parameters, and pull each parameter before its layer's next forward pass.

    Parameters
    ----------
    servers
        Number of servers; one is on this machine, and its part does not cross the network.
    bandwidth, latency_us
        Bytes per second of the link in one direction, and microseconds per transfer; by default, those of the device.
    slice_bytes
        Size of the largest transfer, in bytes; with slices as large as the model, this is a plain parameter server.
    priority
        Whether the slices that the next forward pass needs first are sent first (P3).
    """

    servers: int = 4
    bandwidth: float | None = None
    latency_us: float | None = field(default=None, metadata=minimum_value_metadata(0))
    slice_bytes: float = 4e6
    priority: bool = True
    assumptions = ("Servers update at once, and no two workers wait for each other at a server.",)

    def change(self, graph: StepGraph) -> StepGraph:
        """Return the graph of one worker, unrolled to at least three steps."""
        graph, size = unroll_steps(graph, 3), check_and_return_gradient_bytes(graph, self.slice_bytes)
        bandwidth, latency_us = link_rates(graph, self.bandwidth, self.latency_us)
        steps = tasks_by_step(graph, compute_tasks(graph, "forward"))
        forward = {n: tasks_by_layer(graph, own) for n, own in steps.items()}
        new, remote = list[NewTask](), (1 - 1 / self.servers) if size else 0.0
        for order, gradient in enumerate(graph.gradients):
            readers = forward.get(gradient.iteration + 1, {})
            first = (readers.get(gradient.module) or next(iter(readers.values()), ()))[:1]
            for _ in range(slices := max(1, math.ceil(gradient.size_bytes / self.slice_bytes))):
                time = remote * gradient.size_bytes / slices / bandwidth * 1e6 + latency_us
                number, rank = len(graph.tasks) + len(new), order if self.priority else 0
                context, ready = graph.tasks[gradient.ready].context, gradient.ready
                new.append(NewTask("push", "send", time, lane=SEND, after=(ready,), priority=rank, context=context))
                new.append(NewTask("pull", "receive", time, lane=RECEIVE, after=(number,), before=first, priority=rank,
                               context=context))  # fmt: skip
        return insert(remove(graph, compute_tasks(graph, "optimizer")), *new)


SEND, RECEIVE = Lane(0, "channel", "send"), Lane(0, "channel", "receive")
