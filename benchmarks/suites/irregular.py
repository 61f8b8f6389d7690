"""Irregular operators, and what their mechanisms are worth: fused axes, and how much padding is allowed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import roller
from benchmarks.cpu.cases import Case
from benchmarks.suites.operator_sets import NEEDS, asked_for, draw, measured, named_cases, priced, report
from benchmarks.suites.suite import Request, Section, Suite
from benchmarks.suites.values import PREDICTED, Results, Value
from benchmarks.tables import read_table

#: Name of an ablation -> options of construction.
ABLATIONS: Mapping[str, Mapping[str, Any]] = {
    "as constructed": {},
    "axes not fused": {"axis_fusion": False},
    "padding to 0 %": {"epsilon": 0.0},
    "padding to 20 %": {"epsilon": 0.2},
    "padding to 50 %": {"epsilon": 0.5},
    "no grouped form": {"axis_grouping": False},
    "blocks not shrunk": {"shrink": False},
}


def _cases() -> list[Case]:
    return named_cases(*read_table("extra_operators.yaml")["sets"]["irregular"])


def predict(request: Request) -> Iterator[Value]:
    """Yield predicted times of the best program under each ablation."""
    for case in asked_for(_cases(), request):
        expr = case.expression(None if request.spec.kind == "gpu" else 1)
        for name, options in ABLATIONS.items():
            chosen = roller.ConstructOptions(top_k=1, **options)
            yield priced(
                case.id,
                name,
                lambda expr=expr, chosen=chosen: (
                    roller.construct(expr, request.spec, options=chosen)[0].estimate.seconds
                ),
            )


def sections(results: Results) -> Iterator[Section]:
    """Yield predicted times of the ablations, relative to the program as constructed; of a measured run, its report."""
    if any(v.kind != PREDICTED for v in results.values):
        yield from report(_cases, results)
        return
    by_name = {name: results.of("time", name) for name in ABLATIONS}
    whole = by_name["as constructed"]
    rows = []
    for case, one in whole.items():
        others = [by_name[name].get(case) for name in ABLATIONS if name != "as constructed"]
        cells = ["no program" if o is None or o.value is None else f"{o.value / (one.value or 1):.3f}" for o in others]
        rows.append((case, f"{1e3 * (one.value or 0):.4g}", *cells))
    names = [name for name in ABLATIONS if name != "as constructed"]
    yield "Predicted time, times as constructed", ("operator", "as constructed, ms", *names), rows


def _draw(results: Results, figure: Any) -> None:
    if any(v.kind != PREDICTED for v in results.values):
        draw(results, figure)
        return
    axes = figure.subplots()
    whole = results.of("time", "as constructed")
    width = 0.8 / len(ABLATIONS)
    for n, name in enumerate(ABLATIONS):
        found = results.of("time", name)
        bars = [
            (at + n * width, (found[c].value or 0) / (whole[c].value or 1)) for at, c in enumerate(whole) if c in found
        ]
        axes.bar(*zip(*bars, strict=True), width=width, label=name)
    axes.set_xticks([at + 0.4 for at in range(len(whole))], list(whole))
    axes.set(ylabel="predicted time, times as constructed")
    axes.set_title(f"{results.head['device']}: what mechanisms of construction are worth, predicted", fontsize=9)
    axes.legend(fontsize=7)


SUITE = Suite(
    "irregular", "Irregular shapes: fused axes and padding (OSDI 2022)", NEEDS,
    predict, partial(measured, _cases), sections, _draw,
)  # fmt: skip
