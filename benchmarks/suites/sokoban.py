"""Sokoban: construction's best program beside that of its exhaustive predecessor, by one model.

``benchmarks.sokoban`` compares them. Both times are predicted, for a GPU or a processor; the programs that each
considers and prices are counted, and the processor time of both is measured on this machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.cpu.cases import Case
from benchmarks.gpu.statistic import geometric_mean
from benchmarks.sokoban import report as tables
from benchmarks.sokoban.compare import Compared, compare, expression
from benchmarks.sokoban.construct import check_kind
from benchmarks.suites.operator_sets import ROLLER, all_cases, asked_for, cases_of_sets
from benchmarks.suites.suite import Request, Section, Suite
from benchmarks.suites.values import COUNTED, MEASURED, PREDICTED, Results, Value
from roller.runtime.build_pool import build_all

SOKOBAN = "Sokoban"
#: Seconds after which the enumeration of one operator is given up.
LIMIT_S = 300.0
_COUNTS = ("considered", "priced")


def cases(request: Request) -> list[Case]:
    """Return the 119 operators, or with ``quick`` the 18 of Sokoban's own evaluation."""
    return asked_for(cases_of_sets("sokoban") if request.quick else all_cases(), request)


def find(request: Request) -> Iterator[Value]:
    """Yield what both policies find for each operator, in as many processes as there are processors.

    Raises
    ------
    RollerError
        Sokoban enumerates no programs of such devices.
    """
    check_kind(request.spec)
    jobs = {case.id: case for case in cases(request)}

    def one(case: Case) -> Compared:
        return compare(case.id, expression(case.row, request.spec), request.spec)

    for name, result in build_all(jobs, one, timeout_s=LIMIT_S).items():
        if result.value is None:
            yield Value(name, "time", SOKOBAN, None, "s", PREDICTED, note=result.record.reason or "no result")
        else:
            yield from _values(result.value)


def _values(found: Compared) -> Iterator[Value]:
    rules = f"excluded by: {', '.join(found.rules)}" if found.rules else ""
    yield Value(found.id, "time", ROLLER, found.roller_s, "s", PREDICTED, note=rules)
    yield Value(found.id, "time", SOKOBAN, found.sokoban_s, "s", PREDICTED)
    for what in _COUNTS:
        for series, prefix in ((ROLLER, "roller"), (SOKOBAN, "sokoban")):
            yield Value(found.id, f"programs {what}", series, getattr(found, f"{prefix}_{what}"), "", COUNTED)
    yield Value(found.id, "processor time", ROLLER, found.roller_cpu_s, "s", MEASURED)
    yield Value(found.id, "processor time", SOKOBAN, found.sokoban_cpu_s, "s", MEASURED)


def compared(results: Results) -> list[Compared]:
    """Return the comparisons of a run, without the programs themselves."""
    times = {series: results.of("time", series) for series in (ROLLER, SOKOBAN)}
    counts = {(what, series): results.of(f"programs {what}", series) for what in _COUNTS for series in times}
    used = {series: results.of("processor time", series) for series in times}
    found = []
    for case, one in times[SOKOBAN].items():
        mine = times[ROLLER][case]
        numbers = [int(counts[what, series][case].value or 0) for what in _COUNTS for series in times]
        rules = tuple(mine.note.removeprefix("excluded by: ").split(", ")) if mine.note else ()
        found.append(Compared(
            case, mine.value or 0.0, one.value or 1.0, *numbers,
            used[ROLLER][case].value or 0.0, used[SOKOBAN][case].value or 0.0, "", "", rules,
        ))  # fmt: skip
    return found


def report(results: Results) -> Iterator[Section]:
    """Yield the table of classes, of rules that excluded better programs, and of all operators."""
    records = compared(results)
    if records:
        yield "Construction over Sokoban, predicted", tables.COLUMNS, tables.class_rows(records)
    rules = tables.rule_rows(records)
    if rules:
        yield "What excluded a better program", ("rule", "operators", "worst", "ids"), rules
    rows = [
        (r.id, f"{1e3 * r.roller_s:.4g}", f"{1e3 * r.sokoban_s:.4g}", f"{r.ratio:.3f}", str(r.roller_considered),
         str(r.sokoban_considered), str(r.roller_priced), str(r.sokoban_priced), f"{1e3 * r.roller_cpu_s:.1f}",
         f"{r.sokoban_cpu_s:.2f}")
        for r in records
    ]  # fmt: skip
    columns = ("operator", "Roller, ms", "Sokoban, ms", "ratio", "considered", "Sokoban's", "priced",
               "Sokoban's priced", "ms, measured", "Sokoban's s, measured")  # fmt: skip
    yield "Operators: times predicted, programs counted", columns, rows
    lacking = [(v.case, v.note) for v in results.values if v.value is None]
    if lacking:
        yield "Without a value", ("operator", "why"), lacking


def draw(results: Results, figure: Any) -> None:
    """Draw the ratio of both predictions, sorted, and the processor time of both policies."""
    records = compared(results)
    left, right = figure.subplots(1, 2)
    left.plot(sorted(r.ratio for r in records), marker=".")
    left.axhline(1.0, color="black", linewidth=0.5)
    left.set(xlabel="operators, sorted", ylabel="construction's time over Sokoban's, predicted")
    if records:
        left.set_title(
            f"{results.head['device']}: geometric mean {geometric_mean([r.ratio for r in records]):.3f}", fontsize=9
        )
    for series, seconds in (
        (ROLLER, [r.roller_cpu_s for r in records]), (SOKOBAN, [r.sokoban_cpu_s for r in records]),
    ):  # fmt: skip
        right.plot(sorted(seconds), marker=".", label=series)
    right.set(yscale="log", xlabel="operators, sorted", ylabel="seconds of one processor, measured here")
    right.set_title("Time to choose", fontsize=9)
    right.legend(fontsize=8)
    for axes in (left, right):
        axes.xaxis.get_major_locator().set_params(integer=True)


SUITE = Suite(
    "sokoban", "Construction beside exhaustive enumeration (Sokoban)", "nothing: predicted for this processor too",
    find, find, report, draw,
    "Tilings are compared: both policies do without walks along windows, pipelines, matrix units and, on GPUs, "
    "Winograd's algorithm, which Sokoban's space does not hold.",
)  # fmt: skip
