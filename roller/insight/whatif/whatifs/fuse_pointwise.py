"""What-if: element-wise operators, norms and reductions fused into generated kernels."""

from __future__ import annotations

from dataclasses import dataclass

from roller.insight.step.graph import StepGraph
from roller.insight.whatif import detect_already_applied_changes
from roller.insight.whatif.fused_task_durations import durations_with_fused_chains, durations_with_generated_kernels
from roller.insight.whatif.primitives import annotate, remove, set_duration
from roller.insight.whatif.what_if import WhatIf

_COMPILED = (
    "Forward and backward are compiled as a whole: chains are fused across layers, the backward computes again what is "
    "cheaper than to save it.",
    "Memory formats stay as they are: what a compiler gains by another one is not in this; ask for a forecast with the "
    "policy 'compiled'.",
)
_CHAINS = (
    "A fused kernel takes as long as the longest of its chain: values between them stay on the chip.",
    "Neighbours of one layer that are bound by memory are fused, reductions too. A profile does not say what reads "
    "what: a compiler may fuse less, and across layers more, so the gain is no bound.",
)


@dataclass(frozen=True)
class FusePointwise(WhatIf):
    """Fuse memory-bound operators as a compiler does.

    A traced step gets the kernels that PyTorch's compiler would generate. A profile has no data flow, so neighbours on
    a stream that belong to one phase and layer are fused.

    Parameters
    ----------
    longest
        Maximum number of kernels in a chain in a profile.
    """

    longest: int = 8

    def in_place(self, graph: StepGraph) -> str:
        """Return the reason if a compiler has already fused most memory-bound kernels; otherwise ``""``."""
        return detect_already_applied_changes.fused_pointwise_reason(graph)

    def change(self, graph: StepGraph) -> StepGraph:
        """Return the graph with fused kernels."""
        generated = durations_with_generated_kernels(graph)
        found = durations_with_fused_chains(graph, self.longest) if generated is None else generated
        lasting = {n: took for n, took in found.items() if took is not None}
        fewer = remove(graph, [n for n, took in found.items() if took is None])
        made = set_duration(fewer, lasting, lambda t: lasting[t.id], "assumed" if generated is None else "predicted")
        return annotate(made, made.name, *(_CHAINS if generated is None else _COMPILED))
