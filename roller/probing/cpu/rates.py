"""CPU probes of the clock, instruction rates and latencies: kernels that use registers or L1."""

from __future__ import annotations

import math

from roller.probing.cpu.compile_and_run_probes import CpuSession
from roller.probing.probe_header import ProbeResult
from roller.probing.robust_window_statistics import MeasuredValue
from roller_runtime.core.processor_features_and_count import tile_registers_permitted

_RATE = "compute.ops_per_cycle_per_unit"
#: Number of repetitions of the clock measurement, on which all rates per cycle depend.
_TURNS = 6
#: Relative tolerance of checks that compare two times.
TOLERANCE = 0.12
#: Maximum number of cycles of a vector exponential: twice its number of vector operations.
_SPECIAL_OPERATIONS = 50
#: Micro-kernel tiles ``(rows, vectors)`` that hide multiply-add latency and fit the registers.
_TILES = {16: ((6, 2), (4, 3)), 32: ((8, 2), (6, 3), (10, 2), (7, 3), (12, 2), (8, 3), (6, 4))}
#: Tiles in order of their number of accumulators, for the report.
_SWEEP = {16: ((1, 1), (2, 1), (4, 1), (4, 2), (5, 2), (6, 2), (7, 2)),
          32: ((1, 1), (2, 1), (4, 1), (4, 2), (5, 2), (6, 2), (8, 2), (10, 2), (12, 2), (13, 2), (14, 2),
               (15, 2))}  # fmt: skip


def measure_clock(session: CpuSession) -> ProbeResult:
    """Measure the clock as the number of dependent additions per second, on all cores at once."""
    chain = session.constant("clock_chain")
    turns = [
        [session.seconds(k, cores=session.cores, turns=2) for k in ("clock_one", "clock_two")] for _ in range(_TURNS)
    ]
    one, two = (min(found, key=lambda m: m.value) for found in zip(*turns, strict=True))
    found = one.rate(chain)
    # A disturbed clock would give too few cycles: keep the largest.
    session.clock_hz = max(session.clock_hz, found.value) if session.clocked else found.value
    session.clocked = True
    doubts = {}
    if two.value > one.value * (1 + TOLERANCE):
        doubts["clock_hz"] = f"two chains take {two.value / one.value:.2f} times as long as one: not bound by latency."
    return ProbeResult({"clock_hz": found}, doubts=doubts)


def _measure_operations_per_cycle(session: CpuSession, kernel: str, operations: float) -> MeasuredValue:
    return session.seconds(kernel, session.blocks("small", 8192), 8192, session.cores).rate(
        operations / session.clock_hz
    )


def measure_fma_peak(session: CpuSession) -> ProbeResult:
    """Measure multiply-adds per cycle at every vector width."""
    lanes, chains = session.spec.teu.lanes, session.constant("fma_chains")
    single = _measure_operations_per_cycle(session, "fma_float32", chains * lanes)
    double = _measure_operations_per_cycle(session, "fma_float64", chains * lanes / 2)
    half = _measure_operations_per_cycle(session, "fma_float32_half", session.constant("fma_half_chains") * lanes)
    values = {f"{_RATE}.fma": single, f"{_RATE}.fma.float64": double}
    doubts = {}
    if half.value < single.value * (1 - TOLERANCE):
        doubts[f"{_RATE}.fma"] = "fewer accumulators are slower: bound by latency. Use more in fma.h."
    for width in (16, 32):
        if width < 4 * lanes:
            values[f"beside.fma_per_cycle_{width}_byte_vectors"] = _measure_operations_per_cycle(
                session, f"fma_float32_{width}", chains * width / 4
            )
    narrow = values.get("beside.fma_per_cycle_16_byte_vectors", single)
    shortest = 4 if narrow is not single else lanes
    # The instruction rate on whole vectors relative to the shortest gives the number of passes.
    per_pass = lanes * min(1.0, single.value / lanes / (narrow.value / shortest))
    passed = max(shortest, 2 ** round(math.log2(per_pass)))
    values["teu.datapath_lanes"] = MeasuredValue(passed, max(single.spread, narrow.spread), single.samples)
    alone = session.seconds("fma_float32").rate(2 * chains * lanes)
    values["beside.one_core_flops_per_s"] = alone
    ports = round(single.value / lanes)
    if ports:
        values["teu.schedulers_per_unit"] = MeasuredValue(ports, single.spread, single.samples)
    # Register bandwidth: three four-byte operands per lane.
    total = single.times(12 * session.clock_hz * session.cores)
    values["memory_layers.register.bandwidth_bytes_per_s"] = total
    return ProbeResult(values, doubts=doubts)


