"""Data parallelism: gradients in buckets, each reduced around a ring while backward goes on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from roller.insight.parallel import BUCKET_BYTES, FIRST_BUCKET_BYTES
from roller.insight.whatif import already
from roller.insight.whatif.change import WhatIf, at_least
from roller.insight.whatif.graph import Graph
from roller.insight.whatif.insertion import New, insert
from roller.insight.whatif.network import CHANNEL, buckets, link, ring_us
from roller.insight.whatif.pick import by_iteration, work
from roller.insight.whatif.prices import Prices

_ASSUMED = (
    "Devices are alike and none is late; the update waits for every gradient.",
    "Each device keeps its batch: a step trains on as many times the samples as there are devices.",
)


@dataclass(frozen=True)
class DDP(WhatIf):
    """Train on several devices, as ``DistributedDataParallel`` does, from the profile of one.

    Parameters
    ----------
    devices
        How many; each has the profile's batch.
    bandwidth
        Bytes a second of a link in one direction; by default the device's ``link_bytes_per_s``.
    latency_us
        Of one hop; by default the device's.
    first_bytes, bucket_bytes
        Capacity of the first bucket, and of the others.
    interference
        Factor on a reduction, which shares the device with kernels; 1.34 was published for one library.
    """

    devices: int = 2
    bandwidth: float | None = None
    latency_us: float | None = field(default=None, metadata=at_least(0))
    first_bytes: int = FIRST_BUCKET_BYTES
    bucket_bytes: int = BUCKET_BYTES
    interference: float = 1.0
    assumptions, in_place = _ASSUMED, already.reduced

    def change(self, graph: Graph) -> Graph:
        """Return the graph of one of the devices; nothing is added where there is one alone."""
        bandwidth, latency_us = link(graph, self.bandwidth, self.latency_us)
        updates, prices, new = by_iteration(graph, work(graph, "update")), Prices(graph), list[New]()
        steps = buckets(graph, self.first_bytes, self.bucket_bytes) if self.devices > 1 else {}
        for iteration, filled in steps.items():
            first = updates.get(iteration, ())[:1]
            for position, (size, count, task) in enumerate(filled):
                time = self.interference * ring_us(size, self.devices, bandwidth, latency_us)
                copy, number = prices.stream("bucket", size, size, count), len(graph.tasks) + len(new)
                new.append(New("bucket", "kernel", copy.value, behind=task, provenance=copy.provenance))
                previous = (number - (2 if first else 1),) if position else ()
                new.append(New("all-reduce", "collective", time, lane=CHANNEL, after=(number, *previous),
                               size_bytes=size, place=graph.tasks[task].place))  # fmt: skip
                if first:
                    new.append(replace(new[-2], name="unbucket", behind=None, ahead=first[0], after=(number + 1,)))
        return insert(graph, *new)
