"""Rates of a CPU for library kernels: the time of arithmetic, memory traffic, page faults and thread forks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from roller.hardware import DeviceSpec, MemoryLayer
from roller.insight.cost.cpu.operator_work import GRAIN_ELEMENTS, OperatorWork

#: Share of a page fault during which no other thread can fault. Measured: two threads take two thirds of the time that
#: one thread takes.
_LOCKED = 1 / 3
#: Number of multiply-adds for which a blocked product uses one more thread.
_PRODUCT_GRAIN = 1 << 20


@dataclass(frozen=True)
class SecondsByResource:
    """Time that an operator spends on each resource; if ``hides``, arithmetic overlaps with memory traffic."""

    arithmetic_s: float
    memory_s: float
    fresh_s: float
    fork_s: float
    hides: bool

    @property
    def seconds(self) -> float:
        """Total time in seconds."""
        body = max(self.arithmetic_s, self.memory_s) if self.hides else self.arithmetic_s + self.memory_s
        return body + self.fresh_s + self.fork_s

    @property
    def resource(self) -> str:
        """The resource that takes most of the time."""
        named = {
            "compute": self.arithmetic_s, "dram": self.memory_s, "pages": self.fresh_s, "launch": self.fork_s
        }  # fmt: skip
        return max(named, key=lambda n: named[n])


class ProcessorRates:
    """The rates at which one CPU runs library kernels."""

    def __init__(self, spec: DeviceSpec) -> None:
        self.spec = spec
        self.caches = tuple(x for x in spec.memory_layers if x.name != "register")

    def thread_count(self, work: OperatorWork) -> int:
        """Return the number of threads that run an operator."""
        shared = work.parallel_elements / GRAIN_ELEMENTS
        if work.multiplies:
            shared = work.multiplies / _PRODUCT_GRAIN if work.parallel_elements else 0.0
        return int(min(self.spec.units, max(1, math.ceil(shared))))

    def bandwidth_bytes_per_s(self, layer: MemoryLayer, threads: int) -> float:
        """Return the bandwidth from a memory layer to ``threads`` cores."""
        each = layer.bandwidth_per_teu_bytes_per_s or layer.bandwidth_bytes_per_s / self.spec.units
        return min(layer.bandwidth_bytes_per_s, threads * each)

    @cached_property
    def usable_cache_bytes(self) -> tuple[tuple[MemoryLayer, float], ...]:
        """Caches beyond the first level, each with its usable capacity in bytes, summed over all cores."""
        found = []
        for layer in self.caches[1:-1]:
            size = float(layer.usable_bytes or layer.capacity_bytes)
            own = layer.scope == "unit"
            found.append((layer, size * (self.spec.units if own else layer.kept_share or 1.0)))
        return tuple(found)

    def cache_level_at_reuse_distance(self, distance_bytes: float) -> MemoryLayer:
        """Return the first cache level that holds data with this reuse distance, or memory if none does."""
        for layer, room in self.usable_cache_bytes:
            if distance_bytes <= room:
                return layer
        return self.caches[-1]

    def arithmetic_s(self, work: OperatorWork, threads: int) -> float:
        """Return the time of an operator's arithmetic in seconds."""
        spec = self.spec
        core = spec.clock_hz * threads
        rates = spec.compute.ops_per_cycle_per_unit
        taken = 0.0
        if work.multiplies:
            rate = rates.get(f"fma.{work.dtype}", rates["fma"])
            taken += work.multiplies / (work.share * rate * core)
            taken += (
                work.packed_elements * (spec.execution.element_gather_s or 0.0) / max(1.0, min(threads, work.packers))
            )
        taken += work.exponentials / (rates["special"] * core)
        taken += work.vector_cycles / (spec.teu.lanes * core)
        return taken + work.cycles / core

    def first_touch_s(self, size_bytes: float, threads: int) -> float:
        """Return the time of the page faults when newly mapped bytes are first touched, in seconds."""
        page = next((x.page_bytes for x in self.caches if x.page_bytes), None) or 4096
        one = self.spec.execution.fault_s or 0.0
        return math.ceil(size_bytes / page) * one * (_LOCKED + (1 - _LOCKED) / threads)

    def scattered_access_s(self, size_bytes: float, threads: int) -> float:
        """Return the time spent waiting for scattered cache lines, which are not prefetched, in seconds."""
        memory = self.caches[-1]
        lines = size_bytes / (memory.transaction_bytes or 64)
        return lines * (memory.latency_s or 0.0) / (threads * (self.spec.execution.prefetched_lines or 1.0))

    def seconds_by_resource(
        self,
        work: OperatorWork,
        moved: tuple[tuple[MemoryLayer, float], ...],
        fresh_bytes: float,
        scattered_bytes: float = 0.0,
    ) -> SecondsByResource:
        """Return the time that an operator spends on each resource."""
        # ``moved`` has the bytes moved from each memory layer; ``scattered_bytes`` are moved in short runs, in
        # addition to those of ``work``.
        threads = self.thread_count(work)
        memory_s = sum(n / self.bandwidth_bytes_per_s(layer, threads) for layer, n in moved)
        for size, times in work.buffers:
            memory_s += times * size / self.bandwidth_bytes_per_s(self.cache_level_at_reuse_distance(size), threads)
        scattered = self.scattered_access_s(work.scattered_bytes + scattered_bytes, threads)
        forks = work.forks * (self.spec.execution.fork_s or 0.0) if threads > 1 else 0.0
        fresh = self.first_touch_s(fresh_bytes, threads) if fresh_bytes else 0.0
        return SecondsByResource(self.arithmetic_s(work, threads), memory_s + scattered, fresh, forks, work.hides)
