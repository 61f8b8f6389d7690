"""Tables of the training benchmark, for measured and predicted rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from roller.cli.training_options import MIB

Row = Mapping[str, Any]


def throughput_table(rows: Sequence[Row]) -> Table:
    """Return a table of throughputs; rows of models that do not fit, or without a stable throughput, say so instead."""
    table = Table(
        "model", "device", "batch", "throughput", "between", "unit", "active", "of peak", "CPU", "bound", "",
        box=None,
    )  # fmt: skip
    for row in rows:
        low, high = row["throughput_lower_per_s"], row["throughput_upper_per_s"]
        cells = [row["model"], _device_label(row), str(row["batch"])]
        if row["throughput_per_s"] is None:
            cells += ["unstable" if row["fits"] else "does not fit", "-", f"{row['unit']}/s", "-", "-", "-", "-"]
        else:
            between = "-" if low is None or high is None else f"{number_text(low)} to {number_text(high)}"
            cells += [number_text(row["throughput_per_s"]), between, f"{row['unit']}/s"]
            cells += [percent_text(row[name]) for name in ("compute_utilisation", "peak_share", "cpu_utilisation")]
            cells.append(row.get("bound", "-"))
        table.add_row(*cells, row["kind"])
    return table


def memory_table(rows: Sequence[Row]) -> Table:
    """Return a table of each row's memory by kind, without kinds that no row uses."""
    from roller.suite.memory_by_benchmark_kind import ROWS

    fitting = [row for row in rows if row["fits"]]
    kinds = [kind for kind in ROWS if any(row["memory_bytes"][kind] for row in fitting)]
    table = Table("model", "device", "batch", *kinds, "total", "most feature maps", box=None)
    for row in fitting:
        parts = row["memory_bytes"]
        sizes = (*(parts[kind] for kind in kinds), row["total_bytes"], row["most_bytes"].get("feature maps", 0))
        table.add_row(row["model"], _device_label(row), str(row["batch"]), *(f"{size / MIB:.1f}" for size in sizes))
    return table


def inefficient_operators_table(rows: Sequence[Row]) -> Table:
    """Return a table of each row's longest operators that use a smaller share of the peak than the step does."""
    table = Table("model", "device", "operator", "calls", "share of time", "of peak", box=None)
    for row in rows:
        for use in row["kernels"]:
            share = "not counted" if use["peak_share"] is None else percent_text(use["peak_share"])
            table.add_row(
                row["model"], _device_label(row), use["name"], str(use["calls"]), percent_text(use["share"]), share
            )  # fmt: skip
    return table


def number_text(value: float) -> str:
    """Format a number with three significant digits, or as an integer from 1000 on."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def percent_text(share: float | None) -> str:
    """Format a share as a percentage; return ``"unknown"`` for ``None``."""
    if share is None:
        return "unknown"
    return f"{100 * share:.0f} %" if share >= 0.1 or not share else f"{100 * share:.2g} %"


def _device_label(row: Row) -> str:
    return str(row["device"]) if row["kind"] == "predicted" else "here"
