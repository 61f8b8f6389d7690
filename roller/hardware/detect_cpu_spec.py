"""Detects this machine as a DeviceSpec: a CPU profile, overlaid first with detected and then with probed values."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from roller.errors import SpecError
from roller.hardware.generic_cpu import generic_profile
from roller.hardware.probed_profile_location import profile_path
from roller.hardware.reader import read_spec, spec_folder
from roller.hardware.spec import DeviceSpec, settable_fields
from roller_runtime.core.processor_features_and_count import (
    affinity_processors,
    linux_feature_name,
    processors_granted_by_cgroup,
    tile_registers_permitted,
)

_AVX512 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_AVX2 = {"abm", "avx2", "fma", "bmi1", "bmi2", "f16c", "movbe"}
_ICELAKE = _AVX512 | _AVX2 | {
    "avx512vbmi", "avx512ifma", "avx512_vbmi2", "avx512_vnni", "avx512_bitalg", "avx512_vpopcntdq", "gfni", "vaes",
    "vpclmulqdq", "sha_ni",
}  # fmt: skip

#: ``(code generation name, vendor or None, flags it may emit)``, most capable first. A name is taken only where
#: every flag is present: hypervisors mask features, and a name chosen by model number then emits illegal instructions.
X86_TARGETS: tuple[tuple[str, str | None, frozenset[str]], ...] = (
    ("znver4", "AuthenticAMD", frozenset(_ICELAKE | {"avx512_bf16", "clzero", "sse4a", "clwb", "fsgsbase"})),
    ("icelake-server", "GenuineIntel", frozenset(_ICELAKE | {"clwb", "fsgsbase", "pku", "wbnoinvd"})),
    ("cascadelake", "GenuineIntel", frozenset(_AVX512 | _AVX2 | {"avx512_vnni", "clwb", "pku"})),
    ("skylake-avx512", "GenuineIntel", frozenset(_AVX512 | _AVX2 | {"clwb", "pku"})),
    ("x86-64-v4", None, frozenset(_AVX512 | _AVX2)),
    ("x86-64-v3", None, frozenset(_AVX2)),
)

#: ``CPU part`` of ``/proc/cpuinfo`` on Arm -> code generation name; others compile for plain NEON.
ARM_PARTS = {"0xd0c": "neoverse-n1", "0xd40": "neoverse-v1", "0xd49": "neoverse-n2", "0xd4f": "neoverse-v2"}

_ARM = ("aarch64", "arm64")
_X86 = ("x86_64", "amd64")
#: Assumed DRAM bandwidth per core and maximum per socket; the system reports neither.
_DRAM_PER_CORE_BYTES_PER_S = 2.0e10
_DRAM_TOTAL_BYTES_PER_S = 2.0e11
#: Error fields of predicted times, and their value for assumed rates: the logarithm of a factor of two. Errors of
#: ratios are unaffected, because assumed rates apply to all candidates alike.
_SECONDS_ERRORS = tuple(f"accuracy.{n}_error" for n in ("prediction", "compute", "memory", "overhead"))
UNPROBED_ERROR = 0.7


@dataclass(frozen=True)
class CpuInfo:
    """First processor in ``/proc/cpuinfo``; text fields are empty if absent."""

    model: str = ""
    vendor: str = ""
    flags: frozenset[str] = frozenset()
    part: str = ""  #: Arm ``CPU part``
    mhz: float | None = None  #: Clock in MHz


def detect_cpu(root: Path | None = None, machine: str | None = None) -> DeviceSpec:
    """Return the specification of this machine's CPU, named ``cpu``.

    >>> detect_cpu().kind
    'cpu'
    """
    found = _detect_cpu_spec(root or Path("/"), (machine or platform.machine()).lower(), affinity_processors())
    return with_assumed_errors(found) if root is not None else with_probed_profile(found)


def detect_cpu_without_probe() -> DeviceSpec:
    """Return the specification of this machine as detected, without probed values: the starting point of a probe."""
    return _detect_cpu_spec(Path("/"), platform.machine().lower(), affinity_processors())


def is_this_machine(spec: DeviceSpec) -> bool:
    """Return whether a specification describes this machine: whether it was detected or measured here."""
    return not spec.traits.discrete and (
        spec.name == "cpu" or (spec.machine != "" and spec.machine == _this_machine_fingerprint())
    )


def check_core_count(spec: DeviceSpec) -> None:
    """Raise an error if a specification of this machine has a changed core count, for which kernels cannot be timed."""
    there = detect_cpu_without_probe().units
    if spec.units != there:
        raise SpecError(
            f"{spec.name}: units: expected the {there} cores of this machine, on which kernels are timed, got "
            f"{spec.units}. Leave it out; --threads (threads=) says how many a call of the model uses."
        )


def _this_machine_fingerprint() -> str:
    return detect_cpu_without_probe().machine


def is_probed(spec: DeviceSpec) -> bool:
    """Return whether ``roller probe cpu`` has measured a profile of this machine."""
    return profile_path(spec.machine).is_file()


def with_assumed_errors(detected: DeviceSpec) -> DeviceSpec:
    """Return an unprobed specification with prediction errors that reflect the uncertainty of its assumed rates."""
    fields = {p: UNPROBED_ERROR for p in detected.values() if p in _SECONDS_ERRORS}
    return detected.with_overrides(fields, "assumed")


def profile_file_paths(spec: DeviceSpec) -> tuple[Path, ...]:
    """Return the files with a detected machine's values: the similar shipped profile and the probed profile."""
    probed = profile_path(spec.machine)
    shipped = spec_folder() / f"{spec.description.rpartition('(profile ')[2].partition(')')[0]}.yaml"
    found = [shipped] if shipped.is_file() else []
    return (*found, *([probed] if is_probed(spec) and probed.is_file() else []))


