"""What the host of a training step takes: numbers of ``host_costs.yaml``, each with its source there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Host:
    """What a batch that comes from another process costs, and how far launches run ahead.

    Parameters
    ----------
    fetch_us
        To fetch one that is ready.
    page_bytes, fault_us_per_page, release_us_per_page
        Its memory is mapped: each page is met for the first time once, and given back once.
    launch_queue_places
        Launches that a stream takes before a further one waits.
    launch_latency_us
        From a launch to its kernel on an idle stream, where a profile does not tell.
    """

    fetch_us: float
    page_bytes: int
    fault_us_per_page: float
    release_us_per_page: float
    launch_queue_places: int
    launch_latency_us: float

    def batch_us(self, size_bytes: float) -> float:
        """Return what a batch takes on the thread that trains: it is fetched, and the one before is given back."""
        return self.fetch_us + self.release_us_per_page * size_bytes / self.page_bytes

    def touch_us(self, size_bytes: float) -> float:
        """Return what reading a batch for the first time takes longer than reading it again."""
        return self.fault_us_per_page * size_bytes / self.page_bytes


@lru_cache(maxsize=1)
def host() -> Host:
    """Return the numbers of ``host_costs.yaml``."""
    return Host(**yaml.safe_load(Path(__file__).with_name("host_costs.yaml").read_text(encoding="utf-8")))
