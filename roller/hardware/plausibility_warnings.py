"""Warnings about values that no similar device has: mostly off by a thousand, or rates that contradict their notes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from roller.hardware.sections import MemoryLayer
from roller.hardware.sourced_numbers import SourcedNumber
from roller.hardware.spec import DeviceSpec
from roller_runtime.core.display import bytes_text

#: Minimum and maximum load-to-use latency, in cycles, of a unit's layer and of a device's layer; shipped devices keep a
#: factor of ten from both.
_CYCLES = {"unit": (1.0, 1000.0), "device": (5.0, 20_000.0)}
#: Minimum and maximum step times, in cycles.
_STEPS = {"step_latency_s": (0.3, 1000.0), "step_issue_s": (0.05, 300.0), "barrier_s": (0.3, 3000.0)}
#: Minimum and maximum, in seconds, of times that do not scale with the clock.
_TIMES = {
    "execution.launch_s": (3e-8, 2.5e-4), "execution.fork_s": (5e-8, 3e-4), "link_latency_s": (5e-8, 5e-4),
    "execution.element_gather_s": (2e-12, 3e-8), "execution.element_copy_s": (2e-12, 3e-8),
    "execution.element_scatter_s": (2e-12, 3e-8), "execution.fault_s": (2e-8, 3e-4),
}  # fmt: skip
#: Minimum and maximum share of the board's power that its units draw: busy, with the matrix unit, and idle.
_POWERS_DRAWN = {"busy_cycle_j": (0.1, 20.0), "matrix_cycle_j": (0.1, 20.0), "idle_cycle_j": (2e-3, 2.0)}
_POWER_W, _STANDING = (5.0, 5000.0), (0.02, 0.9)
#: Minimum and maximum share of the board's power that a layer draws at full bandwidth: on shipped devices, 0.2 for
#: memory and 0.8 for the L2.
_BYTES_DRAWN = (5e-3, 5.0)
#: Maximum size of a transaction (bytes), minimum bandwidth of a link (bytes/s), and maximum size of memory (bytes).
_MOST_MOVED, _LEAST_LINK, _MOST_MEMORY = 1024, 1e9, 4 << 40
#: Memory of a process without tensors: fields, minimum size in bytes, and maximum share of the device's memory.
#: The 1.9 GiB of an A100 with cuDNN are a quarter of a small board.
_PROCESS = ("process_bytes", "process_convolution_bytes", "process_eager_bytes", "process_least_bytes",
            "process_most_bytes")  # fmt: skip
_LEAST_CONTEXT, _MOST_CONTEXT = 10_000_000, 0.5
#: Minimum and maximum rates of pipes, and maximum of dot products, relative to the issue rate.
_RATES, _MOST_DOT = (1 / 200, 8.0), 64.0
#: Minimum and maximum float32 operations per byte of memory traffic: shipped devices have 1 to 114.
_BALANCE = (0.2, 1000.0)
#: Minimum ratio of device memory to cache, and minimum and maximum number of registers per thread of a full unit.
_LEAST_OF_CACHE, _REGISTERS = 100, (4, 256)
#: Maximum ratio between the values of two sources, and maximum relative deviation of a rate from its note.
_SOURCES_APART, _NOTE_APART = 8.0, 0.12
_OPS = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\s*([TPG])(?:FL)?OP/s")
_UNITS = re.compile(r"(\d+) (?:tensor cores?|matrix cores?|units?) of (\d+) (?:FMA|multiply-adds)")
_BYTES = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\s*([TGM])B/s")
_POWERS = {"M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


def plausibility_warnings(spec: DeviceSpec, accused: Collection[str]) -> Iterator[str]:
    """Yield warnings about unusual values, each after its path, without comparing values with ``accused`` paths."""
    # The caller adds the path of each yielded line to ``accused`` before it takes the next.
    home = f"memory_layers.{spec.home.name}"
    if "clock_hz" not in accused:
        yield from _latency_warnings(spec)
        yield from _step_time_warnings(spec)
    yield from _size_warnings(spec)
    if f"{home}.capacity_bytes" not in accused:
        yield from _memory_amount_warnings(spec)
    yield from _issue_rate_warnings(spec, accused)
    if not {f"{home}.bandwidth_bytes_per_s", "compute.ops_per_cycle_per_unit.fma", "clock_hz"} & set(accused):
        yield from _compute_to_bandwidth_warnings(spec)
    if f"{home}.bandwidth_bytes_per_s" not in accused:
        yield from _bandwidth_warnings(spec)
    for layer in spec.memory_layers:
        if f"memory_layers.{layer.name}.bandwidth_bytes_per_s" not in accused:
            yield from _teu_bandwidth_warnings(spec, layer)
    yield from _power_warnings(spec)
    for x in spec.written:
        if spec.sources.get(x.path) not in ("override", "detected"):
            yield from _source_mismatch_warnings(x)
            yield from _note_warnings(spec, x)


def _latency_warnings(spec: DeviceSpec) -> Iterator[str]:
    before: MemoryLayer | None = None
    for layer in spec.memory_layers:
        if not layer.latency_s:
            continue
        path, cycles = f"memory_layers.{layer.name}.latency_s", layer.latency_s * spec.clock_hz
        bounds = _CYCLES.get(layer.scope)
        if bounds and not bounds[0] <= cycles <= bounds[1]:
            yield (f"{path}: {layer.latency_s:.3g} s are {cycles:.3g} cycles of {spec.clock_hz / 1e9:.3g} GHz, where "
                   f"{bounds[0]:g} to {bounds[1]:g} are usual: check the unit")  # fmt: skip
        if before is not None and before.latency_s and layer.latency_s < 0.7 * before.latency_s:
            yield (f"{path}: {layer.latency_s:.3g} s is less than the {before.latency_s:.3g} s of the faster layer "
                   f"{before.name}: check both")  # fmt: skip
        before = layer


def _step_time_warnings(spec: DeviceSpec) -> Iterator[str]:
    for name, (least, most) in _STEPS.items():
        value = getattr(spec.execution, name)
        cycles = value * spec.clock_hz
        if value and not least <= cycles <= most:
            yield (f"execution.{name}: {value:.3g} s are {cycles:.3g} cycles of {spec.clock_hz / 1e9:.3g} GHz, where "
                   f"{least:g} to {most:g} are usual: check the unit")  # fmt: skip
    values = spec.values()
    for layer in spec.memory_layers:
        misses = (layer.tlb_miss_s or 0.0) * spec.clock_hz
        if misses > _CYCLES["unit"][1]:
            yield (f"memory_layers.{layer.name}.tlb_miss_s: {layer.tlb_miss_s:.3g} s are {misses:.3g} cycles, where at "
                   f"most {_CYCLES['unit'][1]:g} are usual: check the unit")  # fmt: skip
    for path, (least, most) in _TIMES.items():
        if values.get(path) and not least <= values[path] <= most:
            yield f"{path}: {values[path]:.3g} s, where {least:g} to {most:g} s are usual: check the unit"


def _memory_amount_warnings(spec: DeviceSpec) -> Iterator[str]:
    home = spec.home
    caches = [x for x in spec.memory_layers if x.scope == "device" and x is not home]
    if spec.traits.blocks and caches and home.capacity_bytes < _LEAST_OF_CACHE * caches[-1].capacity_bytes:
        yield (f"memory_layers.{home.name}.capacity_bytes: {bytes_text(home.capacity_bytes)} is less than "
               f"{_LEAST_OF_CACHE} times the {bytes_text(caches[-1].capacity_bytes)} of {caches[-1].name}: is it in "
               "KiB or MiB?")  # fmt: skip
    for name in ("reported_bytes", "reported_most_bytes"):
        details = getattr(home, name)
        if details is not None and not 0.8 * home.capacity_bytes <= details <= 1.1 * home.capacity_bytes:
            yield (f"memory_layers.{home.name}.{name}: {bytes_text(details)} beside a capacity of "
                   f"{bytes_text(home.capacity_bytes)}: check both")  # fmt: skip
    limits, least, most = spec.limits, *_REGISTERS
    if limits.registers_per_unit and limits.threads_per_unit:
        each = limits.registers_per_unit / limits.threads_per_unit
        if not least <= each <= most:
            yield (f"limits.registers_per_unit: {limits.registers_per_unit} are {each:.3g} for each of "
                   f"{limits.threads_per_unit} threads, where {least} to {most} are usual: are they bytes or "
                   "thousands?")  # fmt: skip
    first = spec.memory_layers[0]
    if limits.registers_per_thread and not 0.4 < first.capacity_bytes / (4 * limits.registers_per_thread) < 2.5:
        yield (f"memory_layers.{first.name}.capacity_bytes: {first.capacity_bytes} bytes for "
               f"{limits.registers_per_thread} registers of 4 bytes: check both")  # fmt: skip


def _size_warnings(spec: DeviceSpec) -> Iterator[str]:
    home = spec.home
    if home.capacity_bytes > _MOST_MEMORY:
        most = bytes_text(_MOST_MEMORY)
        yield (f"memory_layers.{home.name}.capacity_bytes: {bytes_text(home.capacity_bytes)}, where at most {most} are "
               "usual: check the unit")  # fmt: skip
    for name in _PROCESS:
        held = getattr(spec, name)
        if held and not _LEAST_CONTEXT <= held <= _MOST_CONTEXT * home.capacity_bytes:
            yield (f"{name}: {bytes_text(held)} beside a memory of {bytes_text(home.capacity_bytes)}, "
                   f"where at least {bytes_text(_LEAST_CONTEXT)} are usual: check the unit")  # fmt: skip
    for layer in spec.memory_layers:
        path = f"memory_layers.{layer.name}"
        for name in ("transaction_bytes", "line_bytes", "fetch_bytes"):
            size = getattr(layer, name)
            if size is not None and size > _MOST_MOVED:
                yield f"{path}.{name}: {size} bytes, where at most {_MOST_MOVED} are usual: check the unit"
        taken = layer.reserved_bytes
        if taken and not 16 <= taken <= layer.capacity_bytes / 8:
            yield (f"{path}.reserved_bytes: {taken} of {layer.capacity_bytes} bytes, where 16 to an eighth are usual: "
                   "check the unit")  # fmt: skip
    static = spec.limits.shared_bytes_per_block
    if static is not None:
        layer = spec.layer("shared")
        if static > layer.capacity_bytes:
            yield (f"limits.shared_bytes_per_block: {static} bytes of a block are more than the "
                   f"{layer.capacity_bytes} of {layer.name}: check both")  # fmt: skip


def _bandwidth_warnings(spec: DeviceSpec) -> Iterator[str]:
    home = spec.home
    path, whole = f"memory_layers.{home.name}", home.bandwidth_bytes_per_s
    for name in ("read_bandwidth_bytes_per_s", "triad_bandwidth_bytes_per_s"):
        value = getattr(home, name)
        if value is not None and not 0.5 < value / whole < 2:
            copies = _format_bandwidth(whole)
            yield f"{path}.{name}: {_format_bandwidth(value)} beside the {copies} of copies: check both"
    if spec.link_bytes_per_s and not _LEAST_LINK <= spec.link_bytes_per_s <= whole:
        link, own, least = (_format_bandwidth(b) for b in (spec.link_bytes_per_s, whole, _LEAST_LINK))
        yield (f"link_bytes_per_s: {link} beside {own} of its own memory, where at least {least} are usual: "
               "check the unit")  # fmt: skip


def _compute_to_bandwidth_warnings(spec: DeviceSpec) -> Iterator[str]:
    peak, whole = 2 * spec.ops_per_s("fma"), spec.home.bandwidth_bytes_per_s
    if spec.traits.blocks and not _BALANCE[0] <= peak / whole <= _BALANCE[1]:
        yield (f"memory_layers.{spec.home.name}.bandwidth_bytes_per_s: {_format_bandwidth(whole)} beside "
               f"{peak / 1e12:.3g} TFLOP/s are {peak / whole:.3g} operations a byte, where {_BALANCE[0]:g} to "
               f"{_BALANCE[1]:g} are usual: check the unit")  # fmt: skip


def _teu_bandwidth_warnings(spec: DeviceSpec, layer: MemoryLayer) -> Iterator[str]:
    each, whole, teu = layer.bandwidth_per_teu_bytes_per_s, layer.bandwidth_bytes_per_s, spec.teu.name
    if each is None:
        return
    name = f"memory_layers.{layer.name}.bandwidth_per_teu_bytes_per_s"
    # A warp on every unit does not saturate the memory; all that are resident do.
    alone = spec.units if spec.traits.blocks else 1
    threads = spec.limits.threads_per_unit if spec.traits.blocks else None
    teus = spec.units * (threads or spec.teu.lanes) / spec.teu.lanes
    if alone * each > whole * 1.05:
        yield (f"{name}: {_format_bandwidth(each)} of each of {alone} {teu}s are more than all of "
               f"{_format_bandwidth(whole)}: check the unit")  # fmt: skip
    elif teus * each < whole / 8:
        yield (f"{name}: {_format_bandwidth(each)} of each of {teus:.0f} resident {teu}s are "
               f"{_format_bandwidth(each * teus)}, less than an eighth of {_format_bandwidth(whole)}: "
               "check the unit")  # fmt: skip


def _power_warnings(spec: DeviceSpec) -> Iterator[str]:
    power = spec.power_w
    if power is None:
        return
    least, most = _POWER_W
    if not least <= power <= most:
        yield f"power_w: {power:g} W, where {least:g} to {most:g} are usual: check the unit"
    standing, (low, high) = spec.execution.standing_w, _STANDING
    if standing and not low <= standing / power <= high:
        yield f"execution.standing_w: {standing:g} of {power:g} W, where {low:.0%} to {high:.0%} are usual"
    for name, (low, high) in _POWERS_DRAWN.items():
        joules = getattr(spec.execution, name)
        drawn = 0.0 if joules is None else joules * spec.units * spec.clock_hz
        if joules is not None and not low <= drawn / power <= high:
            yield (f"execution.{name}: {joules:.3g} J x {spec.units} units x {spec.clock_hz / 1e9:.4g} GHz are "
                   f"{drawn:.3g} W beside power_w = {power:g}: check the unit")  # fmt: skip
    for layer in spec.memory_layers:
        if layer.byte_j is None:
            continue
        rate, (low, high) = layer.bandwidth_bytes_per_s, _BYTES_DRAWN
        if not low <= layer.byte_j * rate / power <= high:
            yield (f"memory_layers.{layer.name}.byte_j: {layer.byte_j:.3g} J at {_format_bandwidth(rate)} are "
                   f"{layer.byte_j * rate:.3g} W beside power_w = {power:g}: check the unit")  # fmt: skip


def _issue_rate_warnings(spec: DeviceSpec, accused: Collection[str]) -> Iterator[str]:
    """Yield warnings about rates above or far below the issue rate, and about matrix units slower than the pipes."""
    width = spec.teu.lanes * spec.teu.schedulers_per_unit
    rates = spec.compute.ops_per_cycle_per_unit
    for name, rate in rates.items():
        family, _, dtype = name.partition(".")
        if family in ("matrix", "group_matrix"):
            pipe = rates.get(f"fma.{dtype}", rates["fma"])
            known = "compute.ops_per_cycle_per_unit.fma" not in accused
            if spec.traits.blocks and known and not pipe * 0.9 <= rate <= 256 * pipe:
                yield (f"compute.ops_per_cycle_per_unit.{name}: {rate:g} of a cycle and unit beside {pipe:g} of the "
                       f"pipes: is it TFLOP/s?")  # fmt: skip
            continue
        least, most = _RATES[0], _MOST_DOT if family == "dot" else _RATES[1]
        if family in ("fma", "issue") and not dtype:
            least = 1 / 8
        if not least * width <= rate <= most * width:
            yield (f"compute.ops_per_cycle_per_unit.{name}: {rate:g} of a cycle and unit, where "
                   f"{spec.teu.schedulers_per_unit} schedulers of {spec.teu.lanes} lanes issue {width}: is it "
                   "TFLOP/s?")  # fmt: skip


def _source_mismatch_warnings(x: SourcedNumber) -> Iterator[str]:
    values = [(s, v) for s, v in x.values if v > 0]
    if len(values) > 1:
        (high, most), (low, least) = max(values, key=lambda v: v[1]), min(values, key=lambda v: v[1])
        if most > _SOURCES_APART * least:
            yield f"{x.path}: {low} {least:g} is {most / least:.0f} times below {high} {most:g}: check both units"


def _note_warnings(spec: DeviceSpec, x: SourcedNumber) -> Iterator[str]:
    family, value = x.path.rpartition("compute.ops_per_cycle_per_unit.")[2], x.values[0][1]
    if x.path.startswith("compute.") and family.partition(".")[0] in ("fma", "dot", "matrix", "group_matrix"):
        yield from _rate_note_warnings(spec, x, value)
    elif x.path.endswith("bandwidth_bytes_per_s"):
        details = [float(n) * _POWERS[p] for n, p in _BYTES.findall(x.note)]
        if len(details) == 1 and not 0.02 < value / details[0] < 50:
            noted = _format_bandwidth(details[0])
            yield f"{x.path}: {_format_bandwidth(value)} beside {noted} of its own note: check the unit"


def _rate_note_warnings(spec: DeviceSpec, x: SourcedNumber, value: float) -> Iterator[str]:
    """Yield a warning if a rate contradicts the unit counts or the operations per second in its note."""
    clocks = [c for c in (spec.clock_hz, spec.sustained_clock_hz) if c]
    peaks = [2 * value * spec.units * c for c in clocks]
    details = [float(n) * _POWERS[p] for n, p in _OPS.findall(x.note)]
    # A note may give the rate of a whole board of two devices, or count sparse products twice.
    parts = (1, 2) if "of the board" in x.note else (1,)
    near = any(abs(peak * k / t - 1) <= _NOTE_APART for t in details for peak in peaks for k in parts)
    if details and not near:
        yield (f"{x.path}: {value:g} x 2 x {spec.units} units x {spec.clock_hz / 1e9:.4g} GHz are "
               f"{peaks[0] / 1e12:.4g} T operations/s, beside {details[0] / 1e12:.4g} of its own note")  # fmt: skip
    for count, each in _UNITS.findall(x.note):
        if int(count) * int(each) != value:
            yield f"{x.path}: {value:g} beside {count} times {each} of its own note"


def _format_bandwidth(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:,.3g} GB/s"
