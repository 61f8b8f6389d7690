"""Compile time: what construction costs here for any device, and what it takes to a kernel that can be launched.

Construction, lowering and building run on this machine whatever the device, so their times are measured; no kernel runs
on the device. For this machine's processor, compilation goes on until a kernel is checked and timed.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import roller
from benchmarks.common import HERE, reference
from benchmarks.cpu.cases import Case, one_per_class
from benchmarks.gpu.statistic import geometric_mean
from benchmarks.sokoban.compare import considered
from benchmarks.suites.operator_sets import all_cases, asked_for
from benchmarks.suites.suite import Request, Section, Suite
from benchmarks.suites.values import COUNTED, MEASURED, PUBLISHED, Results, Value
from roller.compiler.pipeline import Candidate
from roller.errors import RollerError
from roller.hardware import DeviceSpec
from roller.targets import CPU, GPU

#: Candidates of a compilation that times several, as published.
CANDIDATES = 10
#: Constructions of which the median counts.
REPEATS = 3
CONSTRUCTED, ONE, TEN = "construction", "one candidate", f"{CANDIDATES} candidates"
LOWERED = f"{CANDIDATES} candidates lowered and built"
METASCHEDULE = "MetaSchedule"
#: Means over the 119 operators on a V100 (Zhu et al., OSDI 2022, section 5): seconds by series, as printed.
PUBLISHED_MEANS: Mapping[str, float] = {
    f"Roller, {ONE}": 0.43, f"Roller, {TEN}": 13.3, "TVM": 0.65 * 3600, "Ansor": 0.66 * 3600,
}  # fmt: skip
ALL = "mean of 119"
_COLUMNS = {"TVM": "tvm_compile_s_raw", "Ansor": "ansor_compile_s_raw"}
_RERUN = "on a V100, by tuning; the authors' rerun"


def cases(request: Request) -> list[Case]:
    """Return the operators of a run: all 119, or with ``quick`` the one of median work of each class."""
    found = asked_for(all_cases(), request)
    return one_per_class(found) if request.quick else found


@dataclass(frozen=True)
class Constructed:
    """A construction that was repeated.

    Parameters
    ----------
    programs
        Best first.
    wall_s, processor_s
        Of each repetition.
    """

    programs: Sequence[Candidate]
    wall_s: tuple[float, ...]
    processor_s: tuple[float, ...]


def constructed(expr: roller.TensorExpr, spec: DeviceSpec, top_k: int = CANDIDATES) -> Constructed:
    """Construct :data:`REPEATS` times, by the clock.

    Raises
    ------
    NoCandidateError
        No program fits the device.
    """
    wall, processor = [], []
    options = roller.ConstructOptions(top_k=top_k)
    for _ in range(REPEATS):
        start, used = time.perf_counter(), time.process_time()
        programs = roller.construct(expr, spec, options=options)
        wall.append(time.perf_counter() - start)
        processor.append(time.process_time() - used)
    return Constructed(programs, tuple(wall), tuple(processor))


def median(case: str, quantity: str, series: str, seconds: Sequence[float]) -> Value:
    """Return the median of measured seconds; three repetitions give no interval."""
    return Value(case, quantity, series, statistics.median(seconds), "s", MEASURED)


def construction(case: Case, spec: DeviceSpec) -> Iterator[Value]:
    """Yield the seconds of construction, by the clock and of one processor, and the programs considered."""
    expr = case.expression(1 if spec.kind == "cpu" else None)
    try:
        found = constructed(expr, spec)
    except RollerError as error:
        yield Value(case.id, "compile time", CONSTRUCTED, None, "s", MEASURED, note=str(error))
        return
    yield median(case.id, "compile time", CONSTRUCTED, found.wall_s)
    yield median(case.id, "processor time", CONSTRUCTED, found.processor_s)
    if spec.kind in (GPU.name, CPU.name):
        count = considered(expr, spec, roller.ConstructOptions(top_k=CANDIDATES))
        yield Value(case.id, "programs considered", CONSTRUCTED, count, "", COUNTED)


def published(ids: Sequence[str]) -> Iterator[Value]:
    """Yield what other compilers took, from published tables and from the committed run of MetaSchedule."""
    rows = {row["id"]: row for row in reference("v100_times_dev")}
    for case in ids:
        for series, column in _COLUMNS.items():
            text = rows.get(case, {}).get(column, "")
            if text:
                yield Value(case, "compile time", series, float(text), "s", PUBLISHED, note=_RERUN)
    data = json.loads((HERE / "results" / "metaschedule.json").read_text(encoding="utf-8"))
    run = data["run"]
    where = f"{run['trials']} trials; metaschedule.json of {run['date']}, {run['processor']}, {run['threads']} threads"
    for row in data["operators"]:
        if row["id"] in ids:
            yield Value(row["id"], "compile time", METASCHEDULE, row["tuning"]["seconds"], "s", MEASURED, note=where)
    for series, seconds in PUBLISHED_MEANS.items():
        yield Value(ALL, "compile time", series, seconds, "s", PUBLISHED, note="OSDI 2022, on a V100")


def for_a_device(request: Request) -> Iterator[Value]:
    """Yield times of construction, and where a compiler for the device is here, of lowering and building."""
    found = cases(request)
    _warm(request.spec)
    for case in found:
        yield from construction(case, request.spec)
    if request.spec.target.get("language") == "cuda":
        few = one_per_class(found)
        for case in few[:2] if request.quick else few:
            yield from _built(case, request.spec)
    yield from published([case.id for case in found])


def _warm(spec: DeviceSpec) -> None:
    """Construct once: imports and first-use tables are no part of construction."""
    roller.construct(roller.ops.matmul(64, 64, 64), spec)


def _built(case: Case, spec: DeviceSpec) -> Iterator[Value]:
    """Yield the seconds of lowering the candidates and building them with NVRTC, or why there are none."""
    lacking = _builder_lacks()
    if lacking:
        yield Value(case.id, "compile time", LOWERED, None, "s", MEASURED, note=lacking)
        return
    from benchmarks.ten_candidates import build_times

    expr = case.expression(None)
    try:
        built = build_times(expr, roller.construct(expr, spec.emitted, top_k=CANDIDATES), spec)
    except RollerError as error:
        yield Value(case.id, "compile time", LOWERED, None, "s", MEASURED, note=str(error))
        return
    yield Value(case.id, "compile time", LOWERED, built.seconds[0], "s", MEASURED, note="in two processes")
    yield Value(case.id, "processor time", LOWERED, built.processor_s[0], "s", MEASURED)


def _builder_lacks() -> str | None:
    try:
        import tvm  # noqa: F401 - what lowers
    except ImportError:
        return "lowering needs apache-tvm, which is not installed"
    from roller.backends.cuda import toolchain

    return toolchain.available()


def for_this_processor(request: Request) -> Iterator[Value]:
    """Yield times of construction, and of whole compilations: built, checked and, of several candidates, timed."""
    found = cases(request)
    _warm(request.spec)
    roller.compile(roller.ops.matmul(16, 16, 16), device="cpu", top_k=2, cache=False)
    for case in found:
        yield from construction(case, request.spec)
        for series, top_k in ((ONE, 1), (TEN, CANDIDATES)):
            yield _compiled(case, series, top_k)
    yield from published([case.id for case in found])


def _compiled(case: Case, series: str, top_k: int) -> Value:
    start = time.perf_counter()
    try:
        roller.compile(case.expression(1), device="cpu", top_k=top_k, cache=False)
    except RollerError as error:
        return Value(case.id, "compile time", series, None, "s", MEASURED, note=str(error))
    return Value(case.id, "compile time", series, time.perf_counter() - start, "s", MEASURED)


def _series(results: Results) -> dict[tuple[str, str], dict[str, float]]:
    own = [v for v in results.values if v.case != ALL]
    return Results(results.head, own).times("compile time")


def report(results: Results) -> Iterator[Section]:
    """Yield the seconds of each operator, and what they are over all."""
    series, device = _series(results), results.head["device"]
    processor, pools = results.of("processor time", CONSTRUCTED), results.of("programs considered", CONSTRUCTED)
    names = [name for name in series if name[0] != CONSTRUCTED]
    columns = (
        "operator", "construction, ms", "of processor, ms", "programs considered",
        *(f"{name}, {kind}, s" for name, kind in names),
    )  # fmt: skip
    rows = []
    for case, seconds in series.get((CONSTRUCTED, MEASURED), {}).items():
        cells = [f"{series[n][case]:.4g}" if case in series[n] else "-" for n in names]
        counted = f"{pools[case].value or 0:.0f}" if case in pools else "-"
        rows.append((case, f"{1e3 * seconds:.2f}", f"{1e3 * (processor[case].value or 0):.2f}", counted, *cells))
    yield f"Compilation on this machine for {device}; no kernel ran on another device", columns, rows
    totals = [
        (f"{name}, {kind}", str(len(s)), f"{geometric_mean(s.values()):.4g}", f"{sum(s.values()) / len(s):.4g}",
         f"{max(s.values()):.4g} ({max(s, key=lambda case: s[case])})")
        for (name, kind), s in series.items()
    ]  # fmt: skip
    totals += [
        (f"{v.series}, {v.kind}, of all 119", "119", "-", f"{v.value:.4g}", "-")
        for v in results.values if v.case == ALL
    ]  # fmt: skip
    yield "Seconds per operator", ("compiler", "operators", "geometric mean", "mean", "most"), totals
    notes = dict.fromkeys((v.series, v.note) for v in results.values if v.note)
    if notes:
        yield "Notes", ("series", "note"), list(notes)


def draw(results: Results, figure: Any) -> None:
    """Draw the seconds of each compiler, its operators sorted, on a log axis, as the papers do."""
    axes = figure.subplots()
    for (name, kind), found in _series(results).items():
        times = sorted(found.values())
        places = [(n + 0.5) / len(times) for n in range(len(times))]
        axes.plot(places, times, marker=".", label=f"{name}, {kind} ({len(times)} operators)")
    axes.set(yscale="log", ylabel="seconds", xlabel="share of the operators, sorted by time", xlim=(0, 1))
    axes.set_title(f"Compile time for {results.head['device']}, on this machine; published: on a V100", fontsize=9)
    axes.grid(axis="y", alpha=0.3)
    figure.legend(fontsize=7, loc="outside lower center", ncols=3)


SUITE = Suite(
    "compile-time", "Compile time of the 119 operators (OSDI 2022, section 5)", "a quiet machine",
    for_a_device, for_this_processor, report, draw,
)  # fmt: skip
