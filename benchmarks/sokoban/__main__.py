"""``python -m benchmarks.sokoban``: construct and enumerate every operator, judge, write JSON and Markdown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

import roller
from benchmarks.common import HERE, FilterOption, operators, screen, table
from benchmarks.sokoban import report
from benchmarks.sokoban.compare import Compared, compare, expression
from roller.hardware import load_spec


def beside() -> dict[str, roller.TensorExpr]:
    """Return the matmuls that are judged beside the evaluation's operators."""
    return {
        report.SMALL_IDS[-1]: roller.ops.matmul(128, 256, 256),
        report.SQUARE_ID: roller.ops.matmul(4096, 4096, 4096),
    }


def line(r: Compared) -> str:
    """Return a comparison on one line."""
    rules = f"  {'; '.join(r.rules)}" if r.rules else ""
    return (
        f"{r.id:12s} {r.roller_s * 1e3:10.4f} ms  {r.ratio:6.3f}  considered {r.roller_considered} / "
        f"{r.sokoban_considered}  priced {r.roller_priced} / {r.sokoban_priced}  {r.roller_cpu_s * 1e3:.0f} ms / "
        f"{r.sokoban_cpu_s:.2f} s{rules}"
    )


def main(
    device: Annotated[str, typer.Option("--device", "-d", help="Name or YAML file of a device.")] = "v100",
    pattern: FilterOption = "*",
    out: Annotated[Path | None, typer.Option(help="Folder of sokoban.json and sokoban.md.")] = None,
    strict: Annotated[bool, typer.Option(help="Exit 1 where a limit is missed.")] = False,
    replay: Annotated[bool, typer.Option(help="Run nothing: write sokoban.md anew from sokoban.json.")] = False,
) -> None:
    """Compare construction's predicted best with Sokoban's; results of a full run go to benchmarks/results."""
    if replay:
        return _render((out or HERE / "results") / "sokoban.json")
    spec, screened = load_spec(device), screen()
    roller.construct(roller.ops.matmul(64, 64, 64), spec)  # first-use tables are no part of construction
    cases = {row["id"]: expression(row, spec) for row in operators(pattern)}
    if pattern == "*":
        cases.update(beside())
    records = []
    for name, expr in cases.items():
        records.append(compare(name, expr, spec))
        screened.print(line(records[-1]))
    verdicts = report.verdicts(records, spec.kind)
    screened.print(table(f"{spec.name}: construction against Sokoban", report.COLUMNS, report.class_rows(records)))
    screened.print(table("excluding rules", ("rule", "operators", "worst", "ids"), report.rule_rows(records)))
    for v in verdicts:
        screened.print(f"{v.name}: {v.value} (limit {v.limit}): {v.word}")
    if out is not None or pattern == "*":
        _write(out or HERE / "results", spec.name, spec.kind, records)
    if strict and any(v.holds is False for v in verdicts):
        raise typer.Exit(1)


def _write(folder: Path, name: str, kind: str, records: list[Compared]) -> None:
    """Write the results beside those of other devices."""
    path = folder / "sokoban.json"
    data = json.loads(path.read_text()) if path.is_file() else {}
    data[name] = {"kind": kind, "operators": [r.to_dict() for r in records]}
    path.write_text(json.dumps(data, indent=1) + "\n")
    _render(path)


def _render(path: Path) -> None:
    """Write the report of stored results beside them."""
    data = json.loads(path.read_text())
    devices = {n: (d["kind"], [Compared.from_dict(r) for r in d["operators"]]) for n, d in sorted(data.items())}
    path.with_suffix(".md").write_text(report.as_markdown(devices))


if __name__ == "__main__":
    typer.run(main)