def with_probed_profile(detected: DeviceSpec) -> DeviceSpec:
    """Return a detected specification overlaid with the measured values of its probed profile, if any."""
    path = profile_path(detected.machine)
    if not path.is_file():
        return with_assumed_errors(detected)
    try:
        profile = read_spec(str(path))
    except SpecError as err:
        raise SpecError(f"{err} It is what `roller probe cpu` wrote: run it again, or delete the file.") from err
    if profile.machine != detected.machine:
        return with_assumed_errors(detected)
    return _with_measured_values(detected, profile)


def _assumed_all_core_bandwidth(detected: DeviceSpec, measured: Mapping[str, float]) -> dict[str, float]:
    """Return an assumed all-core memory bandwidth if only that of one core was measured, else an empty dictionary."""
    path = f"memory_layers.{detected.memory_layers[-1].name}."
    alone = measured.get(f"{path}bandwidth_per_teu_bytes_per_s")
    if alone is None or f"{path}bandwidth_bytes_per_s" in measured:
        return {}
    return {f"{path}bandwidth_bytes_per_s": min(detected.units * alone, max(alone, _DRAM_TOTAL_BYTES_PER_S))}


@lru_cache(maxsize=8)
def _with_measured_values(detected: DeviceSpec, profile: DeviceSpec) -> DeviceSpec:
    values, known = profile.values(), settable_fields(detected)
    measured = {p: v for p, v in values.items() if profile.sources.get(p) == "measured" and p in known}
    for path in list(measured):  # a bandwidth of one core belongs with its saturation exponent
        layer, _, field = path.rpartition(".")
        bend = f"{layer}.saturation_exponent"
        if field == "bandwidth_per_teu_bytes_per_s" and bend not in detected.values() and bend not in measured:
            measured[bend] = values[bend]
    found = detected.with_overrides(measured, "measured").with_overrides(
        _assumed_all_core_bandwidth(detected, measured), "assumed"
    )
    if profile.doubt:  # somebody changed what the probe wrote
        found = found.with_unvalidated_accuracy()
    return replace(found, description=f"{detected.description}, probed")


@lru_cache(maxsize=8)
def _detect_cpu_spec(root: Path, machine: str, affinity: tuple[int, ...]) -> DeviceSpec:
    info = read_cpuinfo(root)
    profile, mcpu = match_cpu_profile(machine, info)
    shipped = (spec_folder() / f"{profile}.yaml").is_file()
    spec = read_spec(profile) if shipped else generic_profile(profile)
    target = {k: v for k, v in spec.target.items() if k not in ("mtriple", "features")} | {"mcpu": mcpu}
    has = [llvm for llvm in sorted({f.arch for f in spec.fragments}) if linux_feature_name(llvm) in info.flags]
    if root == Path("/") and not tile_registers_permitted():
        has = [llvm for llvm in has if not llvm.startswith("amx")]
    target |= {"features": " ".join(has)} if has else {}
    spec = replace(
        spec,
        name="cpu",
        description=f"{info.model or machine}, this machine (profile {profile})",
        target_items=tuple(sorted(target.items())),
    )
    cores = count_usable_cores(root, affinity)
    detected: dict[str, float] = {"units": cores, **_detect_caches(root, spec)}
    clock = _detect_clock_hz(root, info)
    if clock is not None:
        clock = round(clock / _CLOCK_STEP_HZ) * _CLOCK_STEP_HZ
        detected["clock_hz"] = clock
    memory = _detect_memory_bytes(root)
    if memory is not None:
        detected["memory_layers.dram.capacity_bytes"] = memory
    scaled = _scale_to_cores_and_clock(spec, cores, clock or spec.clock_hz)
    found = spec.with_overrides(scaled, "assumed").with_overrides(detected, "detected")
    return replace(found, machine=_machine_fingerprint(info, machine, found))


def _machine_fingerprint(info: CpuInfo, machine: str, spec: DeviceSpec) -> str:
    caches = ", ".join(f"{x.name} {x.capacity_bytes}" for x in spec.memory_layers if x.name in ("l1", "l2", "l3"))
    return f"{info.model or info.part or machine}; {spec.units} cores; {caches} bytes; {spec.target['mcpu']}"


