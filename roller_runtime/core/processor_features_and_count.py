"""CPU features that kernels need and that this machine has, and the number of processors that this process may use.

A kernel lists its features by Linux's names (``/proc/cpuinfo``), so that a machine without one of them rejects the
kernel instead of crashing on an illegal instruction. On other systems, NumPy's detection is used; unknown features
count as present.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import platform
from collections.abc import Iterable
from pathlib import Path

#: Keys of ``/proc/cpuinfo`` that list features: x86 and Arm.
_ROWS = ("flags", "Features")
#: LLVM's name, Linux's name and NumPy's name (empty if it has none). Features for operating systems, cryptography
#: and tuning are not among them: no kernel contains their instructions.
_KNOWN = (
    ("sse3", "pni", "SSE3"), ("ssse3", "ssse3", "SSSE3"), ("sse4.1", "sse4_1", "SSE41"), ("sse4.2", "sse4_2", "SSE42"),
    ("sse4a", "sse4a", ""), ("popcnt", "popcnt", "POPCNT"), ("lzcnt", "abm", "LZCNT"), ("bmi", "bmi1", "BMI"),
    ("bmi2", "bmi2", "BMI2"), ("movbe", "movbe", "MOVBE"), ("avx", "avx", "AVX"), ("avx2", "avx2", "AVX2"),
    ("fma", "fma", "FMA3"), ("fma4", "fma4", "FMA4"), ("xop", "xop", "XOP"), ("f16c", "f16c", "F16C"),
    ("gfni", "gfni", "GFNI"), ("avxvnni", "avx_vnni", ""), ("avx512f", "avx512f", "AVX512F"),
    ("avx512cd", "avx512cd", "AVX512CD"), ("avx512bw", "avx512bw", "AVX512BW"), ("avx512dq", "avx512dq", "AVX512DQ"),
    ("avx512vl", "avx512vl", "AVX512VL"), ("avx512ifma", "avx512ifma", "AVX512IFMA"),
    ("avx512vbmi", "avx512vbmi", "AVX512VBMI"), ("avx512vbmi2", "avx512_vbmi2", "AVX512VBMI2"),
    ("avx512vnni", "avx512_vnni", "AVX512VNNI"), ("avx512bitalg", "avx512_bitalg", "AVX512BITALG"),
    ("avx512vpopcntdq", "avx512_vpopcntdq", "AVX512VPOPCNTDQ"), ("avx512bf16", "avx512_bf16", "AVX512BF16"),
    ("avx512fp16", "avx512_fp16", "AVX512FP16"),
    ("amx-tile", "amx_tile", ""), ("amx-int8", "amx_int8", ""), ("amx-bf16", "amx_bf16", ""),
    ("neon", "asimd", "ASIMD"), ("fullfp16", "asimdhp", "ASIMDHP"), ("dotprod", "asimddp", "ASIMDDP"),
    ("fp16fml", "asimdfhm", "ASIMDFHM"), ("rdm", "asimdrdm", ""), ("complxnum", "fcma", ""), ("lse", "atomics", ""),
    ("jsconv", "jscvt", ""), ("rcpc", "lrcpc", ""), ("i8mm", "i8mm", ""), ("bf16", "bf16", ""), ("sve", "sve", "SVE"),
    ("sve2", "sve2", ""),
)  # fmt: skip


def linux_feature_names(llvm_features: Iterable[str]) -> tuple[str, ...]:
    """Return the Linux names of those of a processor's LLVM features that kernels may use.

    >>> linux_feature_names(["avx2", "fma", "sse4.2", "xsave", "fast-lzcnt"])
    ('avx2', 'fma', 'sse4_2')
    """
    listed = set(llvm_features)
    return tuple(sorted(linux for llvm, linux, _ in _KNOWN if llvm in listed))


def linux_feature_name(llvm_feature: str) -> str:
    """Return Linux's name for an LLVM feature, or an empty string for a feature that kernels do not list.

    >>> linux_feature_name("avx512vnni")
    'avx512_vnni'
    """
    return next((linux for llvm, linux, _ in _KNOWN if llvm == llvm_feature), "")


#: Linux's system call ``arch_prctl`` on x86-64, its request for a processor state, and the tile state (AMX).
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18


@functools.cache
def tile_registers_permitted() -> bool:
    """Return whether the system lets this process use tile registers (AMX); requested once for all threads."""
    # Linux saves their 8 KiB only for processes that requested them (Documentation/arch/x86/xstate.rst).
    if platform.machine() != "x86_64" or not {"amx_tile"} <= _common_cpuinfo_flags(Path("/proc/cpuinfo")):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (ctypes.c_long(x) for x in (_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA))
    return int(libc.syscall(*arguments)) == 0


def missing_features(needed: Iterable[str]) -> tuple[str, ...]:
    """Return the features among ``needed`` that this machine is known to lack.

    >>> missing_features(["a feature of tomorrow"])
    ()
    """
    flags = _common_cpuinfo_flags(Path("/proc/cpuinfo"))
    if flags:
        known = {linux for _, linux, _ in _KNOWN}
        return tuple(f for f in needed if f in known and f not in flags)
    found = _numpy_detected_features()
    return tuple(f for f in needed if found.get(f) is False)


@functools.cache
def _common_cpuinfo_flags(cpuinfo: Path) -> frozenset[str]:
    """Return the features common to all processors in ``/proc/cpuinfo``; empty if that file is missing."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except (OSError, ValueError):
        return frozenset()
    rows = [set(row.split()) for key, _, row in (line.partition(":") for line in lines) if key.strip() in _ROWS]
    return frozenset(set.intersection(*rows)) if rows else frozenset()


