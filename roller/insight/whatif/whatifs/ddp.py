"""What-if: data parallelism, where gradient buckets are reduced around a ring during the backward pass."""

from __future__ import annotations

from dataclasses import dataclass, field

from roller.insight.cost.ring_all_reduce import Ring
from roller.insight.step.graph import StepGraph
from roller.insight.trace.gradient_buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES
from roller.insight.whatif import detect_already_applied_changes
from roller.insight.whatif.add_data_parallel_reductions import add_data_parallelism
from roller.insight.whatif.collective_communication_times import link_rates
from roller.insight.whatif.memory_change_trace_options import MemoryChange
from roller.insight.whatif.price_changed_tasks import TaskPrices
from roller.insight.whatif.what_if import WhatIf, minimum_value_metadata

_ASSUMED = (
    "Devices are alike and none is late; the update waits for every gradient.",
    "Each device keeps its batch: a step trains on as many times the samples as there are devices.",
)


@dataclass(frozen=True)
class DDP(WhatIf):
    """Train on several devices with ``DistributedDataParallel``, starting from the profile of one device.

    Parameters
    ----------
    devices
        Number of devices, each with the profile's batch.
    bandwidth
        Bytes per second of a link in one direction; by default, the device's ``link_bytes_per_s``.
    latency_us
        Latency of one hop; by default, the device's link latency.
    first_bytes, bucket_bytes
        Capacities, in bytes, of the first bucket and of the others.
    interference
        Factor on the time of a reduction that runs in parallel with kernels; 1.34 was published for one library.
    """

    devices: int = 2
    bandwidth: float | None = None
    latency_us: float | None = field(default=None, metadata=minimum_value_metadata(0))
    first_bytes: int = FIRST_BUCKET_BYTES
    bucket_bytes: int = BUCKET_BYTES
    interference: float = 1.0
    traced_with = (("devices", "devices"),)
    assumptions, in_place = _ASSUMED, detect_already_applied_changes.data_parallel_reason

    def memory_change(self) -> MemoryChange | None:
        """Return the trace options that reproduce a device's memory; ``None`` unless buckets have PyTorch's sizes."""
        usual = (self.first_bytes, self.bucket_bytes) == (FIRST_BUCKET_BYTES, BUCKET_BYTES)
        return super().memory_change() if usual else None

    def change(self, graph: StepGraph) -> StepGraph:
        """Return the graph of one of the devices, unchanged for a single device."""
        bandwidth, latency_us = link_rates(graph, self.bandwidth, self.latency_us)
        prices = TaskPrices(graph)
        ring = Ring(self.devices, bandwidth, latency_us / 1e6)
        return add_data_parallelism(
            graph, ring, lambda size, count: prices.price_stream("bucket", size, size, count),
            first_bytes=self.first_bytes, bucket_bytes=self.bucket_bytes, interference=self.interference,
        )  # fmt: skip
