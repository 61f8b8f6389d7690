"""What-if: offloading (vDNN), which keeps feature maps on the host between the forward and backward passes."""

from __future__ import annotations

from dataclasses import dataclass, field

from roller.insight.step.graph import Lane, StepGraph
from roller.insight.whatif.insertion import NewTask, insert
from roller.insight.whatif.saved_activations import saved_feature_maps
from roller.insight.whatif.task_selection import sort_by_start
from roller.insight.whatif.what_if import WhatIf, minimum_value_metadata

OUT, BACK = Lane(0, "channel", "to host"), Lane(0, "channel", "from host")


@dataclass(frozen=True)
class Offload(WhatIf):
    """Copy feature maps to the host, and back shortly before their layer's backward pass.

    Parameters
    ----------
    layers
        Patterns of layers; all layers by default.
    bandwidth
        Bytes per second between device and host.
    distance
        Number of offloaded layers by which the fetch of a map precedes its layer's backward pass.
    waits
        Whether the next forward kernel waits for the copy because it needs the memory immediately.
    """

    layers: tuple[str, ...] | str = ()
    bandwidth: float = 12e9
    distance: int = field(default=1, metadata=minimum_value_metadata(0))
    waits: bool = False
    assumptions = ("The host's memory takes what is offloaded, and copies disturb no kernel.",)

    def change(self, graph: StepGraph) -> StepGraph:
        """Return the graph with copies in both directions."""
        new: list[NewTask] = []
        for maps in saved_feature_maps(graph, self.layers).values():
            for position, one in enumerate(maps):
                time, number = one.size_bytes / self.bandwidth * 1e6, len(graph.tasks) + len(new)
                nearer = maps[min(position + self.distance, len(maps) - 1)].preceding
                comes = nearer is not None and nearer in sort_by_start(graph, (nearer, one.backward))[:1]
                new += (
                    NewTask("offload", "copy", time, lane=OUT, after=(one.forward,), size_bytes=one.size_bytes,
                        before=(one.following,) if self.waits and one.following is not None else ()),
                    NewTask("prefetch", "copy", time, lane=BACK, before=(one.backward,), size_bytes=one.size_bytes,
                        after=(number, nearer) if nearer is not None and comes else (number,), priority=position),
                )  # fmt: skip
        return insert(graph, *new)
