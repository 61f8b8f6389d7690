"""GPU probes of one unit: scratchpad, register tiles, instruction classes, matrix unit, barriers, and launches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np

from roller.errors import SpecError
from roller.expr.dtype_conversion_rates import ops_per_cycle
from roller.hardware import DeviceSpec
from roller.probing.gpu.fit_model_constants import choose_proportional_hypothesis, fit_reduction_step_times
from roller.probing.gpu.gpu_probe_timings import GpuSession, TimedCase, count_windows, mark_values_as_rejected
from roller.probing.gpu.memory import seconds_per_step_of_cases
from roller.probing.gpu.probe_plan_helpers import count_resident_blocks, plan_with_expected_results
from roller.probing.probe_header import ProbeResult
from roller.probing.robust_window_statistics import MeasuredValue
from roller.runtime.probe_plan_format import BufferContents, ProbeCase, ProbePlan
from roller.targets import target_for

_RATES = "compute.ops_per_cycle_per_unit"
_BLOCK = 512
#: Strides of the lanes in words, and scratchpad hypotheses: (banks, bytes per bank).
_STRIDES = (1, 2, 3, 4, 8, 16, 32, 33, 64)
_BANKS = tuple((banks, width) for banks in (16, 32, 64) for width in (4, 8))
#: Register tiles with the maximum number of threads of their kernels, and numbers of warps per unit.
_TILES = {(1, 1): 1024, (2, 2): 1024, (4, 4): 1024, (8, 4): 512, (8, 8): 512}
_WARPS = (1, 2, 4, 8, 16, 32)
#: Maps each kernel to its instruction class and its number of operations per thread and step.
_CLASSES = {"add": ("add", 64), "special": ("special", 64), "widen": ("convert.float16", 64),
            "convert": ("convert_to.float16", 64), "fma_half": ("fma.float16", 128), "fma_double": ("fma.float64", 64),
            "integer": ("integer", 128), "issue_integer": ("issue", 256), "issue_shared": ("issue", 48)}  # fmt: skip
_PARAMETERS = {"integer": (0x55AA, 3), "issue_integer": (0x55AA, 3), "issue_shared": (32,)}
#: Maximum ratio of mixed to sequential time that proves separate integer pipes.
_BESIDE = 0.85
#: Maximum ratio of the times with half and with all warps; above it, a kernel is bound by latency, not by the pipe.
_HALF = 0.8
_VALUES = (0.25, 0.5, 1.0)
#: Number of groups of TEUs per block, and of multiply-adds per group and step, in the kernel whose instructions read
#: the scratchpad directly.
_GROUPS, _GROUP_STEP = 2, 4 * 64 * 256 * 16
_MATRIX_DTYPES = ("float16", "bfloat16", "int8")


def bank_conflict_degree(stride: int, lanes: int, banks: int, width: int) -> int:
    """Return the maximum number of words per bank that a TEU's lanes access, with 4-byte words ``stride`` apart.

    >>> [bank_conflict_degree(s, 32, 32, 4) for s in (1, 2, 3, 32, 33)]
    [1, 2, 1, 32, 1]
    >>> bank_conflict_degree(2, 32, 32, 8)
    1
    """
    rows = {lane * stride * 4 // width for lane in range(lanes)}
    return max(sum(1 for r in rows if r % banks == bank) for bank in range(banks))


def shared_plan(spec: DeviceSpec) -> ProbePlan:
    """Return the plan that times wide adjacent loads, and loads of words at several strides."""
    layer, lanes = spec.layer("shared"), spec.teu.lanes
    grid = min(count_resident_blocks(spec, _BLOCK), spec.units * max(1, layer.capacity_bytes // 32768))
    threads = grid * _BLOCK
    cases = [ProbeCase("vectors", "vectors", grid, _BLOCK, (128,), 128 * threads / layer.bandwidth_bytes_per_s)]
    once = 16 * threads / spec.ops_per_s("load_store")
    for stride in _STRIDES:
        degree, least = (
            bank_conflict_degree(s, lanes, layer.banks or 32, layer.bank_width_bytes or 4) for s in (stride, 1)
        )
        key = f"stride={stride}"
        cases.append(ProbeCase(key, "strided", grid, _BLOCK, (1024, stride, lanes), once * degree / least))
    return plan_with_expected_results("shared", (BufferContents("random", 8192),), cases)


def measure_shared(session: GpuSession) -> ProbeResult:
    """Measure scratchpad bandwidth, banks and load rate."""
    spec = session.spec
    timed = session.measure(shared_plan(spec))
    values: dict[str, MeasuredValue] = {}
    wide, single = timed.get("vectors"), timed.get("stride=1")
    if wide is not None:
        values["memory_layers.shared.bandwidth_bytes_per_s"] = wide.step.rate(128 * wide.case.threads)
    if single is not None:
        values[f"{_RATES}.load_store"] = single.step.rate(16 * single.case.threads / spec.units / session.clock_hz)
    strided = [t for k, t in timed.items() if k.startswith("stride")]
    strides = [t.case.parameters[1] for t in strided]
    counts = {
        pair: np.array([bank_conflict_degree(s, spec.teu.lanes, *pair) for s in strides], np.float64) for pair in _BANKS
    }
    paths = ("memory_layers.shared.banks", "memory_layers.shared.bank_width_bytes")
    doubts: dict[str, str] = {}
    try:
        pair = choose_proportional_hypothesis(seconds_per_step_of_cases(strided), counts, "banks of the scratchpad")
        spread = max(t.step.spread for t in strided)
        values |= {p: MeasuredValue(v, spread, count_windows(strided)) for p, v in zip(paths, pair, strict=True)}
    except SpecError as err:
        values |= mark_values_as_rejected(err, doubts, *paths)
    return ProbeResult(values, session.taken(), doubts)


def tiles_plan(spec: DeviceSpec) -> ProbePlan:
    """Return the plan that times reduction steps of five register tiles, with one up to all warps of a unit."""
    lanes, schedulers, ex = spec.teu.lanes, spec.teu.schedulers_per_unit, spec.execution
    fma_s = lanes * schedulers * spec.units / spec.ops_per_s("fma")
    cases = []
    for (ry, rx), most in _TILES.items():
        for warps in _WARPS:
            if warps * lanes > most:
                continue
            share = warps / schedulers
            seconds = ex.step_latency_s + max(1.0, share) * ry * rx * fma_s + share * ex.step_issue_s
            key = f"tile={ry}x{rx} warps={warps}"
            counted = spec.units * warps * lanes
            cases.append(
                ProbeCase(key, f"tile_{ry}x{rx}", spec.units, warps * lanes, (), seconds, cycles_word=counted,
                     cycles=seconds * spec.clock_hz, output_dtype="float32")
            )  # fmt: skip
    return plan_with_expected_results("tiles", (BufferContents("small", 4096, "float32"),), cases)


def measure_tiles(session: GpuSession) -> ProbeResult:
    """Measure the clock, the multiply-add rate, and the latency and issue time of a reduction step."""
    spec = session.spec
    timed = session.measure(tiles_plan(spec))
    every = list(timed.values())
    values: dict[str, MeasuredValue] = {}
    clocks = sorted(t.cycles / t.step.value for t in every if t.cycles and t.step.value > 0)
    if clocks:
        low, middle, high = np.quantile(clocks, (0.25, 0.5, 0.75))
        session.clock_hz = float(middle)
        values["clock_hz"] = MeasuredValue(float(middle), float((high - low) / middle), len(clocks))
    names = [k.split(" ") for k in timed]
    outputs = np.array([math.prod(int(x) for x in tile[5:].split("x")) for tile, _ in names], np.float64)
    warps = np.array([int(w[6:]) for _, w in names], np.float64)
    latency_s, issue_s, fma_s = fit_reduction_step_times(
        outputs, warps, seconds_per_step_of_cases(every), spec.teu.schedulers_per_unit, count_windows(every)
    )
    values |= {"execution.step_latency_s": latency_s, "execution.step_issue_s": issue_s}
    values[f"{_RATES}.fma"] = fma_s.rate(spec.teu.lanes * spec.teu.schedulers_per_unit / session.clock_hz)
    return ProbeResult(values, session.taken())


def rates_plan(spec: DeviceSpec) -> ProbePlan:
    """Return the plan that times eight independent chains per thread and class, with all and with half the warps."""
    parts = {"full": spec.units * 2, "half": spec.units}
    cases = []
    for entry, (name, operations) in _CLASSES.items():
        rates = spec.compute.ops_per_cycle_per_unit
        rate = ops_per_cycle(rates, *_split_rate_name(name)) * spec.units * spec.clock_hz
        for part, grid in parts.items():
            seconds = operations * grid * _BLOCK / rate
            if entry == "convert":
                both = sum(1 / ops_per_cycle(rates, *x) for x in (("add", "float32"), ("convert", "float16")))
                seconds += 64 * grid * _BLOCK * both / spec.units / spec.clock_hz
            if entry == "issue_integer" and "integer" not in rates:  # shared pipe
                seconds = max(seconds, 256 * grid * _BLOCK / spec.ops_per_s("add"))
            parameters = _PARAMETERS.get(entry, ())
            cases.append(ProbeCase(f"{entry} {part}", entry, grid, _BLOCK, parameters, seconds, output_dtype="float32"))
    return plan_with_expected_results("rates", (BufferContents("values", 8192, "float32", values=_VALUES),), cases)


def rates(session: GpuSession) -> ProbeResult:
    """Measure operations per cycle and unit for the instruction classes."""
    spec = session.spec
    timed = session.measure(rates_plan(spec))
    values: dict[str, MeasuredValue] = {}
    doubts: dict[str, str] = {}
    for entry, (name, operations) in _CLASSES.items():
        full, half = timed.get(f"{entry} full"), timed.get(f"{entry} half")
        if full is None or half is None:
            continue
        share = half.step.value / full.step.value if full.step.value > 0 else math.inf
        path, step = f"{_RATES}.{name}", full.step
        if share > _HALF:
            reason = f"half the warps take {share:.0%} of the time of all: latency bounds it, not the pipe"
            values |= {} if path in values else mark_values_as_rejected(reason, doubts, path)
            continue
        if entry == "convert":
            if not {"add full", "widen full"} <= set(timed):
                continue
            step = step.difference_from(timed["add full"].step).difference_from(timed["widen full"].step)
        found = step.rate(operations * full.case.threads / spec.units / session.clock_hz)
        if path not in values or found.value > values[path].value:  # the maximum over mixes
            values[path] = found
            doubts.pop(path, None)
    together = _mixed_to_sequential_ratio(timed)
    if together is not None and together > _BESIDE and f"{_RATES}.integer" in values:
        reason = f"both kinds together take {together:.0%} of one after another: no pipes beside those of multiply-adds"
        values |= mark_values_as_rejected(reason, doubts, f"{_RATES}.integer")
    return ProbeResult(values, session.taken(), doubts)


def _split_rate_name(name: str) -> tuple[str, str]:
    operation, _, dtype = name.partition(".")
    return operation, dtype or "float32"


def _mixed_to_sequential_ratio(timed: Mapping[str, TimedCase]) -> float | None:
    names = ("issue_integer full", "add full", "integer full")
    if not set(names) <= set(timed):
        return None
    mixed, add, integer = (timed[n].step.value for n in names)
    return mixed / (2 * add + integer)  # 128 multiply-adds take as long as 128 additions, two steps


def matrix_plan(spec: DeviceSpec) -> ProbePlan | None:
    """Return the plan that times fragments of the specification's dtypes, or ``None`` without a matrix unit."""
    source, per_step = target_for(spec).matrix_probe
    given = spec.compute.ops_per_cycle_per_unit
    grid, block = spec.units * 2, 8 * spec.teu.lanes
    cases = []
    for dtype in (d for d in _MATRIX_DTYPES if f"matrix.{d}" in given):
        rate = given[f"matrix.{dtype}"] * spec.units * spec.clock_hz
        seconds = per_step * grid * block / spec.teu.lanes / rate
        out: Literal["int32", "float32"] = "int32" if dtype == "int8" else "float32"
        cases.append(ProbeCase(dtype, f"matrix_{dtype}", grid, block, (), seconds, output_dtype=out))
    words = grid * block // spec.teu.lanes * 256
    return (
        plan_with_expected_results("matrix", (BufferContents("small", 1024),), cases, source=source, output_words=words)
        if cases
        else None
    )


