"""Suites of operators: Roller's kernels beside a library's, measured on this processor, predicted for any device.

Predicted are the best constructed program, and on a GPU the kernel that a library's policy would run, both without the
device. Measured are the best peers on this processor, in turns (``benchmarks.cpu``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import roller
from benchmarks.common import Row, operators
from benchmarks.cpu.cases import BATCHES, CLASSES, Case, one_per_class
from benchmarks.gpu.statistic import geometric_mean
from benchmarks.suites.suite import Request, Section, Suite
from benchmarks.suites.values import MEASURED, PREDICTED, Results, Value
from benchmarks.tables import read_table
from roller.errors import RollerError

ROLLER, LIBRARY = "Roller", "library"
#: What measuring needs.
NEEDS = "the `bench` extra; an otherwise idle processor"
#: What a prediction beside a library's means.
CAVEAT = (
    "The library's time is predicted by the same model, as the best program of the kind that precompiled libraries "
    "contain, replayed from a graph. Construction may choose the same program, so only gains are informative."
)
#: Speed-ups of the table of shares, as the papers have it.
FASTER = ("1x", "1.1x", "1.5x", "2x")
#: Operations of the largest operator that is measured on a processor where batches cannot be chosen.
MOST_OPERATIONS = 3e10


def cases_of_sets(*sets: str) -> list[Case]:
    """Return the cases of sets of ``extra_operators.yaml``, as their rows are."""
    tables = read_table("extra_operators.yaml")
    rows = [row for part in ("operators", "gpu") for row in tables[part] if row.get("set") in sets]
    return [Case(row["set"], row, (None,)) for row in rows]


def all_cases() -> list[Case]:
    """Return the 119 operators of the evaluation."""
    return [Case("roller119", row, BATCHES) for row in operators()]


def named_cases(*ids: str) -> list[Case]:
    """Return those of the 119 with these ids, at their own batch."""
    return [Case("roller119", row, (None,)) for row in operators(",".join(ids))]


def asked_for(cases: Sequence[Case], request: Request) -> list[Case]:
    """Return the cases that match the pattern."""
    return [case for case in cases if request.matches(case.id)]


def predicted(find: Callable[[], list[Case]], request: Request) -> Iterator[Value]:
    """Yield predicted times of Roller's best program and of the library's kernel on a device."""
    gpu = request.spec.kind == "gpu"
    for case in asked_for(find(), request):
        expr = case.expression(None if gpu else 1 if case.batches[0] is not None else None)
        yield priced(
            case.id, ROLLER, lambda expr=expr: roller.construct(expr, request.spec, top_k=1)[0].estimate.seconds
        )
        if gpu:
            yield priced(
                case.id, LIBRARY, lambda expr=expr: roller.predict(expr, request.spec, policy="library-graph").seconds
            )


def priced(case: str, series: str, seconds: Callable[[], float]) -> Value:
    """Return a predicted time, or why there is none."""
    try:
        return Value(case, "time", series, seconds(), "s", PREDICTED)
    except RollerError as error:
        return Value(case, "time", series, None, "s", PREDICTED, note=str(error))


def measured(find: Callable[[], list[Case]], request: Request) -> Iterator[Value]:
    """Yield measured times of Roller's kernel and its peers on this processor, and the prediction beside them."""
    from benchmarks.cpu.__main__ import QUICK, collect, default_threads
    from benchmarks.cpu.environment import facts, restart_with
    from benchmarks.cpu.measure import Settings
    from benchmarks.cpu.race import Pace
    from benchmarks.cpu.report import Journal

    threads = default_threads()
    restart_with(threads, "benchmarks")
    cases = [case for case in asked_for(find(), request) if case.batches[0] is not None or _is_small(case.row)]
    cases = one_per_class(cases) if request.quick else cases
    settings = Settings(threads, pace=QUICK if request.quick else Pace())
    request.folder.mkdir(parents=True, exist_ok=True)
    journal = Journal(
        request.folder / "operators.jsonl", {"threads": threads, "quick": request.quick, **facts(threads)}
    )
    journal.path.unlink(missing_ok=True)
    for record in collect(cases, settings, journal)[0]:
        yield from values_of(record)


def _is_small(row: Row) -> bool:
    return float(row.get("flops", math.inf)) <= MOST_OPERATIONS


def values_of(record: Any) -> Iterator[Value]:
    """Yield the values of a record of ``benchmarks.cpu``."""
    if record.reason:
        yield Value(record.id, "time", ROLLER, None, "s", MEASURED, note=record.reason)
        return
    for name, seconds in record.seconds.items():
        yield Value(record.id, "time", ROLLER if name == "roller" else name, seconds, "s", MEASURED)
    if record.predicted_s is not None:
        yield Value(record.id, "time", ROLLER, record.predicted_s, "s", PREDICTED)
    if record.best_peer:
        speed = record.ratios[record.best_peer]
        yield Value(record.id, "speed-up", record.best_peer, speed["median"], "", MEASURED, speed["low"], speed["high"])
    if record.compile_s is not None:
        yield Value(record.id, "compile time", "one candidate", record.compile_s, "s", MEASURED)
        yield Value(record.id, "compile time", "ten candidates timed", record.top_k_s, "s", MEASURED)