def read_cpuinfo(root: Path) -> CpuInfo:
    """Return the first processor in ``proc/cpuinfo`` under ``root``, or an empty record if that file is missing."""
    fields: dict[str, str] = {}
    for line in _read_text_or_empty(root / "proc/cpuinfo").splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    try:
        mhz = float(fields["cpu MHz"])
    except (KeyError, ValueError):
        mhz = None
    return CpuInfo(
        fields.get("model name", ""),
        fields.get("vendor_id", ""),
        frozenset((fields.get("flags") or fields.get("Features") or "").split()),
        fields.get("CPU part", ""),
        mhz,
    )


def match_cpu_profile(machine: str, info: CpuInfo) -> tuple[str, str]:
    """Return the matching profile and the processor name for code generation.

    >>> match_cpu_profile("x86_64", CpuInfo(flags=frozenset(_AVX2)))
    ('cpu-avx2', 'x86-64-v3')
    """
    if machine in _ARM:
        return "cpu-neon", ARM_PARTS.get(info.part, "generic")
    if machine not in _X86:
        raise SpecError(f"device 'cpu': no profile for architecture '{machine}'. Pass the path of a YAML of your own.")
    for name, vendor, flags in X86_TARGETS:
        if vendor in (None, info.vendor) and flags <= info.flags:
            return ("cpu-avx512" if flags >= _AVX512 else "cpu-avx2"), name
    # Without AVX2, or where the flags cannot be read: code that runs on every x86-64, priced like its neighbour.
    return "cpu-avx2", "x86-64"


def count_usable_cores(root: Path, affinity: tuple[int, ...]) -> int:
    """Return the number of usable physical cores, according to affinity, control group and SMT siblings."""
    siblings = {
        _read_text_or_empty(root / f"sys/devices/system/cpu/cpu{i}/topology/thread_siblings_list").strip() or str(i)
        for i in affinity
    }
    return processors_granted_by_cgroup(max(len(siblings), 1), root)


def _detect_caches(root: Path, spec: DeviceSpec) -> dict[str, float]:
    out: dict[str, float] = {}
    for folder in sorted((root / "sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind = _read_text_or_empty(folder / "level").strip(), _read_text_or_empty(folder / "type").strip()
        size = _parse_size_bytes(_read_text_or_empty(folder / "size").strip())
        if kind == "Instruction" or size is None or level not in ("1", "2", "3"):
            continue
        layer = spec.layer(f"l{level}")
        path = f"memory_layers.{layer.name}"
        out[f"{path}.capacity_bytes"] = size
        if layer.usable_bytes is not None:
            out[f"{path}.usable_bytes"] = int(size * layer.usable_bytes / layer.capacity_bytes)
        line = _read_text_or_empty(folder / "coherency_line_size").strip()
        if line.isdigit():
            out[f"{path}.line_bytes"] = int(line)
    return out


def _parse_size_bytes(text: str) -> int | None:
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
    digits = text[:-1] if factor > 1 else text
    return int(digits) * factor if digits.isdigit() and int(digits) > 0 else None


#: Rounding of detected clocks: jitter must not turn the same machine into a different device.
_CLOCK_STEP_HZ = 5.0e7


def _detect_clock_hz(root: Path, info: CpuInfo) -> float | None:
    """Return the maximum clock of the first core in Hz, else its current clock, else ``None``."""
    text = _read_text_or_empty(root / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq").strip()
    if text.isdigit() and int(text) > 0:
        return int(text) * 1e3
    return info.mhz * 1e6 if info.mhz is not None and info.mhz >= 500 else None


def _detect_memory_bytes(root: Path) -> int | None:
    for line in _read_text_or_empty(root / "proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return None


def _scale_to_cores_and_clock(spec: DeviceSpec, cores: int, clock_hz: float) -> dict[str, float]:
    """Return the profile's totals and cycle times scaled to a number of cores and a clock."""
    out: dict[str, float] = {}
    # Private layers scale with cores and clock, the sliced L3 with cores, DRAM with cores up to an assumed total.
    by_core, by_clock = cores / spec.units, clock_hz / spec.clock_hz
    for layer in spec.memory_layers:
        factor = by_core * (by_clock if layer.scope == "unit" else 1.0)
        total = layer.bandwidth_bytes_per_s * factor
        if layer is spec.memory_layers[-1]:
            total = min(cores * _DRAM_PER_CORE_BYTES_PER_S, _DRAM_TOTAL_BYTES_PER_S)
        out[f"memory_layers.{layer.name}.bandwidth_bytes_per_s"] = total
    out["execution.step_latency_s"] = spec.execution.step_latency_s / by_clock
    out["execution.step_issue_s"] = spec.execution.step_issue_s / by_clock
    for name in ("element_gather_s", "element_copy_s", "element_scatter_s"):
        out[f"execution.{name}"] = getattr(spec.execution, name) / by_clock
    return out


def _read_text_or_empty(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