def measure_matrix(session: GpuSession) -> ProbeResult:
    """Measure the matrix unit's multiply-adds per cycle and unit for each dtype."""
    spec = session.spec
    asked = matrix_plan(spec)
    if asked is None:
        return ProbeResult({}, ("skipped: the specification names no matrix unit",))
    timed = session.measure(asked)
    _, per_step = target_for(spec).matrix_probe
    values = {}
    for dtype, t in timed.items():
        work = per_step * t.case.threads / spec.teu.lanes
        values[f"{_RATES}.matrix.{dtype}"] = t.step.rate(work / spec.units / session.clock_hz)
    return ProbeResult(values, session.taken())


def group_matrix_plan(spec: DeviceSpec) -> ProbePlan | None:
    """Return the plan that times instructions that read the scratchpad directly, or ``None`` if there are none."""
    alone = (f for f in spec.emitted.fragments if f.reads_scratchpad)
    forms = {f.operand: f for f in alone if f"{f.rate}.{f.operand}" in _specified_rates(spec)}
    cases = []
    for dtype, f in forms.items():
        grid, block = spec.units, _GROUPS * f.threads
        rate = _specified_rates(spec)[f"{f.rate}.{dtype}"] * spec.units * spec.clock_hz
        cases.append(ProbeCase(dtype, f"group_matrix_{dtype}", grid, block, (), _GROUP_STEP * _GROUPS * grid / rate,
                          output_dtype="float32"))  # fmt: skip
    arch = next((f.arch for f in forms.values()), "")
    return (
        plan_with_expected_results("group_matrix", (BufferContents("small", 1024),), cases, arch=arch)
        if cases
        else None
    )


