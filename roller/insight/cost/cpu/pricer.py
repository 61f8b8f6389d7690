"""Prices of the operators of a step on a processor, one after the other: caches and fresh pages remember the step."""

from __future__ import annotations

import math

from roller.hardware import DeviceSpec, MemoryLayer
from roller.insight.cost.cpu.cache_state import Touched
from roller.insight.cost.cpu.machine_rates import Machine
from roller.insight.cost.cpu.operator_table import work_of
from roller.insight.cost.cpu.operator_work import Traffic, Work
from roller.insight.cost.operators import Price
from roller.insight.memory.cpu_heap import Placed, placed
from roller.insight.trace.progress import report
from roller.insight.trace.trace import Operator, Trace

_NOTHING = Price(0.0, 0.0, 0.0, "none", 0, "none")
#: Relative error of a time where the device says none.
_UNKNOWN_ERROR = 0.5


class ProcessorPricer:
    """Prices of the kernels of PyTorch and the libraries below it on a processor.

    Parameters
    ----------
    spec
        The processor.
    """

    def __init__(self, spec: DeviceSpec) -> None:
        self.machine = Machine(spec)
        self._factor = math.exp(spec.accuracy.prediction_error or _UNKNOWN_ERROR)
        self._touched = Touched(self.machine.rooms[-1][1])

    def steady(self, trace: Trace) -> list[Price]:
        """Return the prices of the last step, as such steps before it leave caches and heap."""
        works = [work_of(operator) for operator in trace.steady()]
        for done in (0, len(works)):
            storages = placed(trace)
            prices = list[Price]()
            for operator, work in zip(trace.steady(), works, strict=True):
                prices.append(self._next(operator, *work, storages))
                report("price", done + len(prices), 2 * len(works))
        return prices

    def _next(self, operator: Operator, work: Work | None, mapped: bool, storages: dict[int, Placed]) -> Price:
        """Return the price of the next operator."""
        if work is None:
            return _NOTHING
        moved = [self._moved(x, storages) for x in work.reads]
        read = {x.tensor.storage for x in work.reads}
        for traffic in work.writes:  # a line is read before it is written, and written back
            layer, size = self._moved(traffic, storages)
            moved.append((layer, size if traffic.tensor.storage in read else 2 * size))
        fresh = sum(self._first(x.tensor.storage, storages) for x in work.writes)
        far = self.machine.caches[-1]
        strewn = sum(n for x, (layer, n) in zip(work.reads, moved, strict=False) if x.is_strewn and layer is far)
        parts = self.machine.parts(work, tuple(moved), fresh, strewn)
        low, high = parts.seconds / self._factor, parts.seconds * self._factor
        return Price(parts.seconds, low, high, parts.resource, 1, "library" if mapped else "bytes")

    def _moved(self, traffic: Traffic, storages: dict[int, Placed]) -> tuple[MemoryLayer, float]:
        """Return where a tensor lies, and what is moved of it; from now on it lies near."""
        tensor, size = traffic.tensor, traffic.size_bytes
        number, once = tensor.storage, size / (traffic.passes or 1.0)
        place = storages.get(number)
        if place is not None and place.before is not None:
            self._touched.take_over(number, place.before)
            storages[number] = Placed(place.fresh_bytes, None)
        layer = self.machine.layer_of(self._touched.distance_bytes(number, once))
        self._touched.touch(number, once)
        return layer, size

    def _first(self, storage: int, storages: dict[int, Placed]) -> float:
        """Return the bytes of a result that nobody touched before."""
        place = storages.get(storage)
        if place is None or not place.fresh_bytes:
            return 0.0
        storages[storage] = Placed(0, None)
        return float(place.fresh_bytes)
