"""Compressed feature maps (Gist): encoded after their forward, decoded before their backward."""

from __future__ import annotations

from dataclasses import dataclass

from roller.insight.step.graph import StepGraph
from roller.insight.whatif.insertion import New, insert
from roller.insight.whatif.saved_activations import saved_feature_maps
from roller.insight.whatif.task_prices import TaskPrices
from roller.insight.whatif.what_if import WhatIf


@dataclass(frozen=True)
class Gist(WhatIf):
    """Keep feature maps in fewer bits between forward and backward.

    Parameters
    ----------
    layers
        Patterns of layers; all where none is named.
    bits
        Of an element that had 32: 1 for ReLU before pooling, 8 or 16 for shorter precision; the share that is not zero
        times 40 or so for sparse storage.
    """

    layers: tuple[str, ...] | str = ()
    bits: float = 8.0
    assumptions = ("A map is encoded and decoded in one pass each; memory it saves is not made use of.",)

    def change(self, graph: StepGraph) -> StepGraph:
        """Return the graph with a pass after each forward and one before each backward."""
        prices, new = TaskPrices(graph), []
        for one in (one for maps in saved_feature_maps(graph, self.layers).values() for one in maps):
            short = one.size_bytes * self.bits / 32
            encode, decode = (
                prices.price_stream("encode", one.size_bytes, short),
                prices.price_stream("decode", short, one.size_bytes),
            )
            new.append(New("encode", "kernel", encode.value, behind=one.forward, provenance=encode.provenance))
            new.append(New("decode", "kernel", decode.value, ahead=one.backward, provenance=decode.provenance))
        return insert(graph, *new)
