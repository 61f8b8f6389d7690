"""GPU probes of global memory and L2: their cases, and the fields computed from the times."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from roller.errors import SpecError
from roller.hardware import DeviceSpec
from roller.probing.gpu.fit_model_constants import (
    choose_proportional_hypothesis,
    find_capacity_edge,
    fit_bandwidth_saturation,
    value_with_resampled_spread,
)
from roller.probing.gpu.gpu_probe_timings import GpuSession, TimedCase, count_windows, mark_values_as_rejected
from roller.probing.gpu.probe_plan_helpers import (
    count_resident_blocks,
    count_resident_teus,
    plan_with_expected_results,
    powers_of_two,
)
from roller.probing.probe_header import ProbeResult
from roller.probing.robust_window_statistics import MeasuredValue
from roller.runtime.probe_plan_format import CHECK_STEPS, BufferContents, ProbeCase, ProbePlan

#: Minimum size of global memory buffers, in bytes (some devices have a further cache) and as a multiple of L2's
#: capacity.
BUFFER_BYTES, BUFFER_CACHES = 1 << 30, 16
#: Number of loads in flight per step of ``walk_N``, and minimum share of resident TEUs at which it is tested.
_LOADS = {1: 0.0, 2: 0.25, 4: 0.125}
_BLOCK = 512
#: Region sizes relative to L2's capacity, for locating its edge.
_PARTS = (0.25, 0.5, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0, 4.0, 6.0)
#: Runs as (size, offset) pairs, and hypotheses of the transaction size, all in bytes.
_RUNS = (
    (4, 0),
    (8, 0),
    (16, 0),
    (32, 0),
    (64, 0),
    (128, 0),
    (16, 8),
    (16, 24),
    (32, 16),
    (64, 32),
    (64, 96),
    (128, 64),
)
_SIZES = (16, 32, 64, 128, 256)
_PITCH_WORDS = 64


def uncached_buffer_words(spec: DeviceSpec) -> int:
    """Return the number of words in a buffer beyond all caches: a power of two, at most an eighth of the memory."""
    wanted = max(BUFFER_BYTES, BUFFER_CACHES * spec.layer("l2").capacity_bytes)
    size = 1 << math.ceil(math.log2(wanted))
    while size > spec.layer("global").capacity_bytes // 8:
        size //= 2
    return size // 4


def specified_bandwidth(spec: DeviceSpec, warps: float) -> float:
    """Return the specified global memory bandwidth for a number of loads in flight, counted in TEUs."""
    layer = spec.layer("global")
    peak, p = layer.bandwidth_bytes_per_s, layer.saturation_exponent or 1.4
    alone = layer.bandwidth_per_teu_bytes_per_s or peak / count_resident_teus(spec)
    return float(((warps * alone) ** -p + peak**-p) ** (-1 / p))


def dram_plan(spec: DeviceSpec) -> ProbePlan:
    """Return the plan that times reads with few to many loads in flight, and a copy with as many as possible."""
    words, lanes, full = uncached_buffer_words(spec), spec.teu.lanes, count_resident_teus(spec)
    cases = []
    for loads, share in _LOADS.items():
        for warps in powers_of_two(4, full):
            if warps < share * full:
                continue
            threads = warps * lanes
            seconds = 4 * threads * loads / specified_bandwidth(spec, warps * loads)
            cases.append(
                ProbeCase(f"walk_{loads} warps={warps}", f"walk_{loads}", warps // 2, 2 * lanes, (words, threads, 0),
                     seconds, advance=(3, loads * threads, words))
            )  # fmt: skip
    grid = count_resident_blocks(spec, _BLOCK)
    threads = grid * _BLOCK
    vectors = words // 4 // (4 * threads) * 4 * threads
    moved = 2 * 64 * threads
    copied = BufferContents("random", words)
    places = np.unique(np.linspace(0, CHECK_STEPS * 16 * threads - 1, 24).astype(np.int64))
    checks = tuple((int(w), float(v)) for w, v in zip(places, copied.at(places), strict=True))
    cases.append(
        ProbeCase("copy", "copy", grid, _BLOCK, (vectors, threads, 0),
                  moved / spec.layer("global").bandwidth_bytes_per_s,
             input=1, advance=(3, 4 * threads, vectors), checks=checks)
    )  # fmt: skip
    return plan_with_expected_results("dram", (BufferContents("ones", words), copied), cases, output_words=words)


def measure_dram(session: GpuSession) -> ProbeResult:
    """Measure the bandwidth, bandwidth per TEU and saturation exponent of global memory."""
    timed = session.measure(dram_plan(session.spec))
    values: dict[str, MeasuredValue] = {}
    copy = timed.get("copy")
    if copy is not None:
        values["bandwidth_bytes_per_s"] = copy.step.rate(2 * 64 * copy.case.threads)
    walks = [t for t in timed.values() if t is not copy]
    warps = np.array([t.case.grid * 2 * int(t.case.entry[-1]) for t in walks], np.float64)
    moved = np.array([4 * t.case.threads * int(t.case.entry[-1]) for t in walks])
    alone, exponent, peak = fit_bandwidth_saturation(
        warps, moved / seconds_per_step_of_cases(walks), count_windows(walks)
    )
    values |= {"bandwidth_per_teu_bytes_per_s": alone, "saturation_exponent": exponent}
    session.remarks.append(f"loads alone reach {peak.value / 1e9:.0f} GB/s")
    return ProbeResult({f"memory_layers.global.{k}": v for k, v in values.items()}, session.taken())


def seconds_per_step_of_cases(timed: list[TimedCase]) -> np.ndarray:
    """Return the time per step of each case, in seconds; raise an error if one is not above the noise."""
    steps = [t.step for t in timed]
    for t, m in zip(timed, steps, strict=True):
        if m.value <= 0 or m.spread > 1.0:
            raise SpecError(
                f"{t.case.key}: expected a time above the noise, got a spread of {m.spread:.0%}. "
                "Repeat on a quieter device."
            )
    return np.array([m.value for m in steps])


def _vectors_in_region(size_bytes: float) -> int:
    return max(1, round(size_bytes / 16 / (4 * _BLOCK))) * 4 * _BLOCK


def l2_plan(spec: DeviceSpec) -> ProbePlan:
    """Return the plan that times the same reads over regions within and beyond L2."""
    capacity, grid = spec.layer("l2").capacity_bytes, count_resident_blocks(spec, _BLOCK)
    cases = []
    for part in _PARTS:
        vectors = _vectors_in_region(part * capacity)
        rate = spec.layer("l2" if part <= 1.0 else "global").bandwidth_bytes_per_s
        cases.append(ProbeCase(f"part={part}", "sweep", grid, _BLOCK, (vectors,), 64 * grid * _BLOCK / rate))
    return plan_with_expected_results(
        "l2", (BufferContents("random", 4 * _vectors_in_region(_PARTS[-1] * capacity)),), cases
    )


def measure_l2(session: GpuSession) -> ProbeResult:
    """Measure the bandwidth and capacity of L2."""
    timed = session.measure(l2_plan(session.spec))
    values: dict[str, MeasuredValue] = {}
    inside = timed.get(f"part={_PARTS[0]}")
    if inside is not None:
        values["memory_layers.l2.bandwidth_bytes_per_s"] = inside.step.rate(64 * inside.case.threads)
    every = list(timed.values())
    sizes = np.array([16.0 * t.case.parameters[0] for t in every])
    path = "memory_layers.l2.capacity_bytes"
    doubts: dict[str, str] = {}
    try:
        at = find_capacity_edge(sizes, seconds_per_step_of_cases(every))
        found = value_with_resampled_spread(
            lambda rng: find_capacity_edge(sizes, np.array([t.drawn(rng) for t in every])), 25, count_windows(every)
        )
        above = int(np.argmax(sizes >= at))  # the edge is uncertain between two tested sizes
        apart = float(sizes[above] / sizes[above - 1] - 1)
        values[path] = MeasuredValue(found.value, max(found.spread, apart), found.samples)
    except SpecError as err:
        values |= mark_values_as_rejected(err, doubts, path)
    return ProbeResult(values, session.taken(), doubts)


def count_touched_transactions(run: int, offset: int, size: int) -> int:
    """Return the number of transactions of ``size`` bytes that a run of bytes touches.

    >>> (count_touched_transactions(32, 0, 32), count_touched_transactions(32, 16, 32),
    ...  count_touched_transactions(4, 0, 64))
    (1, 2, 1)
    """
    return (offset + run - 1) // size - offset // size + 1


def transactions_plan(spec: DeviceSpec) -> ProbePlan:
    """Return the plan that times aligned and unaligned runs of bytes in L2 and in fresh global memory."""
    grid, everything = count_resident_blocks(spec, _BLOCK), uncached_buffer_words(spec)
    threads = grid * _BLOCK
    lines = spec.layer("l2").capacity_bytes // 2 // (4 * _PITCH_WORDS)
    turn = next(n for n in range(round(lines * 0.618), lines) if math.gcd(n, lines) == 1)  # visits every line
    cases = []
    for layer, words in (("l2", lines * _PITCH_WORDS), ("global", everything)):
        level = spec.layer(layer)
        size = level.fetch_bytes or level.transaction_bytes
        for run, offset in _RUNS:
            groups = 4 * threads // run
            jump = turn * _PITCH_WORDS if layer == "l2" else groups * _PITCH_WORDS
            moved = 4 * groups * count_touched_transactions(run, offset, size) * size
            cases.append(
                ProbeCase(f"{layer} run={run} offset={offset}", "runs", grid, _BLOCK,
                     (words, _PITCH_WORDS, run // 4, offset // 4, jump, 0), moved / level.bandwidth_bytes_per_s,
                     advance=(6, 4 * jump, words) if layer == "global" else None)
            )  # fmt: skip
    return plan_with_expected_results("transactions", (BufferContents("random", everything),), cases)


def measure_transactions(session: GpuSession) -> ProbeResult:
    """Measure the L2 transaction size and the minimum fetch of global memory."""
    timed = session.measure(transactions_plan(session.spec))
    values: dict[str, MeasuredValue] = {}
    doubts: dict[str, str] = {}
    for layer, field in (("l2", "l2.transaction_bytes"), ("global", "global.fetch_bytes")):
        mine = {k: t for k, t in timed.items() if k.startswith(layer)}
        try:
            values[f"memory_layers.{field}"] = _infer_transaction_size(mine, field)
        except SpecError as err:
            values |= mark_values_as_rejected(err, doubts, f"memory_layers.{field}")
    asked, moved = (f"memory_layers.{x}.transaction_bytes" for x in ("l2", "global"))
    if asked in values:  # a load from global memory moves at least an L2 transaction
        values[moved] = values[asked]
    if asked in doubts:
        doubts[moved] = doubts[asked]
    return ProbeResult(values, session.taken(), doubts)


def _infer_transaction_size(timed: Mapping[str, TimedCase], field: str) -> MeasuredValue:
    shapes = [tuple(int(x.split("=")[1]) for x in k.split(" ")[1:]) for k in timed]
    every = list(timed.values())
    groups = np.array([16 * t.case.threads // run for t, (run, _) in zip(every, shapes, strict=True)])
    counts = {s: np.array([count_touched_transactions(run, o, s) for run, o in shapes], np.float64) for s in _SIZES}
    size: int = choose_proportional_hypothesis(seconds_per_step_of_cases(every) / groups, counts, field)

    def draw(rng: np.random.Generator) -> float:
        try:
            return float(
                choose_proportional_hypothesis(np.array([t.drawn(rng) for t in every]) / groups, counts, field)
            )
        except SpecError:
            return 2.0 * size

    return value_with_resampled_spread(draw, 15, count_windows(every))


def latency_plan(spec: DeviceSpec) -> ProbePlan:
    """Return the plan that times pointer chains through the scratchpad, part of L2, and four times the size of L2."""
    capacity = spec.layer("l2").capacity_bytes
    inputs = (
        BufferContents("chain", 1024),
        BufferContents("chain", capacity // 16 // 32 * 32, pitch=32),
        BufferContents("chain", capacity // 64 * 64, pitch=64),
    )
    cases = tuple(
        ProbeCase(name, "near" if name == "shared" else "far", 1, spec.teu.lanes, (0, 0),
             16 * (spec.layer(name).latency_s or 1e-7), input=n)
        for n, name in enumerate(("shared", "l2", "global"))
    )  # fmt: skip
    return plan_with_expected_results("latency", inputs, cases)


def measure_latency(session: GpuSession) -> ProbeResult:
    """Measure the latencies of the scratchpad, L2 and global memory."""
    timed = session.measure(latency_plan(session.spec))
    return ProbeResult(
        {f"memory_layers.{k}.latency_s": t.step.times(1 / 16) for k, t in timed.items()}, session.taken()
    )
