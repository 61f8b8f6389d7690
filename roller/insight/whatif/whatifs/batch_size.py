"""What-if: a different batch size."""

from __future__ import annotations

from dataclasses import dataclass, field

from roller.insight.step.graph import StepGraph
from roller.insight.whatif.primitives import select, set_duration
from roller.insight.whatif.task_selection import compute_tasks, copy_tasks, shortest_kernel_us
from roller.insight.whatif.what_if import WhatIf, minimum_value_metadata


@dataclass(frozen=True)
class Batch(WhatIf):
    """Change the batch: the forward and backward passes, copies and loading scale with it, but the update does not.

    Parameters
    ----------
    factor
        Factor by which the number of samples changes.
    floor_us
        Time of the shortest kernels; by default, taken from the profile.
    """

    factor: float = 2.0
    floor_us: float | None = field(default=None, metadata=minimum_value_metadata(0))
    traced_with = (("factor", "batch_factor"),)
    assumptions = ("Memory is not looked at (roller memory does), and kernels keep their rates.",)
    of_several_ranks = True

    def change(self, graph: StepGraph) -> StepGraph:
        """Return the graph at the changed batch size."""
        floor = shortest_kernel_us(graph) if self.floor_us is None else self.floor_us
        grows = (
            compute_tasks(graph, "forward", "backward") | copy_tasks(graph) | select(graph, lambda t: t.kind == "data")
        )
        return set_duration(
            graph, grows, lambda t: floor + max(0.0, t.duration_us - floor) * self.factor if t.duration_us > floor
            else t.duration_us
        )  # fmt: skip
