"""What-if: a grouped optimizer, with one kernel for many parameters and the same number of passes."""

from __future__ import annotations

from dataclasses import dataclass

from roller.insight.step.graph import StepGraph
from roller.insight.whatif import detect_already_applied_changes
from roller.insight.whatif.primitives import remove, set_duration
from roller.insight.whatif.task_selection import compute_tasks, shortest_kernel_us, tasks_by_step, total_duration_us
from roller.insight.whatif.what_if import WhatIf


@dataclass(frozen=True)
class ForeachOptimizer(WhatIf):
    """Update ``group`` parameters per kernel (``foreach=True``) instead of one."""

    group: int = 50
    assumptions = ("A group takes the sum of its kernels, less what each takes however small it is.",)

    def in_place(self, graph: StepGraph) -> str:
        """Return the reason if the update already groups parameters; otherwise ``""``."""
        return detect_already_applied_changes.foreach_optimizer_reason(graph)

    def change(self, graph: StepGraph) -> StepGraph:
        """Return the graph with grouped updates."""
        update, floor = tasks_by_step(graph, compute_tasks(graph, "optimizer")), shortest_kernel_us(graph)
        kept = {n: total_duration_us(graph, part) - floor * (len(part) - 1)
                for own in update.values() for part in _split_into_groups(own,
                                                                          self.group) for n in part[:1]}  # fmt: skip
        gone = compute_tasks(graph, "optimizer") - kept.keys()
        return set_duration(remove(graph, gone), kept, lambda t: max(floor, kept[t.id]))


def _split_into_groups(tasks: tuple[int, ...], size: int) -> list[tuple[int, ...]]:
    return [tasks[at : at + size] for at in range(0, len(tasks), size)]
