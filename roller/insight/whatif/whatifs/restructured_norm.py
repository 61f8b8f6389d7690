"""What-if: batch normalization that is split and fused into the preceding and the following convolution."""

from __future__ import annotations

import re
from dataclasses import dataclass

from roller.insight.step.graph import StepGraph, Task
from roller.insight.whatif.primitives import remove, scale
from roller.insight.whatif.task_selection import compute_tasks, neighbouring_kernels
from roller.insight.whatif.what_if import WhatIf

_NORM, _ACTIVATION, _CONVOLUTION = (
    re.compile(p, re.I)
    for p in (r"batch_?norm|_bn_|bn_[fb]w", r"relu|threshold|clamp_min", r"conv|wgrad|dgrad|winograd")
)


@dataclass(frozen=True)
class RestructuredNorm(WhatIf):
    """Remove activations between normalization and convolution; scale normalizations by the published factor 1/2."""

    factor: float = 0.5
    assumptions = ("Allocations and copies of the restructured layers are not counted: the gain is an upper bound.",)

    def change(self, graph: StepGraph) -> StepGraph:
        """Return the graph with restructured normalizations."""
        before, behind = neighbouring_kernels(graph)
        chosen = {n: graph.tasks[n] for n in compute_tasks(graph, "forward", "backward")}
        norms = {n for n, task in chosen.items() if _matches_name(_NORM, task)}
        gone = {
            n for n, task in chosen.items()
            if _matches_name(_ACTIVATION, task) and n in before and n in behind
            and any(_matches_name(_NORM, a) and _matches_name(_CONVOLUTION, b) for a,
                    b in _pairs_in_both_orders(before[n],
                                                                                                        behind[n]))
        }  # fmt: skip
        return scale(remove(graph, gone), norms, self.factor)


def _pairs_in_both_orders(one: Task, other: Task) -> tuple[tuple[Task, Task], ...]:
    return (one, other), (other, one)  # the backward pass runs them in reverse


def _matches_name(pattern: re.Pattern[str], task: Task) -> bool:
    return pattern.search(task.context.operator or task.name) is not None
