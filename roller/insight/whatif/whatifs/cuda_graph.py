"""What-if: a captured CUDA graph, with one launch per step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from roller.insight.step.graph import StepGraph
from roller.insight.whatif import detect_already_applied_changes
from roller.insight.whatif.primitives import move_launches, remove, select, set_duration
from roller.insight.whatif.task_selection import tasks_by_step
from roller.insight.whatif.what_if import WhatIf, minimum_value_metadata


@dataclass(frozen=True)
class CudaGraph(WhatIf):
    """Launch a step's forward pass, backward pass and update with one call that takes ``launch_us``."""

    launch_us: float = field(default=10.0, metadata=minimum_value_metadata(0))
    assumptions = ("All of a step can be captured: its shapes are fixed, and nothing in it reads a value.",)

    def in_place(self, graph: StepGraph) -> str:
        """Return the reason if captured graphs already launch most tasks; otherwise ``""``."""
        return detect_already_applied_changes.captured_graph_reason(graph)

    def change(self, graph: StepGraph) -> StepGraph:
        """Return the graph with one launch per step."""
        inside = ("forward", "backward", "optimizer")
        several = Counter(d.source for d in graph.dependencies if d.kind == "launch")
        calls = tasks_by_step(graph, select(
            graph, lambda t: t.kind == "launch" and t.context.phase in inside and several[t.id] <= 1))  # fmt: skip
        joined = {n: own[0] for own in calls.values() for n in own[1:]}
        made = remove(move_launches(graph, joined), joined, launches=False)
        return set_duration(made, [own[0] for own in calls.values()], self.launch_us)
