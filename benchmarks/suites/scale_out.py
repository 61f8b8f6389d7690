"""Scale-out: how the rate of an operator grows with its batch, until all units of a device have work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from benchmarks.cpu.cases import Case
from benchmarks.suites.operator_sets import CAVEAT, NEEDS, cases_of_sets, measured, predicted
from benchmarks.suites.suite import Section, Suite
from benchmarks.suites.values import Results

SETS = ("scale_matmul", "scale_conv", "scale_relu")
#: Operator -> what grows.
SIZES = {"matmul": "M", "conv2d": "N", "elementwise": "shape"}


def _cases() -> list[Case]:
    return cases_of_sets(*SETS)


def _size(case: Case) -> int:
    value = case.row[SIZES[case.row["op"]]]
    return int(value[0] if isinstance(value, list) else value)


def _rate(case: Case, seconds: float) -> float:
    """Return operations a second in units of 10^9; of an element-wise operator, bytes."""
    work = float(case.row["flops"])
    return (8 * work if _moves_bytes([case]) else work) / seconds / 1e9


def _moves_bytes(cases: Sequence[Case]) -> bool:
    return any(case.row["op"] == "elementwise" for case in cases)


def report(results: Results) -> Iterator[Section]:
    """Yield a table of rates of each set, one row a size."""
    times = results.times()
    names = list(times)
    for name in SETS:
        cases = [case for case in _cases() if case.set == name and any(case.id in found for found in times.values())]
        unit = "GB/s" if _moves_bytes(cases) else "GFLOP/s"
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
        bytes_move = _moves_bytes(list(cases.values()))
        for (series, kind), found in results.times().items():
            points = [(_size(cases[c]), _rate(cases[c], seconds)) for c, seconds in found.items() if c in cases]
            if not points:
                continue
            axes.plot(*zip(*sorted(points), strict=True), marker=".", label=f"{series}, {kind}")
        axes.set(xscale="log", yscale="log", xlabel="elements" if bytes_move else "batch")
        axes.set_title(f"{name}, {'GB/s' if bytes_move else 'GFLOP/s'}", fontsize=9)
        if axes.has_data():
            axes.legend(fontsize=7)


SUITE = Suite(
    "scale-out", "Operators as their batch grows (OSDI 2022)", NEEDS,
    partial(predicted, _cases), partial(measured, _cases), report, draw, CAVEAT,
)  # fmt: skip