def _specified_rates(spec: DeviceSpec) -> Mapping[str, float]:
    return spec.compute.ops_per_cycle_per_unit


def measure_group_matrix(session: GpuSession) -> ProbeResult:
    """Measure, for each dtype, multiply-adds per cycle and unit of instructions that read the scratchpad directly."""
    spec = session.spec
    asked = group_matrix_plan(spec)
    if asked is None:
        return ProbeResult({}, ("skipped: the specification names no instruction of several TEUs",))
    values = {}
    for dtype, t in session.measure(asked).items():
        work = _GROUP_STEP * _GROUPS * t.case.grid
        values[f"{_RATES}.group_matrix.{dtype}"] = t.step.rate(work / spec.units / session.clock_hz)
    return ProbeResult(values, session.taken())


def control_plan(spec: DeviceSpec) -> ProbePlan:
    """Return the plan that times launches of an empty kernel, and barriers in a block of eight TEUs on every unit."""
    cases = (
        ProbeCase("launch", "empty", 1, spec.teu.lanes, (5,), spec.execution.launch_s, launches=True),
        ProbeCase("barrier", "barrier", spec.units, 8 * spec.teu.lanes, (1,), 16 * spec.execution.barrier_s),
    )
    return plan_with_expected_results("control", (BufferContents("ones", 64),), cases)


def measure_control(session: GpuSession) -> ProbeResult:
    """Measure the times of a launch and of a barrier."""
    timed = session.measure(control_plan(session.spec))
    values = {}
    if "launch" in timed:
        values["execution.launch_s"] = timed["launch"].step
    if "barrier" in timed:
        values["execution.barrier_s"] = timed["barrier"].step.times(1 / 16)
    return ProbeResult(values, session.taken())