def measure_byte_products(session: CpuSession) -> ProbeResult:
    """Measure byte products per cycle for the instructions that are available and permitted."""
    values, doubts = dict[str, MeasuredValue](), dict[str, str]()
    for path, kernel, name in ((f"{_RATE}.dot.int8", "dot_bytes", "dot"), (f"{_RATE}.dot.int16", "dot_pairs", "pair")):
        products = session.constant(f"{name}_products")
        if products:
            found = values[path] = _measure_operations_per_cycle(session, kernel, products)
            half = _measure_operations_per_cycle(session, f"{kernel}_half", session.constant(f"{name}_half_products"))
            if half.value < found.value * (1 - TOLERANCE):
                doubts[path] = "fewer sums are slower: bound by latency. Use more in byte_products.c."
    products = session.constant("tile_products")
    if products and tile_registers_permitted():
        values[f"{_RATE}.matrix.int8"] = _measure_operations_per_cycle(session, "tile_bytes", products)
    return ProbeResult(values, doubts=doubts)


def measure_fma_latency(session: CpuSession) -> ProbeResult:
    """Measure the latency of dependent multiply-adds."""
    path = "execution.step_latency_s"
    one, two = session.seconds("fma_one"), session.seconds("fma_two")
    doubts = {}
    if two.value > one.value * (1 + TOLERANCE):
        doubts[path] = f"two chains take {two.value / one.value:.2f} times as long as one: not bound by latency."
    return ProbeResult({path: one}, doubts=doubts)


def measure_simple_rates(session: CpuSession) -> ProbeResult:
    """Measure additions, maxima and conversions per cycle."""
    lanes, chains = session.spec.teu.lanes, session.constant("rate_chains")
    add, top = (_measure_operations_per_cycle(session, k, chains * lanes) for k in ("add_float32", "max_float32"))
    return ProbeResult({
        f"{_RATE}.add": min(add, top, key=lambda m: m.value),
        f"{_RATE}.add.float64": _measure_operations_per_cycle(session, "add_float64", chains * lanes / 2),
        f"{_RATE}.convert": _measure_operations_per_cycle(session, "convert_float32", 2 * chains * lanes),
    })  # fmt: skip


def measure_special_rate(session: CpuSession) -> ProbeResult:
    """Measure exponentials, divisions and roots per cycle."""
    size, data = 8192, session.blocks("small", 8192, session.cores)

    def rate(kernel: str) -> MeasuredValue:
        return session.seconds(kernel, data, size, session.cores).rate(size / 8 / session.clock_hz)

    exponentials, doubts = rate("exp_float32"), {}
    if exponentials.value < session.spec.teu.lanes / _SPECIAL_OPERATIONS:
        doubts[f"{_RATE}.special"] = "as slow as one lane: the compiler did not vectorise the loop. Update it."
    values = {
        f"{_RATE}.special": exponentials,
        "beside.divisions_per_cycle": rate("divide_float32"),
        "beside.roots_per_cycle": rate("root_float32"),
    }
    return ProbeResult(values, doubts=doubts)


def measure_issue_rate(session: CpuSession) -> ProbeResult:
    """Measure the instructions per cycle of the best mix, multiplied by the number of lanes of a vector."""
    lanes = session.spec.teu.lanes
    data = session.blocks("small", 8192)
    # Instructions per repetition: eight multiply-adds, eight loads, and the integer additions of the mix.
    mixes = {"issue_221": 16 + 4, "issue_222": 16 + 8, "issue_224": 16 + 16}
    rates = [session.seconds(k, data, 8192).rate(n * lanes / session.clock_hz) for k, n in mixes.items()]
    return ProbeResult({f"{_RATE}.issue": max(rates, key=lambda m: m.value)})


def measure_step_overhead(session: CpuSession) -> ProbeResult:
    """Measure the overhead of reduction steps, and the number of accumulators needed for the full rate."""
    registers = session.spec.limits.vector_registers or 16
    data, steps = session.blocks("panels", 65536), session.constant("tile_steps")

    def step(rows: int, vectors: int) -> MeasuredValue:
        return session.seconds(f"tile_{rows}x{vectors}", data).times(session.clock_hz / steps)

    rates = {r * v: r * v / step(r, v).value for r, v in _SWEEP[min(32, registers)]}
    best = max(rates.values())
    usable = max(n for n, rate in rates.items() if rate >= 0.95 * best)
    over = [(t, t.value - r * v / best) for r, v in _TILES[min(32, registers)] for t in [step(r, v)]]
    over.sort(key=lambda pair: pair[1])
    middle, beside = over[len(over) // 2]
    # Rounded to quarters of a cycle, the resolution of the windows. The spread is that of a whole step.
    cycles = max(0.0, round(4 * beside) / 4)
    return ProbeResult({
        "execution.step_issue_s": MeasuredValue(cycles / session.clock_hz, middle.spread, middle.samples),
        "beside.accumulators_at_full_rate": MeasuredValue(usable, 0.0, len(rates)),
    })  # fmt: skip
