"""Host costs of a training step, read from ``host_costs.yaml``, which cites a source for each value."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import yaml


@dataclass(frozen=True)
class HostCosts:
    """Costs of receiving a batch from a loader process, and the depth and latency of the launch queue."""

    #: Time to fetch a batch that is ready.
    fetch_us: float
    #: Size of a page of a batch's mapped memory; each page is faulted in once and unmapped once.
    page_bytes: int
    fault_us_per_page: float
    release_us_per_page: float
    #: Number of launches that a stream queues before the next launch blocks.
    launch_queue_places: int
    #: Time from a launch to the start of its kernel on an idle stream, used if the profile does not give it.
    launch_latency_us: float

    def fetch_batch_us(self, size_bytes: float) -> float:
        """Return the training thread's time for a batch: the time to fetch it and unmap the previous batch."""
        return self.fetch_us + self.release_us_per_page * size_bytes / self.page_bytes

    def batch_page_faults_us(self, size_bytes: float) -> float:
        """Return the additional time for the first read of a batch, which faults in its pages."""
        return self.fault_us_per_page * size_bytes / self.page_bytes


@lru_cache(maxsize=1)
def load_host_costs() -> HostCosts:
    """Return the values in ``host_costs.yaml``."""
    return HostCosts(**yaml.safe_load(Path(__file__).with_name("host_costs.yaml").read_text(encoding="utf-8")))
