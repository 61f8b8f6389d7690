"""Prices of single launches: expressions by the model's programs, others by their bytes and instruction counts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from roller.errors import RollerError
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.insight.cost.kernel_launch_types import FusedKernel, InstructionKernel
from roller.perf.estimate import Estimate
from roller_runtime.core.files import write_atomically
from roller_runtime.core.processor_features_and_count import usable_processors

#: Relative error of a time if the specification gives none.
_UNKNOWN_ERROR = 0.5
#: Minimum number of expressions for which a process pays off (an expression takes some 30 ms), and chunks of work per
#: processor.
_WORTH_A_PROCESS, _CHUNKS = 4, 3
#: Policy for a library's kernels on any units. They are replayed from a graph, so that their times do not include the
#: host's time for a call.
ANY_UNITS = "library-graph"


@dataclass(frozen=True)
class KernelPrice:
    """Cost of launches; for the first five fields, see :class:`~roller.insight.cost.operator_price.Price`."""

    seconds: float
    lower: float
    upper: float
    resource: str
    provenance: str
    #: Time of the arithmetic alone, and of the shared cache's traffic alone.
    work_s: float = 0.0
    l2_s: float = 0.0
    #: Time in which memory moves nothing: launches and memory latency.
    waits_s: float = 0.0

    def multiply_by_count(self, count: int) -> KernelPrice:
        """Return the price of ``count`` such launches in sequence."""
        if count == 1:
            return self
        names = ("seconds", "lower", "upper", "work_s", "l2_s", "waits_s")
        return replace(self, **{name: count * getattr(self, name) for name in names})

    def cached(self, share: float) -> KernelPrice:
        """Return the price if ``share`` of the bytes stays in the shared cache; it changes only if memory-bound."""
        if not share or self.resource != "dram":
            return self
        moved = (1.0 - share) * max(0.0, self.seconds - self.waits_s)
        seconds = min(self.seconds, self.waits_s + max(self.work_s, self.l2_s, moved))
        factor = seconds / self.seconds
        resource = "dram" if moved >= max(self.work_s, self.l2_s) else "l2" if self.l2_s >= self.work_s else "compute"
        return replace(self, seconds=seconds, lower=factor * self.lower, upper=factor * self.upper, resource=resource)


class KernelPricer:
    """Prices of launches on one device."""

    def __init__(self, spec: DeviceSpec, policy: str, folder: Path | None = None) -> None:
        # ``folder`` has one file of prices per device, policy and version of the model; if it is ``None``, no prices
        # are saved.
        self.spec, self.policy = spec, policy
        self._found: dict[tuple[TensorExpr, str], KernelPrice] = {}
        self._path = None if folder is None else folder / f"{_cache_file_name(spec, policy)}.json"
        self._kept = _read_prices_from_cache_file(self._path)
        self._new: dict[str, KernelPrice] = {}

    def price_expression(self, expr: TensorExpr, library: str = ANY_UNITS) -> KernelPrice:
        """Return the price of one kernel that computes an expression."""
        # ``library`` is a key of ``POLICIES`` in roller.templates.common.library_kernel_limits; constructed kernels
        # ignore it.
        key = expr, library
        found = self._found.get(key)
        if found is None:
            price = self._price_with_disk_cache if self._path else self._price_by_model
            found = self._found[key] = price(expr, library)
        return found

    @property
    def priced_expressions(self) -> tuple[TensorExpr, ...]:
        """The expressions that have been priced, without duplicates."""
        return tuple(dict.fromkeys(expr for expr, _ in self._found))

    def price_expressions_in_parallel(self, exprs: Iterable[TensorExpr]) -> None:
        """Price expressions in parallel processes, so that :meth:`price_expression` can look up their prices."""
        # An expression for which no process returns a price is priced on demand.
        todo = [e for e in dict.fromkeys(exprs) if (e, ANY_UNITS) not in self._found]
        todo = [e for e in todo if not (self._path and e.key in self._kept)]
        share = max(_WORTH_A_PROCESS, -(-len(todo) // (_CHUNKS * usable_processors())))
        chunks = {str(at): todo[at : at + share] for at in range(0, len(todo), share)}
        if len(chunks) < 2 or usable_processors() < 2:
            return
        from roller.compiler import pipeline  # noqa: F401 - before the processes start, so that they have it
        from roller.runtime.build_pool import build_all

        results = build_all(chunks, lambda chunk: [self._price_by_model(e, ANY_UNITS) for e in chunk])
        for at, result in results.items():
            for expr, price in zip(chunks[at], result.value or (), strict=False):
                self._found[expr, ANY_UNITS] = price
                if self._path:
                    self._kept[expr.key] = self._new[expr.key] = price

    def _price_with_disk_cache(self, expr: TensorExpr, library: str) -> KernelPrice:
        key = expr.key if library == ANY_UNITS else f"{expr.key} {library}"
        known = self._kept.get(key)
        if known is None:
            known = self._kept[key] = self._new[key] = self._price_by_model(expr, library)
        return known

    def save(self) -> None:
        """Merge new prices into the file on disk; ignore write failures."""
        if self._path is None or not self._new:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            rows = {key: asdict(p) for key, p in (_read_prices_from_cache_file(self._path) | self._new).items()}
            with write_atomically(self._path) as file:
                file.write(json.dumps(rows).encode())
        except OSError:
            return
        self._new.clear()

    def _price_by_model(self, expr: TensorExpr, library: str) -> KernelPrice:
        """Return the price of the policy's program or, if no program fits the device, a price from the bytes moved."""
        from roller.compiler import pipeline

        try:
            if self.policy == "library" and self.spec.traits.blocks:
                estimate, provenance = pipeline.predict(expr, self.spec, policy=library), "library"
            else:
                estimate, provenance = pipeline.construct(expr, self.spec, top_k=1)[0].estimate, "construct"
        except RollerError:
            read, written = (float(sum(t.nbytes for t in ts)) for ts in (expr.inputs, expr.output_tensors))
            return replace(self.price_stream(read, written, 1), provenance="bytes")
        return self._price_from_estimate(estimate, provenance)

    def _price_from_estimate(self, estimate: Estimate, provenance: str) -> KernelPrice:
        factor = math.exp(estimate.expected_error or _UNKNOWN_ERROR)
        seconds, work = estimate.seconds, estimate.terms.get("compute_s", estimate.seconds)
        l2_s, waits_s = estimate.terms.get("l2_s", estimate.seconds), estimate.terms.get("launch_s", 0.0)
        lower, upper = seconds / factor, seconds * factor
        return KernelPrice(seconds, lower, upper, estimate.bottleneck, provenance, work, l2_s, waits_s)

    def price_stream(
        self, read_bytes: float, written_bytes: float, launches: int, threads: float | None = None
    ) -> KernelPrice:
        """Return the price of kernels that stream bytes."""
        # Reads in excess of writes move at the bandwidth of reads, everything else at the bandwidth of copies. Few
        # threads reach only a part of the copy bandwidth, which lengthens the time.
        memory, launch_s = self.spec.memory_layers[-1], self.spec.execution.launch_s
        reading = memory.read_bandwidth_bytes_per_s or memory.bandwidth_bytes_per_s
        both = 2 * min(read_bytes, written_bytes)
        moved = both / memory.bandwidth_bytes_per_s + (read_bytes - both / 2) / reading
        moved += (written_bytes - both / 2) / memory.bandwidth_bytes_per_s
        if threads is not None:
            moved *= memory.bandwidth_bytes_per_s / self._bandwidth_of_thread_count(threads)
        waits = launches * (launch_s + 2 * (memory.latency_s or 0.0))
        accuracy = self.spec.accuracy
        factor = math.exp(accuracy.memory_error or accuracy.prediction_error or _UNKNOWN_ERROR)
        seconds = moved + waits
        resource = "launch" if waits > moved else "dram"
        l2_s = (read_bytes + written_bytes) / self.spec.memory_layers[-2].bandwidth_bytes_per_s
        return KernelPrice(seconds, seconds / factor, seconds * factor, resource, "stream", 0.0, l2_s, waits)

    def _bandwidth_of_thread_count(self, threads: float) -> float:
        """Return the memory bandwidth that this number of threads reaches; on a CPU, the full bandwidth."""
        if not self.spec.traits.blocks:
            return self.spec.memory_layers[-1].bandwidth_bytes_per_s
        from roller.templates.gpu.common.l2_and_dram_traffic import dram_bandwidth

        return float(dram_bandwidth(self.spec, np.array(max(1.0, threads / self.spec.teu.lanes))))

    def price_fused_kernel(self, launch: FusedKernel, library: str = ANY_UNITS) -> KernelPrice:
        """Return the price of a fused kernel: the longer of its arithmetic and memory traffic times."""
        products = [self.price_expression(p, library) for p in launch.products]
        rates = self.spec.compute.ops_per_cycle_per_unit
        special_s = launch.exponentials / (rates.get("special", rates["fma"]) * self.spec.units * self.spec.clock_hz)
        arithmetic = launch.share * sum(p.work_s for p in products) + special_s
        moved = self.price_stream(launch.read_bytes, launch.written_bytes, launch.launches)
        if moved.seconds >= arithmetic:
            return replace(moved, work_s=arithmetic)
        seconds = arithmetic + launch.launches * self.spec.execution.launch_s
        factor = max(p.upper / p.seconds for p in products)
        return KernelPrice(seconds, seconds / factor, seconds * factor, "compute", products[0].provenance, arithmetic)

    def price_instruction_kernel(self, launch: InstructionKernel) -> KernelPrice:
        """Return the price of a kernel without data reuse: the longer of its issue and memory-traffic times."""
        issue = self.spec.compute.ops_per_cycle_per_unit["issue"] * self.spec.units * self.spec.clock_hz
        moved = self.price_stream(launch.read_bytes, launch.written_bytes, launch.launches)
        issued_s = launch.launches * self.spec.execution.launch_s + launch.count / issue
        if moved.seconds >= issued_s:
            return replace(moved, work_s=issued_s)
        factor = math.exp(self.spec.accuracy.prediction_error or _UNKNOWN_ERROR)
        return KernelPrice(issued_s, issued_s / factor, issued_s * factor, "compute", "instructions", issued_s)


def _cache_file_name(spec: DeviceSpec, policy: str) -> str:
    from roller.runtime.cache_key import ALL_CODE, source_code_digest

    return f"{spec.name}-{policy}-{spec.content_key[:16]}-{source_code_digest(ALL_CODE)[:16]}"


def _read_prices_from_cache_file(path: Path | None) -> dict[str, KernelPrice]:
    """Return the prices in a file, or none if the file is missing or damaged."""
    if path is None:
        return {}
    try:
        rows = json.loads(path.read_bytes())
        return {key: KernelPrice(**row) for key, row in rows.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