@functools.cache
def _numpy_detected_features() -> dict[str, bool]:
    try:
        found = importlib.import_module("numpy._core._multiarray_umath").__cpu_features__
    except (ImportError, AttributeError):  # a NumPy that keeps it elsewhere
        return {}
    return {linux: bool(found[numpy]) for _, linux, numpy in _KNOWN if numpy in found}


def usable_processors() -> int:
    """Return the number of processors on which this process may run.

    >>> usable_processors() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def affinity_processors() -> tuple[int, ...]:
    """Return the processors that the calling thread may run on, in ascending order."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def processors_granted_by_cgroup(processors: int, root: Path = Path("/")) -> int:
    """Return how many of the processors the control group allows the process to keep busy.

    >>> processors_granted_by_cgroup(4, Path("/no/such/folder"))
    4
    """
    # With one thread more than granted, the group stops all threads for the rest of each period.
    group = root / "sys/fs/cgroup"
    limit = _read_words_of_file(group / "cpu.max") or [
        *_read_words_of_file(group / "cpu/cpu.cfs_quota_us"),
        *_read_words_of_file(group / "cpu/cpu.cfs_period_us"),
    ]
    try:
        quota, period = float(limit[0]), float(limit[1])
    except (IndexError, ValueError):  # "max", or no group at all
        return processors
    return max(1, min(processors, int(quota / period))) if quota > 0 and period > 0 else processors


def _read_words_of_file(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except (OSError, ValueError):
        return []


def busy_and_stolen_seconds(processors: Iterable[int], root: Path = Path("/")) -> tuple[float, float] | None:
    """Return the busy time and the stolen time of the processors since boot, in seconds, or ``None`` if unknown."""
    names = {f"cpu{n}" for n in processors}
    try:
        lines = (root / "proc/stat").read_text().splitlines()
        rows = [[int(x) for x in row[1:9]] for row in map(str.split, lines) if row and row[0] in names]
        ticks = os.sysconf("SC_CLK_TCK")
        # user, nice, system, idle, iowait, irq, softirq, steal
        return sum(sum(r[:3]) + r[5] + r[6] for r in rows) / ticks, sum(r[7] for r in rows) / ticks
    except (OSError, ValueError, IndexError, AttributeError):
        return None


@functools.cache
def may_share_cores(processors: tuple[int, ...], root: Path = Path("/")) -> bool:
    """Return whether two of the processors may share a core: they list siblings, or a hypervisor may hide them.

    >>> may_share_cores((0,), Path("/no/such/folder"))
    False
    """
    folder = root / "sys/devices/system/cpu"
    siblings = [_read_words_of_file(folder / f"cpu{n}/topology/thread_siblings_list") for n in processors]
    if any("," in word or "-" in word for words in siblings for word in words):
        return True
    return len(siblings) > 1 and "hypervisor" in _common_cpuinfo_flags(root / "proc/cpuinfo")
