"""Prices of a step's operators on a CPU, computed in order because they depend on the state of caches and pages."""

from __future__ import annotations

import math

from roller.hardware import DeviceSpec, MemoryLayer
from roller.hardware.peak_rates import peak_flops_and_instruction_class
from roller.insight.cost.arithmetic_pipe_work import PipeWork
from roller.insight.cost.cpu.operator_table import operator_work
from roller.insight.cost.cpu.operator_work import OperatorWork, TensorTraffic
from roller.insight.cost.cpu.processor_rates import ProcessorRates
from roller.insight.cost.cpu.reuse_distance import AccessHistory
from roller.insight.cost.operator_price import LaunchPrice, Price
from roller.insight.memory.cpu_heap import Placement, placements_by_storage
from roller.insight.trace.progress import report_progress
from roller.insight.trace.trace import Operator, Trace

_NOTHING = Price(0.0, 0.0, 0.0, "none", 0, "none")
#: Relative error of a time if the specification gives none.
_UNKNOWN_ERROR = 0.5


class ProcessorPricer:
    """Prices of the CPU kernels of PyTorch and its libraries."""

    def __init__(self, spec: DeviceSpec) -> None:
        self.machine = ProcessorRates(spec)
        self._factor = math.exp(spec.accuracy.prediction_error or _UNKNOWN_ERROR)
        self._touched = AccessHistory(self.machine.usable_cache_bytes[-1][1])

    def price_last_step(self, trace: Trace) -> list[Price]:
        """Return the prices of the last step's operators, with caches and heap in a steady state."""
        works = [operator_work(operator) for operator in trace.steady()]
        for done in (0, len(works)):
            storages = placements_by_storage(trace)
            prices = list[Price]()
            for operator, work in zip(trace.steady(), works, strict=True):
                prices.append(self._price_operator(operator, *work, storages))
                report_progress("price", done + len(prices), 2 * len(works))
        return prices

    def _price_operator(
        self, operator: Operator, work: OperatorWork | None, mapped: bool, storages: dict[int, Placement]
    ) -> Price:
        """Return the price of the next operator and record its memory accesses."""
        if work is None:
            return _NOTHING
        moved = [self._record_access(x, storages) for x in work.reads]
        read = {x.tensor.storage for x in work.reads}
        for traffic in work.writes:  # a cache line is read before it is written, and later written back
            layer, size = self._record_access(traffic, storages)
            moved.append((layer, size if traffic.tensor.storage in read else 2 * size))
        fresh = sum(self._count_and_touch_fresh_bytes(x.tensor.storage, storages) for x in work.writes)
        far = self.machine.caches[-1]
        scattered = sum(n for x, (layer, n) in zip(work.reads, moved, strict=False) if x.is_scattered and layer is far)
        parts = self.machine.seconds_by_resource(work, tuple(moved), fresh, scattered)
        low, high = parts.seconds / self._factor, parts.seconds * self._factor
        row = LaunchPrice(operator.name, 1, parts.seconds, parts.resource, self._arithmetic_pipe_work(work), low, high)
        provenance = "library" if mapped else "bytes"
        return Price(parts.seconds, low, high, parts.resource, 1, provenance, launches=(row,))

    def _arithmetic_pipe_work(self, work: OperatorWork) -> PipeWork | None:
        spec = self.machine.spec
        peak = peak_flops_and_instruction_class(spec, work.dtype) if work.multiplies else None
        if peak is not None:
            return PipeWork("fma", 2 * work.multiplies, 2 * work.multiplies / peak[0])
        rate = spec.compute.ops_per_cycle_per_unit["special"] * spec.clock_hz * spec.units
        return PipeWork("special", work.exponentials, work.exponentials / rate) if work.exponentials else None

    def _record_access(self, traffic: TensorTraffic, storages: dict[int, Placement]) -> tuple[MemoryLayer, float]:
        """Record an access; return the tensor's memory layer and the bytes moved from that layer."""
        tensor, size = traffic.tensor, traffic.size_bytes
        number, once = tensor.storage, size / (traffic.passes or 1.0)
        place = storages.get(number)
        if place is not None and place.before is not None:
            self._touched.record_address_reuse(number, place.before)
            storages[number] = Placement(place.fresh_bytes, None)
        layer = self.machine.cache_level_at_reuse_distance(self._touched.reuse_distance_bytes(number, once))
        self._touched.record_access(number, once)
        return layer, size

    def _count_and_touch_fresh_bytes(self, storage: int, storages: dict[int, Placement]) -> float:
        """Return the number of a storage's bytes on untouched pages, and mark those pages as touched."""
        place = storages.get(storage)
        if place is None or not place.fresh_bytes:
            return 0.0
        storages[storage] = Placement(0, None)
        return float(place.fresh_bytes)
