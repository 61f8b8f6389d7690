"""What-if: feature maps that stay compressed between the forward and backward passes of their layers (Gist)."""

from __future__ import annotations

from dataclasses import dataclass

from roller.insight.step.graph import StepGraph
from roller.insight.whatif.insertion import NewTask, insert
from roller.insight.whatif.price_changed_tasks import TaskPrices
from roller.insight.whatif.saved_activations import saved_feature_maps
from roller.insight.whatif.what_if import WhatIf


@dataclass(frozen=True)
class Gist(WhatIf):
    """Store feature maps in fewer bits between the forward and backward passes.

    Parameters
    ----------
    layers
        Patterns of layers; all layers by default.
    bits
        Bits per 32-bit element: 1 for ReLU before pooling, 8 or 16 for lower precision, about 40 times the non-zero
        share for sparse storage.
    """

    layers: tuple[str, ...] | str = ()
    bits: float = 8.0
    assumptions = ("A map is encoded and decoded in one pass each; memory it saves is not made use of.",)

    def change(self, graph: StepGraph) -> StepGraph:
        """Return the graph with kernels that encode each feature map after its use and decode it for reuse."""
        prices, new = TaskPrices(graph), []
        for one in (one for maps in saved_feature_maps(graph, self.layers).values() for one in maps):
            short = one.size_bytes * self.bits / 32
            encode, decode = (
                prices.price_stream("encode", one.size_bytes, short),
                prices.price_stream("decode", short, one.size_bytes),
            )
            new.append(NewTask("encode", "kernel", encode.value, behind=one.forward, provenance=encode.provenance))
            new.append(NewTask("decode", "kernel", decode.value, ahead=one.backward, provenance=decode.provenance))
        return insert(graph, *new)
