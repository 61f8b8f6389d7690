"""CPU probes of memory: bandwidths, latencies, lines, pages, and the overlap of traffic with arithmetic."""

from __future__ import annotations

import math
import statistics

from roller.hardware import MemoryLayer
from roller.probing.cpu.compile_and_run_probes import CpuSession
from roller.probing.cpu.rates import TOLERANCE
from roller.probing.probe_header import ProbeResult
from roller.probing.robust_window_statistics import MeasuredValue

#: Number of bytes that a core reads per window, and size of the memory through which it advances so that caches hold
#: none of it.
_MARCH_BYTES = 4 << 20
_MEMORY_BYTES, _MOST_MEMORY_BYTES = 128 << 20, 1 << 30
#: Number of repetitions of compared measurements, and numbers of multiply-adds per loaded vector.
_TURNS, _MULTIPLY_ADDS = 12, (1, 2, 3, 4, 6, 8)
#: Granularity of block sizes in bytes: one iteration of an unrolled loop.
_UNIT = 1024


def _cache_bytes_per_core(layer: MemoryLayer, session: CpuSession) -> int:
    return layer.capacity_bytes // (1 if layer.scope == "unit" else session.cores)


def cache_block_bytes(name: str, session: CpuSession) -> int:
    """Return the size, in bytes, of a block that fits into a cache but not into the next smaller one."""
    spec = session.spec
    size = _cache_bytes_per_core(spec.layer(name), session) // 2
    if name == "l3":  # shared with other users: a few times L2 is enough
        size = min(size, 4 * spec.layer("l2").capacity_bytes)
    return max(_UNIT, size // _UNIT * _UNIT)


def uncached_block_bytes(session: CpuSession) -> int:
    """Return the size, in bytes, of a block per core that does not fit into any cache."""
    last = session.spec.layer("l3").capacity_bytes
    wanted = max(_MEMORY_BYTES, 4 * last // session.cores)
    free = session.spec.layer("dram").capacity_bytes // 4 // session.cores
    return min(wanted, _MOST_MEMORY_BYTES, max(_MARCH_BYTES, free)) // _MARCH_BYTES * _MARCH_BYTES


def _measure_layer_bandwidth(session: CpuSession, layer: str, kernel: str, cores: int) -> MeasuredValue:
    if layer == "dram":
        size, march = _MARCH_BYTES, uncached_block_bytes(session)
        data = session.blocks("memory", march, session.cores)[:cores]
        taken = session.seconds(kernel, data, size, cores, (size, march), repeat=1)
    else:
        size = cache_block_bytes(layer, session)
        data = session.blocks(layer, size, session.cores)[:cores]
        taken = session.seconds(kernel, data, size, cores)
    return taken.rate(size * cores)


def measure_bandwidth(session: CpuSession) -> ProbeResult:
    """Measure the bandwidth of each layer for one core and for all cores."""
    values: dict[str, MeasuredValue] = {}
    for layer in ("l1", "l2", "l3", "dram"):
        path = f"memory_layers.{layer}"
        one, every = (_measure_layer_bandwidth(session, layer, "load_all", n) for n in (1, session.cores))
        values[f"{path}.bandwidth_bytes_per_s"] = every
        if layer == "l1":
            vector = 4 * session.spec.teu.lanes
            per_cycle = every.times(session.spec.teu.lanes / vector / session.clock_hz / session.cores)
            values["compute.ops_per_cycle_per_unit.load_store"] = per_cycle
        if layer in ("l3", "dram"):
            # Each core's share of what all cores draw together is a lower bound on what one core draws alone.
            values[f"{path}.bandwidth_per_teu_bytes_per_s"] = max(
                one, every.times(1 / session.cores), key=_require_measured_value
            )
            bend = _measure_saturation_exponent(session, layer, one, every)
            if bend is not None:
                values[f"{path}.saturation_exponent"] = bend
        else:
            values[f"beside.{layer}_one_core_bytes_per_s"] = one
        values[f"{path}.store_bandwidth_bytes_per_s"] = _measure_layer_bandwidth(
            session, layer, "store_all", session.cores
        )
        values[f"beside.{layer}_store_one_core_bytes_per_s"] = _measure_layer_bandwidth(session, layer, "store_all", 1)
        for cores, text in {1: "one_core", session.cores: "all_cores"}.items():
            values[f"beside.{layer}_copy_{text}_bytes_per_s"] = _measure_layer_bandwidth(
                session, layer, "copy_half", cores
            )
    return ProbeResult(values)


def _require_measured_value(m: MeasuredValue) -> float:
    return m.value


def _measure_saturation_exponent(
    session: CpuSession, layer: str, one: MeasuredValue, every: MeasuredValue
) -> MeasuredValue | None:
    """Return the saturation exponent ``p``, measured on half the cores; ``None`` with few cores or no saturation."""
    half = session.cores // 2
    if half < 2 or every.value >= 0.9 * session.cores * one.value:
        return None
    middle = _measure_layer_bandwidth(session, layer, "load_all", half)

    def law(p: float) -> float:
        return float(((half * one.value) ** -p + every.value**-p) ** (-1 / p))

    low, high = 0.2, 20.0
    for _ in range(40):
        p = (low + high) / 2
        low, high = (p, high) if law(p) < middle.value else (low, p)
    return MeasuredValue(low, middle.spread, middle.samples)


def _measure_pointer_chase(
    session: CpuSession, name: str, size: int, fill: str, places: int, kernel: str = "chase_one"
) -> MeasuredValue:
    data = session.blocks(f"{name}{size}", size)
    session.once(fill, data, size, places)
    return session.seconds(kernel, data, size).times(1 / 16)


def measure_latency(session: CpuSession) -> ProbeResult:
    """Measure the load-to-use latency of each layer, and the capacity of undetected caches."""
    spec = session.spec
    # Lines a kilobyte apart share a sixteenth of the sets: a ring that exceeds L2 is still so short that other users
    # do not evict it from a shared L3 between two visits, and four loads share a page walk.
    sizes = {"l1": spec.layer("l1").capacity_bytes // 3, "l2": spec.layer("l2").capacity_bytes // 6}
    found = {n: _measure_pointer_chase(session, "ring", size // 64 * 64, "chase_fill", 64) for n, size in sizes.items()}
    beyond = min(8 * spec.layer("l2").capacity_bytes, spec.layer("l3").capacity_bytes // 2)
    found["l3"] = _measure_pointer_chase(session, "pages", beyond, "chase_fill_pages", 4)
    found["dram"] = _measure_pointer_chase(session, "pages", uncached_block_bytes(session), "chase_fill_pages", 4)
    values = {f"memory_layers.{n}.latency_s": m for n, m in found.items()}
    doubts = {}
    for n, size in sizes.items():
        pair = _measure_pointer_chase(session, "rings", 2 * (size // 128 * 64), "chase_fill_two", 64, "chase_two")
        if pair.value > found[n].value * (1 + 3 * TOLERANCE):
            doubts[f"memory_layers.{n}.latency_s"] = "two chases take longer than one: not bound by latency."
    for layer, outer in (("l1", "l2"), ("l2", "l3")):
        if spec.sources.get(f"memory_layers.{layer}.capacity_bytes") not in ("detected", "datasheet"):
            smallest = 4096 if layer == "l1" else 65536
            fitting = _measure_capacity(session, found[layer], found[outer], smallest)
            values[f"memory_layers.{layer}.capacity_bytes"] = fitting
    return ProbeResult(values, doubts=doubts)


def _measure_capacity(session: CpuSession, inner: MeasuredValue, outer: MeasuredValue, smallest: int) -> MeasuredValue:
    """Return the largest usual size whose latency is closer to the inner layer's than to the outer layer's."""
    border, best, spread = math.sqrt(inner.value * outer.value), smallest, inner.spread
    for size in sorted(smallest * m << e for m in (2, 3) for e in range(10)):
        m = _measure_pointer_chase(session, "fits", size, "chase_fill", 64)
        if m.value > border:
            break
        best, spread = size, m.spread
    return MeasuredValue(best, spread, inner.samples)


def measure_split_loads(session: CpuSession) -> ProbeResult:
    """Measure the number of extra load slots that vector loads across a cache line take."""
    size = 8192
    data = session.blocks("near", 16 << 10)
    pairs = [[session.seconds(k, data, size, turns=4) for k in ("load_whole", "load_split")] for _ in range(4)]
    whole, apart = (min(found, key=_require_measured_value) for found in zip(*pairs, strict=True))
    # The spread is that of all slots of such a load, including its own.
    slots = MeasuredValue(max(0.0, apart.value / whole.value - 1), max(whole.spread, apart.spread), apart.samples)
    return ProbeResult({"execution.split_load_slots": slots})


def measure_line_size(session: CpuSession) -> ProbeResult:
    """Measure the size of a cache line."""
    size = session.spec.layer("l2").capacity_bytes // 2
    data = session.blocks("line", size)
    session.once("line_fill", data, size, 512)
    near, far = session.seconds("line_pair", data, 8), session.seconds("line_pair", data, 256)
    border, found = (near.value + far.value) / 2, 256
    if far.value < 1.2 * near.value:  # all distances cost the same: no result
        return ProbeResult({})
    for distance in (128, 64, 32, 16):
        if session.seconds("line_pair", data, distance).value < border:
            break
        found = distance
    line_bytes = MeasuredValue(found, near.spread, near.samples)
    return ProbeResult({f"memory_layers.{n}.line_bytes": line_bytes for n in ("l1", "l2", "l3")})


def measure_tlb(session: CpuSession) -> ProbeResult:
    """Measure the number of entries in the first-level TLB and the cost of a miss."""
    page = session.spec.layer("l1").page_bytes or 4096
    lines = session.spec.layer("l1").capacity_bytes // 64
    most = lines * 2 // 3
    data = session.blocks("tlb", (2 * most + 2) * page, large_pages=False)

    def time_touched_pages(pages: int) -> MeasuredValue:
        session.once("tlb_fill", data, page, pages)
        return session.seconds("chase_one", data, 0).times(1 / 16)

    inside, outside = time_touched_pages(16), time_touched_pages(most)
    border, entries = (inside.value + outside.value) / 2, 16
    for size in sorted(m << e for m in (2, 3) for e in range(3, 9)):
        if 0.9 * size > most or time_touched_pages(int(0.9 * size)).value > border:
            break
        entries = size
    if outside.value < 1.25 * inside.value:  # no rise: the TLB holds more pages than L1 has lines
        return ProbeResult({})
    return ProbeResult({
        "memory_layers.l1.tlb_entries": MeasuredValue(entries, inside.spread, inside.samples),
        "memory_layers.l1.tlb_miss_s": outside.difference_from(inside),
    })  # fmt: skip


def measure_miss_overlap(session: CpuSession) -> ProbeResult:
    """Measure the number of cache misses in flight by streaming data from L2 through multiply-adds."""
    small, size, vector = 16 << 10, cache_block_bytes("l2", session), 4 * session.spec.teu.lanes
    near, far = session.blocks("near", small), session.blocks("l2", size, session.cores)[:1]

    def times(count: int) -> tuple[float, float, float]:
        """Time memory, arithmetic and both in sequence, so that each triple sees the same disturbances."""
        memory = session.seconds("load_all", far, size, turns=2).times(vector / size)
        alone = session.seconds(f"stream_fma_{count}", near, small, turns=2).times(vector / small)
        both = session.seconds(f"stream_fma_{count}", far, size, turns=2).times(vector / size)
        return memory.value, alone.value, both.value

    def apart(count: int) -> float:
        memory, alone, _ = times(count)
        return abs(math.log(alone / memory))

    balanced = min(_MULTIPLY_ADDS, key=apart)
    ratios = sorted(_solve_overlap_exponent(*times(balanced)) for _ in range(_TURNS))
    kept = ratios[_TURNS // 4 : -(_TURNS // 4)]
    over = statistics.median(kept)
    # The model's law for two stations: both at their limit take (b + 1) / b of the time of either alone.
    # The spread is that of the median; single triples differ several times as much.
    uncertain = (kept[-1] - kept[0]) / max(over, 1 / 32) / math.sqrt(_TURNS)
    law = MeasuredValue(1 / max(over, 1 / 32), uncertain, 30 * _TURNS)
    values = {"execution.misses_in_flight": law}
    space = uncached_block_bytes(session)
    data, most = session.blocks("memory", space, session.cores)[:1], 0.0
    for chases in (1, 2, 4, 8, 12, 16, 24):
        session.once(f"chases_fill_{chases}", data, space, 256)
        each = session.seconds(f"chases_{chases}", data, space).times(1 / chases)
        if chases == 1:
            single = each
        most = max(most, single.value / each.value)
    values["beside.chases_in_flight"] = MeasuredValue(most, single.spread, single.samples)
    return ProbeResult(values)


def _solve_overlap_exponent(memory: float, alone: float, both: float) -> float:
    """Return ``1 / b`` of ``both = longest * (1 - rho^(b+1)) / (1 - rho^b)``, or 0 if all is hidden.

    >>> round(_solve_overlap_exponent(1.0, 1.0, 1.25), 3), _solve_overlap_exponent(1.0, 0.9, 0.99)
    (0.25, 0.0)
    """
    longest = max(memory, alone)
    rho = min(min(memory, alone) / longest, 1 - 1e-6)
    low, high = 1e-3, 1.0
    for _ in range(40):
        b = 2 / (low + high)
        together = longest * (1 - rho ** (b + 1)) / (1 - rho**b)
        low, high = (low, 1 / b) if together > both else (1 / b, high)
    return low if low > 1e-3 else 0.0


#: Number of bytes mapped at once, and size of a page in bytes.
_MAPPED_BYTES, _PAGE_BYTES = 2 << 20, 4096
#: Maximum ratio of the time of a page touched before to that of a fresh page.
_KNOWN_SHARE = 0.1


def pages(session: CpuSession) -> ProbeResult:
    """Measure the time of a first-touch page fault."""
    path, count = "execution.fault_s", _MAPPED_BYTES // _PAGE_BYTES
    data = session.blocks("pages", _MAPPED_BYTES)
    fresh, known = (session.seconds(k, data, _MAPPED_BYTES, repeat=1) for k in ("pages_fresh", "pages_known"))
    doubts = {}
    if known.value > _KNOWN_SHARE * fresh.value:
        doubts[path] = "no slower than pages touched before: not handed out anew. Repeat it."
    return ProbeResult({path: fresh.times(1 / count)}, doubts=doubts)
