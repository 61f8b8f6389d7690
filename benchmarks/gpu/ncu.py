"""Nsight Compute: where it is, how it is asked for one kernel, and what of its answer is kept."""

from __future__ import annotations

import csv
import glob
import io
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.cards import CardBundle

#: What is kept: our name, the column, and what its base unit is multiplied with.
FIGURES: tuple[tuple[str, str, float], ...] = (
    ("time_s", "gpu__time_duration.sum", 1e-9),
    ("dram_read_bytes", "dram__bytes_read.sum", 1.0),
    ("dram_write_bytes", "dram__bytes_write.sum", 1.0),
    ("l2_bytes", "lts__t_bytes.sum", 1.0),
    ("l2_hit_percent", "lts__t_sector_hit_rate.pct", 1.0),
    ("dram_busy_percent", "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", 1.0),
    ("memory_busy_percent", "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed", 1.0),
    ("unit_busy_percent", "sm__throughput.avg.pct_of_peak_sustained_elapsed", 1.0),
    ("matrix_busy_percent", "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active", 1.0),
    ("warps_active_percent", "sm__warps_active.avg.pct_of_peak_sustained_active", 1.0),
    ("bank_conflicts", "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", 1.0),
    ("registers_per_thread", "launch__registers_per_thread", 1.0),
    ("blocks_by_registers", "launch__occupancy_limit_registers", 1.0),
    ("blocks_by_scratchpad", "launch__occupancy_limit_shared_mem", 1.0),
)  # fmt: skip
_ONCE = Path(__file__).with_name("once.py")
#: Texts of ncu that no further try changes, and what they mean.
_FINAL = {
    "ERR_NVGPUCTRPERM": "the driver lets only administrators read the counters (ERR_NVGPUCTRPERM): run as root",
    "LibraryNotLoaded": "ncu cannot be used on this machine (LibraryNotLoaded)",
}


def find() -> str | None:
    """Return the program, from PATH or a toolkit; ``None`` where there is none."""
    places = ("/usr/local/cuda/bin/ncu", "/usr/local/cuda-*/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu")
    return shutil.which("ncu") or next((p for text in places for p in sorted(glob.glob(text), reverse=True)), None)


def command(program: str, bundle: CardBundle, operator: str, candidate: str, entries: Sequence[str]) -> list[str]:
    """Return what profiles the kernels of one candidate, each once; clocks are left alone, units are base units."""
    names = "|".join(re.escape(e) for e in dict.fromkeys(entries))
    return [
        program, "--set", "full", "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base",
        "--kernel-name", f"regex:^({names})$", "--launch-count", str(len(entries)),
        sys.executable, str(_ONCE), str(bundle.folder.resolve()), operator, "--card", bundle.device, "--candidate",
        candidate,
    ]  # fmt: skip


def parsed(text: str) -> list[dict[str, Any]]:
    r"""Return the figures of every kernel in ncu's answer; empty where there are none.

    Examples
    --------
    >>> parsed('==PROF== x\n"ID","Kernel Name","gpu__time_duration.sum"\n"","","ns"\n"0","k","1,500"\n')
    [{'kernel': 'k', 'time_s': 1.5e-06}]
    """
    start = text.find('"ID",')
    if start < 0:
        return []
    table = [row for row in csv.reader(io.StringIO(text[start:])) if row]
    columns, rows = table[0], [r for r in table[1:] if len(r) == len(table[0])]
    found = []
    for row in (dict(zip(columns, r, strict=True)) for r in rows):
        if not row["ID"].strip().isdigit():
            continue  # the line of units
        figures: dict[str, Any] = {"kernel": row.get("Kernel Name", "")}
        for name, column, factor in FIGURES:
            value = _number(row.get(column, ""))
            if value is not None:
                figures[name] = value * factor
        found.append(figures)
    return found


def table_of(text: str) -> str:
    """Return the part of an answer that is a table."""
    start = text.find('"ID",')
    return text[start:] if start >= 0 else ""


def refusal(text: str) -> tuple[str, bool]:
    """Return in one sentence why an answer holds nothing, and whether that will not change."""
    for mark, meaning in _FINAL.items():
        if mark in text:
            return meaning, True
    lines = [x.strip() for x in text.splitlines() if x.strip()]
    errors = [x for x in lines if x.startswith("==ERROR==")] or lines[-1:]
    return (errors[0].removeprefix("==ERROR==").strip() if errors else "ncu said nothing"), False


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def pretended(predicted: Mapping[str, Any], entries: Sequence[str]) -> str:
    """Return an answer as ncu gives it, with made-up figures: for a null device."""
    columns = ["ID", "Kernel Name", *(c for _, c, _ in FIGURES)]
    time_ns = float(predicted["seconds"]) * 1e9 / max(1, len(entries))
    rows = [[str(n), e, f"{time_ns:,.1f}", *("1,024" for _ in FIGURES[1:])] for n, e in enumerate(entries)]
    quoted = ([columns, [""] * len(columns), *rows])  # fmt: skip
    return "==PROF== pretended\n" + "".join(",".join(f'"{x}"' for x in r) + "\n" for r in quoted)