def report(find: Callable[[], list[Case]], results: Results) -> Iterator[Section]:
    """Yield tables of times and speed-ups by operator, and their geometric means by class."""
    kinds = {case.id: case.kind if case.row["op"] in CLASSES else case.row["op"] for case in find()}
    times = results.times()
    speeds = speed_ups(results)
    names = list(times)
    columns = ("operator", "class", *(f"{series}, {kind}, ms" for series, kind in names), "speed-up", "over")
    rows = []
    for case in dict.fromkeys(v.case for v in results.values):
        cells = [milliseconds(times[name].get(case)) for name in names]
        speed, over = speeds.get(case, (None, "-"))
        rows.append((case, kinds.get(case, "-"), *cells, "-" if speed is None else f"{speed:.3f}", over))
    yield "Operators", columns, rows
    by_kind: dict[str, list[float]] = {}
    for case, (speed, _) in speeds.items():
        by_kind.setdefault(kinds.get(case, "-"), []).append(speed)
    means = [
        (kind, str(len(s)), f"{geometric_mean(s):.3f}", f"{min(s):.3f} to {max(s):.3f}", share(s))
        for kind, s in by_kind.items()
    ]
    every = [speed for speed, _ in speeds.values()]
    if len(by_kind) > 1:
        between = f"{min(every):.3f} to {max(every):.3f}"
        means.append(("all", str(len(every)), f"{geometric_mean(every):.3f}", between, share(every)))
    if means:
        yield "Speed-ups", ("class", "operators", "geometric mean", "from", "at least as fast"), means
    if every:
        yield "Share at least so many times as fast as the peer", ("class", "operators", *FASTER), faster_rows(by_kind)
    lacking = [(v.case, v.series, v.note) for v in results.values if v.value is None]
    if lacking:
        yield "Without a value", ("operator", "series", "why"), lacking


def speed_ups(results: Results) -> dict[str, tuple[float, str]]:
    """Return how many times as fast Roller's kernel is as the best peer, or as the library by prediction."""
    raced = {v.case: (v.value, v.series) for v in results.values if v.quantity == "speed-up" and v.value is not None}
    times = results.times()
    mine, library = (times.get((series, PREDICTED), {}) for series in (ROLLER, LIBRARY))
    return raced or {case: (library[case] / mine[case], "library, predicted") for case in mine if case in library}


def share(values: Sequence[float], least: float = 1.0) -> str:
    """Return the share of speed-ups of at least ``least``."""
    return f"{100 * sum(value >= least for value in values) / len(values):.0f} %"


def faster_rows(by_kind: Mapping[str, Sequence[float]]) -> list[tuple[str, ...]]:
    """Return for each class, and all, which share of its operators reaches each of :data:`FASTER`.

    Examples
    --------
    >>> faster_rows({"matmul": [0.9, 1.2, 1.6, 2.5]})
    [('matmul', '4', '75 %', '75 %', '50 %', '25 %')]
    """
    groups = {**by_kind, "all": [speed for speeds in by_kind.values() for speed in speeds]}
    if len(by_kind) == 1:
        groups.pop("all")
    return [
        (kind, str(len(s)), *(share(s, float(least.removesuffix("x"))) for least in FASTER))
        for kind, s in groups.items()
    ]  # fmt: skip


def milliseconds(seconds: float | None) -> str:
    """Return seconds as milliseconds of a table."""
    return "-" if seconds is None else f"{1e3 * seconds:.4g}"


def draw(results: Results, figure: Any) -> None:
    """Draw the times of all operators, sorted by Roller's, on a log axis, as the evaluation's figure does."""
    axes = figure.subplots()
    times = results.times()
    kind = MEASURED if (ROLLER, MEASURED) in times else PREDICTED
    mine = times.get((ROLLER, kind), {})
    order = sorted(mine, key=lambda case: mine[case])
    at = {case: n for n, case in enumerate(order)}
    for (series, of_kind), found in times.items():
        shown = sorted((at[case], 1e3 * seconds) for case, seconds in found.items() if case in at)
        style = "-" if series == ROLLER and of_kind == kind else "none"
        axes.plot(*zip(*shown, strict=True), linestyle=style, marker=".", label=f"{series}, {of_kind}")
    axes.set(yscale="log", ylabel="milliseconds", xlabel="operators, sorted by the time of Roller's kernel")
    axes.set_title(f"{results.head['device']}: times of operators, {kind}", fontsize=9)
    if len(order) <= 60:
        axes.set_xticks(range(len(order)), order, rotation=90, fontsize=6)
    axes.legend(fontsize=8)


def suite_of(name: str, about: str, find: Callable[[], list[Case]], picture: Callable[..., None] = draw) -> Suite:
    """Return the suite of some operators."""
    return Suite(
        name, about, NEEDS, partial(predicted, find), partial(measured, find),
        partial(report, find), picture, CAVEAT,
    )  # fmt: skip


OPERATORS = suite_of("operators", "The 119 operators of Roller's evaluation (OSDI 2022, section 5)", all_cases)
SMALL = suite_of(
    "small", "Small operators (OSDI 2022)", partial(named_cases, *read_table("extra_operators.yaml")["sets"]["small"])
)
TENSOR_CORE = suite_of(
    "tensor-core", "Products in half precision on matrix units (OSDI 2022)",
    partial(cases_of_sets, "tensorcore", "tensorcore_more"),
)  # fmt: skip
