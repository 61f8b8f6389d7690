"""``roller compare``: operators side by side on several devices, with the cost of a million calls."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

import roller
from roller.cli.output_file_checks import check_output_paths
from roller.cli.progress import track_progress
from roller.cli.sensitivity import BatchOption, FilterOption, OperatorsArgument
from roller.cli.shared_options_and_tables import (
    JsonOption,
    SetOption,
    check_choice,
    console,
    print_json,
    read_operator_rows,
    seconds,
)
from roller.cli.sweep import PolicyOption, PricesOption
from roller.cli.training_options import parse_devices
from roller.cli.usage_error import UsageError

if TYPE_CHECKING:
    from roller.insight.compare_operators_across_devices import Comparison

DevicesOption = Annotated[str, typer.Option("--device", "-d", metavar="NAMES", help="E.g. h100,a100,./mine.yaml.")]
CsvOption = Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write every cell as CSV.")]
PictureOption = Annotated[
    Path | None, typer.Option("--picture", metavar="FILE", help="Draw times and costs: .svg, .png, .pdf.")
]
ThemeOption = Annotated[str, typer.Option("--theme", help="Of the picture: light or dark.")]
WidthOption = Annotated[float, typer.Option("--width", min=4, max=40, help="Of the picture, in inches.")]


def compare_command(
    operators: OperatorsArgument,
    devices: DevicesOption = "a100,h100",
    policy: PolicyOption = "library",
    prices: PricesOption = None,
    batch: BatchOption = None,
    pattern: FilterOption = "*",
    csv: CsvOption = None,
    picture: PictureOption = None,
    theme: ThemeOption = "light",
    width: WidthOption = 10.0,
    as_json: JsonOption = False,
    settings: SetOption = None,
) -> None:
    """Compare times of operators on devices and the cost of a million calls: `*` marks the fastest, `$` the cheapest.

    Everything is predicted, at the sustained clock; nothing is built or run.
    """
    from roller.insight import compare_operators_across_devices
    from roller.insight.rate_card import read_rate_card
    from roller.insight.sweep import check_picture_path

    specs = parse_devices(devices, settings)
    if any(count > 1 for _, count in specs):
        raise UsageError("--device: expected one of each, got several: an operator runs on one. Name it alone.")
    check_choice("--policy", policy, ("library", "roller"))
    check_choice("--theme", theme, tuple(compare_operators_across_devices.THEMES))
    known = None if prices is None else read_rate_card(prices)
    check_output_paths([Path(operators), *filter(None, [prices])], {"--csv": csv, "--picture": picture})
    if picture is not None:
        check_picture_path(picture)
    if operators.endswith((".yaml", ".yml")):
        rows = read_operator_rows(Path(operators), pattern)
        expressions = {str(row["id"]): roller.ops.from_spec(row, batch=batch) for row in rows}
    else:
        if batch is not None or pattern != "*":
            option = "--filter" if batch is None else "--batch"
            raise UsageError(f"{option}: expected a file of operators, got one. Leave it out, and write its sizes.")
        parsed = roller.ops.parse(operators)
        expressions = {parsed.name: parsed}
    with track_progress("compare", len(specs)) as done:
        found = compare_operators_across_devices.compare(
            expressions, [s for s, _ in specs], policy=policy, prices=known, done=done
        )
    if csv is not None:
        from roller_runtime.core.files import write_atomically

        with write_atomically(csv) as out:
            out.write(found.to_csv().encode())
    if picture is not None:
        compare_operators_across_devices.draw_comparison(found, picture, theme=theme, width=width)
    if as_json:
        print_json(found.to_dict())
        return
    screen = console()
    whose = "kernels of libraries" if policy == "library" else "constructed kernels"
    screen.say(f"{operators}: predicted, {whose}, at the clock that lasts")
    screen.print(_times_and_costs_table(found))
    for note in (*found.notes, *(known.old_rate_notes(found.devices) if known is not None else ())):
        screen.say(note)


def _times_and_costs_table(found: Comparison) -> Table:
    """Return a table with a row per operator; each device has a column for the time and, if known, one for the cost."""
    table = Table(box=box.SIMPLE)
    table.add_column("operator")
    for device in found.devices:
        table.add_column(device, justify="right")
        if found.currency is not None:
            table.add_column(f"{found.currency}\na million", justify="right")
    for name in found.operators:
        cells = []
        for device in found.devices:
            cell = found.cell_of(name, device)
            about = "~" if cell.is_bound else ""
            cells.append(f"{about}{seconds(cell.seconds)}{' *' if cell.fastest else '  '}")
            if found.currency is not None:
                cost = "-" if cell.price_per_million is None else f"{cell.price_per_million:,.4g}"
                cells.append(f"{cost}{' $' if cell.cheapest else '  '}")
        table.add_row(name, *cells)
    table.caption = "* fastest, $ cheapest; " if found.currency is not None else "* fastest; "
    table.caption += "a time may be off as --json says (lower_s, upper_s)"
    if any(c.is_bound for c in found.cells):
        table.caption += "; ~ at least: by its bytes alone"
    return table
