"""The price of row reductions on a CPU: streams with a start-up time per task."""

from __future__ import annotations

from roller.hardware import DeviceSpec
from roller.perf.batch import TileBatch
from roller.templates.cpu.common.cores import Parts, Terms
from roller.templates.cpu.streaming.price import drained_s, streamed_terms, task_start_s


def price(batch: TileBatch, spec: DeviceSpec, parts: Parts) -> Terms:
    """Price a batch: return ``seconds`` and its terms as arrays of shape ``(N,)``."""
    return streamed_terms(batch, spec, parts, task_start_s(spec) + batch.nontemporal * drained_s(spec))
