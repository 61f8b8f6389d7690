"""Scale-out: how the rate of an operator grows with its batch, until all units of a device have work."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.cpu.cases import Case
from benchmarks.suites.operator_sets import CAVEAT, cases_of_sets, measured, predicted
from benchmarks.suites.suite import Section, Suite
from benchmarks.suites.values import Results

SETS = {"scale_matmul": "M", "scale_conv": "N", "scale_relu": "shape"}


def _cases() -> list[Case]:
    return cases_of_sets(*SETS)


def _size(case: Case) -> int:
    value = case.row[SETS[case.set]]
    return int(value[0] if isinstance(value, list) else value)


def _rate(case: Case, seconds: float) -> float:
    """Return operations a second in units of 10^9; of an element-wise operator, bytes."""
    work = float(case.row["flops"])
    return (8 * work if case.row["op"] == "elementwise" else work) / seconds / 1e9


def report(results: Results) -> Iterator[Section]:
    """Yield a table of rates of each set, one row a size."""
    times: dict[tuple[str, str], dict[str, float]] = {}
    for v in results.values:
        if v.quantity == "time" and v.value is not None:
            times.setdefault((v.series, v.kind), {})[v.case] = v.value
    names = list(times)
    for name in SETS:
        cases = [case for case in _cases() if case.set == name and any(case.id in found for found in times.values())]
        unit = "GB/s" if name == "scale_relu" else "GFLOP/s"
        rows = [
            (str(_size(c)), *(f"{_rate(c, times[n][c.id]):.5g}" if c.id in times[n] else "-" for n in names))
            for c in cases
        ]
        if rows:
            yield name, ("size", *(f"{series}, {kind}, {unit}" for series, kind in names)), rows


def draw(results: Results, figure: Any) -> None:
    """Draw the rates against the sizes, a panel for each set."""
    panels = figure.subplots(1, len(SETS))
    for name, axes in zip(SETS, panels, strict=True):
        cases = {case.id: case for case in _cases() if case.set == name}
        lines: dict[tuple[str, str], list[tuple[int, float]]] = {}
        for v in results.values:
            if v.quantity == "time" and v.value is not None and v.case in cases:
                lines.setdefault((v.series, v.kind), []).append((_size(cases[v.case]), _rate(cases[v.case], v.value)))
        for (series, kind), points in lines.items():
            axes.plot(*zip(*sorted(points), strict=True), marker=".", label=f"{series}, {kind}")
        axes.set(xscale="log", yscale="log", xlabel="elements" if name == "scale_relu" else "batch")
        axes.set_title(f"{name}, {'GB/s' if name == 'scale_relu' else 'GFLOP/s'}", fontsize=9)
        if lines:
            axes.legend(fontsize=7)


SUITE = Suite(
    "scale-out", "Operators as their batch grows (OSDI 2022)", "the extra bench; this processor alone",
    partial(predicted, _cases), partial(measured, _cases), report, draw, CAVEAT,
)  # fmt: skip
