"""What-if: a fused optimizer, with one kernel that updates all parameters."""

from __future__ import annotations

from dataclasses import dataclass, field

from roller.insight.step.graph import StepGraph
from roller.insight.whatif import detect_already_applied_changes
from roller.insight.whatif.insertion import NewTask, insert
from roller.insight.whatif.optimizer_bytes import KINDS, UNFUSED, fused_update_bytes
from roller.insight.whatif.price_changed_tasks import PricedValue, TaskPrices
from roller.insight.whatif.primitives import remove
from roller.insight.whatif.task_selection import compute_tasks, tasks_by_step, total_duration_us
from roller.insight.whatif.what_if import Pricing, WhatIf, allowed_values_metadata


@dataclass(frozen=True)
class FusedOptimizer(WhatIf):
    """Replace all kernels of the update, and their launches, with one kernel.

    Parameters
    ----------
    optimizer
        ``"adam"``, ``"adamw"``, ``"sgd"`` or ``"momentum"``.
    prices
        ``"model"``: moved bytes (Adam reads p, g, m, v and writes p, m, v) divided by the bandwidth of the device, or
        of the removed kernels if no device is named. ``"factor"``: the total time of the removed kernels, which is the
        published rule, and an upper bound if their times are mainly latency.
    """

    optimizer: str = field(default="adam", metadata=allowed_values_metadata(*KINDS))
    prices: Pricing = field(default="model", metadata=allowed_values_metadata("model", "factor"))

    def in_place(self, graph: StepGraph) -> str:
        """Return the reason if the optimizer is already fused; otherwise ``""``."""
        return detect_already_applied_changes.fused_optimizer_reason(graph)

    def change(self, graph: StepGraph) -> StepGraph:
        """Return the graph with one update kernel per step."""
        gone, new = compute_tasks(graph, "optimizer"), []
        for own in tasks_by_step(graph, gone).values():
            time, name = PricedValue(total_duration_us(graph, own), "assumed"), f"fused {self.optimizer}"
            if self.prices == "model" and (graph.device or name in graph.measured_kernels_us):
                time = TaskPrices(graph).price_stream(name, *fused_update_bytes(graph, self.optimizer))
            elif self.prices == "model" and len(own) >= UNFUSED[self.optimizer][0]:
                moved = sum(KINDS[self.optimizer]) / UNFUSED[self.optimizer][1]
                time = PricedValue(moved * total_duration_us(graph, own), "calibrated")
            new.append(NewTask(name, "kernel", time.value, behind=own[0], provenance=time.provenance))
        return insert(remove(graph, gone), *new)
