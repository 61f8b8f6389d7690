"""Costs of a training step on the host: the numbers of ``host_costs.yaml``, each with its source there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Host:
    """Costs of a batch that comes from another process, and how far launches run ahead.

    Parameters
    ----------
    fetch_us
        To fetch a batch that is ready.
    page_bytes, fault_us_per_page, release_us_per_page
        A batch's memory is mapped: each page is faulted in once, and unmapped once.
    launch_queue_places
        Launches that a stream queues before a further one blocks.
    launch_latency_us
        From a launch to its kernel on an idle stream, if a profile does not give it.
    """

    fetch_us: float
    page_bytes: int
    fault_us_per_page: float
    release_us_per_page: float
    launch_queue_places: int
    launch_latency_us: float

    def fetch_batch_us(self, size_bytes: float) -> float:
        """Return the time of a batch on the training thread: it is fetched, and the previous one is unmapped."""
        return self.fetch_us + self.release_us_per_page * size_bytes / self.page_bytes

    def page_faults_us(self, size_bytes: float) -> float:
        """Return the additional time of reading a batch for the first time, which faults its pages in."""
        return self.fault_us_per_page * size_bytes / self.page_bytes


@lru_cache(maxsize=1)
def load_host_costs() -> Host:
    """Return the numbers of ``host_costs.yaml``."""
    return Host(**yaml.safe_load(Path(__file__).with_name("host_costs.yaml").read_text(encoding="utf-8")))
