"""Ablations: the switches of construction off, one by one; what each is worth over the operators that it concerns.

An ablation concerns an operator where the predicted time changes. Everything is predicted but the published value of
timing ten candidates instead of taking the first, which are measured times on a V100.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import roller
from benchmarks.common import reference
from benchmarks.cpu.cases import Case
from benchmarks.gpu.statistic import geometric_mean
from benchmarks.suites import irregular
from benchmarks.suites.operator_sets import all_cases, asked_for, cases_of_sets, priced
from benchmarks.suites.suite import Request, Section, Suite
from benchmarks.suites.values import PUBLISHED, Results, Value

WHOLE = "as constructed"
#: Name of an ablation -> options of construction: those of the irregular operators, and the other switches.
ABLATIONS: Mapping[str, Mapping[str, Any]] = {
    **{name: options for name, options in irregular.ABLATIONS.items() if name == WHOLE or "padding" not in name},
    "no padding": {"epsilon": 0.0},
    "reductions not split over blocks": {"split_k": False},
    "no Winograd": {"winograd": False},
    "no walks along windows": {"windows": False},
    "no pipelines or orders of blocks": {"pipelining": False},
    "no matrix units": {"matrix_units": False},
}
#: What no switch does: one candidate of ten is taken without timing the others.
FIRST = "first candidate instead of ten timed"
#: Relative change of a predicted time from which an ablation concerns an operator.
_CONCERNS = 1e-3
#: Operators of a quick run: each fifth, and one product in half precision.
_QUICK_STEP = 5


def cases(request: Request) -> list[Case]:
    """Return the 119 operators, and products in half precision, which matrix units compute."""
    if request.quick:
        return asked_for([*all_cases()[::_QUICK_STEP], *cases_of_sets("tensorcore")[:1]], request)
    return asked_for([*all_cases(), *cases_of_sets("tensorcore")], request)


def find(request: Request) -> Iterator[Value]:
    """Yield predicted times under each ablation, and the published worth of timing ten candidates."""
    found = cases(request)
    for case in found:
        expr = case.expression(1 if request.spec.kind == "cpu" and case.batches[0] is not None else None)
        for name, options in ABLATIONS.items():
            chosen = roller.ConstructOptions(top_k=1, **options)
            yield priced(
                case.id, name,
                lambda expr=expr, chosen=chosen: (
                    roller.construct(expr, request.spec, options=chosen)[0].estimate.seconds
                ),
            )  # fmt: skip
    yield from published({case.id for case in found})


def published(ids: set[str]) -> Iterator[Value]:
    """Yield what the first candidate costs over the best of ten timed ones, by published times."""
    for row in reference("v100_times_dev"):
        if row["id"] in ids and row["roller_top1_ms_paper"] and row["roller_top10_ms_paper"]:
            slower = float(row["roller_top1_ms_paper"]) / float(row["roller_top10_ms_paper"])
            yield Value(row["id"], "slow-down", FIRST, slower, "", PUBLISHED, note="OSDI 2022, measured on a V100")


def slow_downs(results: Results) -> dict[str, dict[str, float]]:
    """Return the times of each ablation over those as constructed, by ablation and operator."""
    whole = results.of("time", WHOLE)
    found = {}
    for name in ABLATIONS:
        if name != WHOLE:
            times = results.of("time", name)
            found[name] = {case: (times[case].value or 0) / (whole[case].value or 1) for case in times if case in whole}
    return found


def concerned(slower: Mapping[str, float]) -> dict[str, float]:
    """Return the slow-downs that are changes."""
    return {case: value for case, value in slower.items() if abs(value - 1) > _CONCERNS}


def report(results: Results) -> Iterator[Section]:
    """Yield the geometric means by ablation, and the operators that one concerns."""
    whole, found = results.of("time", WHOLE), slow_downs(results)
    rows = []
    for name, slower in found.items():
        some = concerned(slower)
        lost = sum(case not in slower for case in whole)
        rows.append((name, "predicted", str(len(slower)), *_means(slower, some), str(lost)))
    first = {case: v.value or 1.0 for case, v in results.of("slow-down", FIRST).items()}
    if first:
        rows.append((FIRST, "published, V100", str(len(first)), *_means(first, concerned(first)), "-"))
    columns = ("without", "kind", "operators", "slow-down of all", "it concerns", "slow-down of these", "most",
               "no program left")  # fmt: skip
    yield "Geometric means of slow-downs", columns, rows
    names = [name for name, slower in found.items() if concerned(slower)]
    cells = [
        (case, f"{1e3 * (v.value or 0):.4g}",
         *(f"{found[n][case]:.3f}" if case in found[n] else "no program" for n in names))
        for case, v in whole.items() if any(case in concerned(found[n]) or case not in found[n] for n in names)
    ]  # fmt: skip
    if cells:
        yield "Predicted time, times as constructed", ("operator", f"{WHOLE}, ms", *names), cells


def _means(every: Mapping[str, float], some: Mapping[str, float]) -> tuple[str, str, str, str]:
    if not every:
        return "-", "0", "-", "-"
    worst = max(every, key=lambda case: every[case])
    of_these = f"{geometric_mean(list(some.values())):.3f}" if some else "-"
    return f"{geometric_mean(list(every.values())):.4f}", str(len(some)), of_these, f"{every[worst]:.3f} ({worst})"


def draw(results: Results, figure: Any) -> None:
    """Draw the slow-down of each operator that an ablation concerns, a row an ablation, and its geometric mean."""
    first = {case: v.value or 1.0 for case, v in results.of("slow-down", FIRST).items()}
    found = {**{name: concerned(slower) for name, slower in slow_downs(results).items()}, f"{FIRST} (published)": first}
    axes = figure.subplots()
    for row, slower in enumerate(found.values()):
        values = list(slower.values())
        axes.plot(values, [row] * len(values), "|", color="C0", markersize=9, alpha=0.6)
        if values:
            axes.plot([geometric_mean(values)], [row], "D", color="C3", markersize=5)
        axes.annotate(f"{len(values)}", (1.0, row), xycoords=("axes fraction", "data"), xytext=(4, -3),
                      textcoords="offset points", fontsize=7)  # fmt: skip
    axes.set_yticks(range(len(found)), list(found), fontsize=8)
    axes.invert_yaxis()
    axes.axvline(1.0, color="black", linewidth=0.5)
    most = max((max(slower.values()) for slower in found.values() if slower), default=1.0)
    axes.set(xscale="log", xlabel="time without, times as constructed; diamond: geometric mean; right: operators")
    ticks = [tick for tick in (1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100) if tick <= 1.1 * most]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_title(f"{results.head['device']}: switches of construction off, one by one, predicted", fontsize=9)


SUITE = Suite(
    "ablations", "The mechanisms of construction, off one by one (OSDI 2022)",
    "nothing: predicted for this processor too", find, find, report, draw,
    "An ablation cannot show what the model does not price. The published tables have no times with a switch off, only "
    "those of the first of ten candidates.",
)  # fmt: skip
