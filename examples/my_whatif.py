"""A what-if of one's own: the softmax and what stands around it as one kernel.

python examples/my_whatif.py profile.json.gz
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import roller
from roller.insight.step.graph import StepGraph
from roller.insight.whatif.predict import what_if
from roller.insight.whatif.primitives import remove, scale
from roller.insight.whatif.task_selection import compute_tasks, neighbouring_kernels
from roller.insight.whatif.what_if import WhatIf


@dataclass(frozen=True)
class FusedSoftmax(WhatIf):
    """Remove the kernels on both sides of each softmax.

    Parameters
    ----------
    factor
        On the softmax, which does their work as well.
    """

    factor: float = 1.2
    assumptions = ("The fused kernel takes a fifth longer than the softmax alone.",)

    def change(self, graph: StepGraph) -> StepGraph:
        """Return the graph with fused kernels."""
        before, behind = neighbouring_kernels(graph)
        softmax = {n for n in compute_tasks(graph) if "softmax" in graph.tasks[n].context.operator}
        beside = {side[n].id for n in softmax for side in (before, behind) if n in side}
        return scale(remove(graph, beside - softmax), softmax, self.factor)


def main(profile: str) -> None:
    """Print what it would bring."""
    found = what_if(roller.from_kineto(profile), FusedSoftmax())
    print(f"{found.speedup:.2f}x: {found.baseline_us:.0f} us, then {found.iteration_us:.0f} us (predicted)")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
