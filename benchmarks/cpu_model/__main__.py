"""Measure random programs on this machine and hold the CPU model against them.

``python -m benchmarks.cpu_model``: twelve operators, forty random programs each, built, checked, timed in turns; then
errors, ranks and regret beside the limits. ``--again`` prices the journal of an earlier run, of any spec, in seconds.
"""

from __future__ import annotations

import json
import os
from datetime import date
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from benchmarks.common import HERE, Verdict, check_outputs, screen
from benchmarks.cpu_model import report
from benchmarks.cpu_model.measure import OPERATORS, append, measure_operator, recorded
from roller.hardware import load_spec

RESULTS = HERE / "results"


def main(
    device: Annotated[str, typer.Option(help="Spec that predicts: 'cpu', or the YAML of this machine.")] = "cpu",
    programs: Annotated[int, typer.Option(help="Random programs per operator.")] = 40,
    seed: Annotated[int, typer.Option(help="Seed of the programs and of the inputs.")] = 1,
    only: Annotated[str, typer.Option("--filter", help="Comma-separated ids of operators.")] = "",
    again: Annotated[bool, typer.Option("--again", help="Price the journal; measure nothing.")] = False,
    journal: Annotated[Path, typer.Option(help="Measured programs, one per line.")] = RESULTS / "cpu_model.jsonl",
    out: Annotated[Path, typer.Option(help="Where to write .json and .md.")] = RESULTS / "cpu_model",
    set_: Annotated[list[str] | None, typer.Option("--set", help="FIELD=VALUE of the spec; repeat.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 where a limit is missed.")] = False,
) -> None:
    """Hold the CPU model against random programs."""
    check_outputs(out.with_suffix(".json"), out.with_suffix(".md"))
    spec = load_spec(device)
    if set_:
        spec = spec.with_overrides({k: float(v) for k, v in (s.split("=", 1) for s in set_)}, "given")
    if not again:
        from roller.templates.cpu.emit import lower_cpu_program  # noqa: F401 - imported before forking, so that the children inherit TVM

        wanted = {o for o in only.split(",") if o} or {o for o, _ in OPERATORS}
        journal.unlink(missing_ok=True)
        for operator, batch in OPERATORS:
            if operator in wanted:
                append(journal, measure_operator(operator, batch, spec, programs, seed))
                screen().print(f"{operator}: {programs} programs, load {os.getloadavg()[0]:.1f}")
    found = report.outcomes(recorded(journal), spec)
    verdicts = report.verdicts(found)
    _print(found, verdicts)
    about = {"date": date.today().isoformat(), "device": spec.description, "clock_hz": spec.clock_hz}
    fields = report.accuracy(found)
    screen().print(f"accuracy: {fields}")
    data = {
        **about,
        "accuracy": fields,
        "limits": [vars(v) for v in verdicts],
        "operators": [o.to_dict() for o in found],
    }
    out.with_suffix(".json").write_text(json.dumps(data, indent=1) + "\n")
    out.with_suffix(".md").write_text(_markdown(about, found, verdicts, fields))
    if strict and any(v.holds is False for v in verdicts):
        raise typer.Exit(1)


_HEADS = ("operator", "programs", "fastest ms", "Spearman", "error near", "of roofline", "error all", "regret")


def _rows(found: list[report.Outcome]) -> list[tuple[str, ...]]:
    return [
        (
            o.operator, str(o.programs), f"{o.fastest_s * 1e3:.3f}", f"{o.rank:.3f}",
            f"{o.near_error:.0%} of {sum(o.near)}", f"{o.near_roofline_error:.0%}", f"{o.all_error:.0%}",
            f"{o.regret:.0%}",
        )
        for o in found
    ]  # fmt: skip


def _print(found: list[report.Outcome], verdicts: list[Verdict]) -> None:
    table = Table(*_HEADS, title="Random programs: predicted against measured")
    for row in _rows(found):
        table.add_row(*row)
    screen().print(table)
    limits = Table("limit", "wanted", "measured", "")
    for v in verdicts:
        limits.add_row(v.name, v.limit, v.value, v.word)
    screen().print(limits)


def _markdown(
    about: dict[str, object], found: list[report.Outcome], verdicts: list[Verdict], fields: dict[str, float]
) -> str:
    lines = ["# The CPU model against random programs", "", *(f"- {k}: {v}" for k, v in about.items()), "",
             "| limit | wanted | measured | |", "|---|---|---|---|",
             *(f"| {v.name} | {v.limit} | {v.value} | {v.word} |" for v in verdicts), "",
             "| " + " | ".join(_HEADS) + " |", "|" + "---|" * len(_HEADS),
             *("| " + " | ".join(row) + " |" for row in _rows(found)), "",
             f"One sigma of ln(measured / predicted), programs near the fastest: {fields}", ""]  # fmt: skip
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)
