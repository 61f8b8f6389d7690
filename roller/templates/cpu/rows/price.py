"""The price of row reductions on a CPU: streams with a start-up time per task."""

from __future__ import annotations

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.cpu.common.task_scheduling_costs import Parts, Terms
from roller.templates.cpu.streaming.price import nontemporal_drain_s, streaming_price_terms, task_start_s


def price(batch: TileBatch, spec: DeviceSpec, parts: Parts) -> Terms:
    """Price a batch: return ``seconds`` and its terms as arrays of shape ``(N,)``."""
    return streaming_price_terms(batch, spec, parts, task_start_s(spec) + batch.nontemporal * nontemporal_drain_s(spec))
