"""Chains of kernels bound by memory, fused into one each."""

from __future__ import annotations

from dataclasses import dataclass

from roller.insight.step.graph import StepGraph
from roller.insight.whatif import already_applied
from roller.insight.whatif.primitives import remove, set_duration
from roller.insight.whatif.select import compute_tasks, neighbouring_kernels, sort_by_start
from roller.insight.whatif.task_prices import TaskPrices
from roller.insight.whatif.what_if import WhatIf


@dataclass(frozen=True)
class FusePointwise(WhatIf):
    """Fuse neighbours on a stream that belong to one phase and layer and are bound by memory.

    Parameters
    ----------
    longest
        Most kernels of a chain.
    """

    longest: int = 8
    assumptions = (
        "A fused kernel takes as long as the longest of its chain: values between them stay on the chip.",
        "Whatever is bound by memory can be fused, reductions too: an upper bound.",
    )

    def in_place(self, graph: StepGraph) -> str:
        """Return the reason if it is in place."""
        return already_applied.fused_pointwise_reason(graph)

    def change(self, graph: StepGraph) -> StepGraph:
        """Return the graph with fused chains."""
        prices, before = TaskPrices(graph), neighbouring_kernels(graph)[0]
        chains: dict[int, list[int]] = {}
        head_of: dict[int, int] = {}
        for n in sort_by_start(graph, compute_tasks(graph, "forward", "backward")):
            task, previous = graph.tasks[n], before.get(n)
            head = n if previous is None else head_of.get(previous.id, n)
            same = previous is not None and previous.context[:3] == task.context[:3]
            if prices.bound_by(task) == "memory" and already_applied.COMPILED not in task.name:
                head_of[n] = head if same and len(chains.get(head, ())) < self.longest else n
                chains.setdefault(head_of[n], []).append(n)
        gone = [n for own in chains.values() for n in own[1:]]
        longest = {head: max(graph.tasks[n].duration_us for n in own) for head, own in chains.items() if len(own) > 1}
        return set_duration(remove(graph, gone), longest, lambda t: longest[t.id])
