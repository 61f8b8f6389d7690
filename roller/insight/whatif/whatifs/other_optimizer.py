"""What-if: a different optimizer, whose update has different kernels and memory traffic."""

from __future__ import annotations

from dataclasses import dataclass, field

from roller.insight.step.graph import StepGraph
from roller.insight.whatif import detect_already_applied_changes
from roller.insight.whatif.optimizer_bytes import KINDS, UNFUSED
from roller.insight.whatif.primitives import remove, scale
from roller.insight.whatif.task_selection import (
    compute_tasks,
    pick_evenly_spaced_tasks,
    tasks_by_step,
    total_duration_us,
)
from roller.insight.whatif.what_if import WhatIf, allowed_values_metadata


@dataclass(frozen=True)
class OtherOptimizer(WhatIf):
    """Replace optimizer ``of`` with ``to``: scale the update by the ratios of kernel counts and memory traffic."""

    to: str = field(default="sgd", metadata=allowed_values_metadata(*KINDS))
    of: str = field(default="adam", metadata=allowed_values_metadata(*KINDS))
    assumptions = (
        "The update is as fused, and as grouped, as the one of the profile.",
        "No launches are added where the other optimizer has more; its time of the device is.",
    )

    def in_place(self, graph: StepGraph) -> str:
        """Return the reason if the profile's optimizer is already ``to``; otherwise ``""``."""
        return detect_already_applied_changes.same_optimizer_reason(graph, self.to, self.of)

    def change(self, graph: StepGraph) -> StepGraph:
        """Return the graph with the other optimizer's update."""
        made = graph
        for own in tasks_by_step(graph, compute_tasks(graph, "optimizer")).values():
            fused = len(own) < UNFUSED[self.of][0]
            moved = sum(KINDS[self.to]) / sum(KINDS[self.of]) if fused else UNFUSED[self.to][1] / UNFUSED[self.of][1]
            launched = 1.0 if fused else min(1.0, UNFUSED[self.to][0] / UNFUSED[self.of][0])
            kept = pick_evenly_spaced_tasks(own, max(1, round(launched * len(own))))
            made = scale(made, kept, moved * total_duration_us(graph, own) / (total_duration_us(graph, kept) or 1.0))
            made = remove(made, set(own) - set(kept))
        return made
