"""Detection on made-up machines: what is found is used, what is not keeps the profile's value."""

from __future__ import annotations

import pytest

from roller.errors import SpecError
from roller.hardware import load_spec
from roller.hardware.detect_cpu_spec import (
    X86_TARGETS,
    CpuInfo,
    count_usable_cores,
    detect_cpu,
    match_cpu_profile,
    read_cpuinfo,
)
from tests.offenders import every

FLAGS = {name: flags for name, _, flags in X86_TARGETS}


def write(root, path, text):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def machine(root, *, flags=(), vendor="GenuineIntel", mhz=2000.0, l2="2048K"):
    write(root, "proc/cpuinfo", f"processor\t: 0\nvendor_id\t: {vendor}\nmodel name\t: Test CPU\ncpu MHz\t\t: {mhz}\n"
          f"flags\t\t: {' '.join(sorted(flags))}\n\nprocessor\t: 1\nmodel name\t: Other\n")  # fmt: skip
    write(root, "proc/meminfo", "MemTotal:       8388608 kB\nMemFree: 1 kB\n")
    caches = [(1, "Data", "32K"), (1, "Instruction", "64K"), (2, "Unified", l2), (3, "Unified", "24M")]
    for i, (level, kind, size) in enumerate(caches):
        folder = f"sys/devices/system/cpu/cpu0/cache/index{i}"
        write(root, f"{folder}/level", f"{level}\n")
        write(root, f"{folder}/type", f"{kind}\n")
        write(root, f"{folder}/size", f"{size}\n")
        write(root, f"{folder}/coherency_line_size", "64\n")
    return root


def test_detected_numbers_lie_on_top_of_the_profile(tmp_path):
    spec = detect_cpu(machine(tmp_path, flags=FLAGS["x86-64-v3"]), "x86_64")
    profile = load_spec("cpu-avx2")
    assert (spec.name, spec.kind, spec.target) == (
        "cpu",
        "cpu",
        {"features": "avx2", "language": "llvm", "mcpu": "x86-64-v3"},
    )
    assert "Test CPU" in spec.description
    assert spec.clock_hz == 2.0e9
    assert spec.layer("l1").capacity_bytes == 32 * 1024
    assert spec.layer("l2").capacity_bytes == 2048 * 1024
    assert spec.layer("l2").usable_bytes == 2048 * 1024 * 3 // 4
    assert spec.layer("l3").capacity_bytes == 24 << 20
    assert spec.layer("dram").capacity_bytes == 8 << 30
    assert spec.sources["clock_hz"] == spec.sources["units"] == "detected"
    assert spec.teu == profile.teu
    assert spec.limits == profile.limits


def test_rates_follow_cores_and_clock(tmp_path):
    spec, profile = detect_cpu(machine(tmp_path, mhz=1500.0), "x86_64"), load_spec("cpu-avx2")
    ratio = spec.units / profile.units * 1.5e9 / profile.clock_hz
    l1, reference = spec.layer("l1"), profile.layer("l1")
    assert l1.bandwidth_bytes_per_s == pytest.approx(reference.bandwidth_bytes_per_s * ratio)
    assert spec.execution.step_latency_s == pytest.approx(profile.execution.step_latency_s * profile.clock_hz / 1.5e9)
    assert spec.sources["memory_layers.l1.bandwidth_bytes_per_s"] == "assumed"


def test_highest_clock_wins_over_the_current_one(tmp_path):
    write(machine(tmp_path), "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "3700000\n")
    assert detect_cpu(tmp_path, "x86_64").clock_hz == 3.7e9


def test_a_machine_that_tells_nothing_keeps_the_profile(tmp_path):
    spec, profile = detect_cpu(tmp_path, "aarch64"), load_spec("cpu-neon")
    assert spec.clock_hz == profile.clock_hz
    assert spec.layer("l2") == profile.layer("l2") or spec.units != profile.units
    assert {k for k, v in spec.sources.items() if v == "detected"} == {"units"}


@every(
    ("arch", "info", "expected"),
    [
        ("x86_64", CpuInfo(vendor="AuthenticAMD", flags=FLAGS["znver4"]), ("cpu-avx512", "znver4")),
        ("x86_64", CpuInfo(vendor="GenuineIntel", flags=FLAGS["icelake-server"]), ("cpu-avx512", "icelake-server")),
        ("x86_64", CpuInfo(vendor="GenuineIntel", flags=FLAGS["cascadelake"]), ("cpu-avx512", "cascadelake")),
        ("x86_64", CpuInfo(vendor="GenuineIntel", flags=FLAGS["x86-64-v4"]), ("cpu-avx512", "x86-64-v4")),
        ("x86_64", CpuInfo(vendor="AuthenticAMD", flags=FLAGS["cascadelake"]), ("cpu-avx512", "x86-64-v4")),
        # a hypervisor that masks one feature: the name that would use it is not taken
        ("x86_64", CpuInfo(vendor="AuthenticAMD", flags=FLAGS["znver4"] - {"vaes"}), ("cpu-avx512", "x86-64-v4")),
        ("x86_64", CpuInfo(vendor="AuthenticAMD", flags=FLAGS["x86-64-v3"]), ("cpu-avx2", "x86-64-v3")),
        ("amd64", CpuInfo(flags=frozenset({"sse4_2"})), ("cpu-avx2", "x86-64")),
        ("x86_64", CpuInfo(), ("cpu-avx2", "x86-64")),
        ("aarch64", CpuInfo(part="0xd0c"), ("cpu-neon", "neoverse-n1")),
        ("arm64", CpuInfo(), ("cpu-neon", "generic")),
    ],
)
def test_profile_and_code_generation_name(arch, info, expected):
    assert match_cpu_profile(arch, info) == expected


def test_other_architectures_are_refused():
    with pytest.raises(SpecError, match=r"device 'cpu': no profile for architecture 'riscv64'\. Pass the path"):
        match_cpu_profile("riscv64", CpuInfo())


def test_smt_siblings_are_one_core(tmp_path):
    for i in range(4):
        write(tmp_path, f"sys/devices/system/cpu/cpu{i}/topology/thread_siblings_list", f"{i % 2},{i % 2 + 2}\n")
    assert count_usable_cores(tmp_path, (0, 1, 2, 3)) == 2
    assert count_usable_cores(tmp_path, (0, 2)) == 1
    assert count_usable_cores(tmp_path, (1,)) == 1


@every(
    ("quota", "cores"), [("max 100000", 8), ("300000 100000", 3), ("50000 100000", 1), ("1600000 100000", 8), ("", 8)]
)
def test_control_group_limits_cores(tmp_path, quota, cores):
    write(tmp_path, "sys/fs/cgroup/cpu.max", quota)
    assert count_usable_cores(tmp_path, tuple(range(8))) == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", 8), ("200000", 2)])
def test_control_group_of_version_1(tmp_path, quota, cores):
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", f"{quota}\n")
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert count_usable_cores(tmp_path, tuple(range(8))) == cores


def test_broken_cpuinfo_is_empty_knowledge(tmp_path):
    write(tmp_path, "proc/cpuinfo", "cpu MHz : fast\nno colon here\n")
    assert read_cpuinfo(tmp_path) == CpuInfo()


def test_this_machine_loads_and_takes_overrides():
    spec = load_spec("cpu", {"units": 3})
    assert spec.units == 3
    assert spec.sources["units"] == "override"
    assert load_spec("cpu").kind == "cpu"
