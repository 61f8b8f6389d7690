"""``roller sensitivity``: what each number of a device does to predicted times."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

import roller
from roller.cli.common import (
    DeviceOption,
    JsonOption,
    SetOption,
    console,
    device_of,
    operator_rows,
    print_json,
    seconds,
)
from roller.hardware.sections import DTYPES
from roller.report.sensitivity import REDUCED, Sensitivity

OperatorsArgument = Annotated[
    str, typer.Argument(metavar="OP|FILE", help="An operator, or a YAML of them, e.g. benchmarks/operators.yaml.")
]
ReconstructOption = Annotated[
    bool, typer.Option("--reconstruct", help="Construct anew for every changed device, instead of the same programs.")
]
BatchOption = Annotated[int | None, typer.Option("--batch", min=1, help="Batch size of a file's operators.")]
FilterOption = Annotated[str, typer.Option("--filter", help="Ids of a file's operators, e.g. 'M*,C1?'.")]

#: Rows of the table, and components named as reducible.
_ROWS, _NAMED = 20, 8


def sensitivity_command(
    operators: OperatorsArgument,
    device: DeviceOption = "cpu",
    reconstruct: ReconstructOption = False,
    batch: BatchOption = None,
    pattern: FilterOption = "*",
    as_json: JsonOption = False,
    settings: SetOption = None,
) -> None:
    """Print the change of the predicted time per percent of each number of a device, the strongest first.

    For a file of operators their geometric mean counts. Nothing is built or run.
    """
    spec = device_of(device, settings)
    if operators.endswith((".yaml", ".yml")):
        rows = operator_rows(Path(operators), pattern)
        expressions = [roller.ops.from_spec(row, batch=batch) for row in rows]
        what = f"{len(rows)} operators of {operators}"
    else:
        expressions = [roller.ops.parse(operators)]
        what = str(expressions[0])
    found = roller.sensitivity(expressions, spec, reconstruct=reconstruct)
    if as_json:
        print_json(found.to_dict())
        return
    screen = console()
    how = "constructed anew for every change" if reconstruct else "of the same programs"
    screen.print(_table(found, f"{what} on {spec.description}: predicted times {how}"))
    if found.enlarge is not None:
        e = found.enlarge
        verb = "shorten" if e.unit == "s" else "enlarge"
        screen.print(f"{verb} first: {e.field} ({abs(e.percent):.2f} % less time per percent)", soft_wrap=True)
    if found.reducible:
        plain = [x for x in found.reducible if x[0].rpartition(".")[2] not in DTYPES]
        named = ", ".join(f"{f} ({c:+.2%})" for f, c in plain[:_NAMED])
        more = f" and {len(found.reducible) - _NAMED} more (--json)" if len(plain) > _NAMED else ""
        screen.print(f"could be {REDUCED:.0%} smaller, each alone: {named}{more}", soft_wrap=True)


def _table(found: Sensitivity, title: str) -> Table:
    table = Table(title=title, box=box.SIMPLE, title_justify="left")
    table.add_column("field")
    table.add_column("value", justify="right")
    table.add_column("unit")
    table.add_column("% time per %", justify="right")
    several = len(found.operators) > 1
    if several:
        table.add_column("range over operators", justify="right")
    for e in found.effects[:_ROWS]:
        cells = [e.field, f"{e.value:.6g}", e.unit, f"{e.percent:+.3f}"]
        table.add_row(*cells, *([f"{min(e.per_operator):+.2f} to {max(e.per_operator):+.2f}"] if several else []))
    if not several:
        table.caption = f"predicted {seconds(found.seconds[0])}"
    return table
