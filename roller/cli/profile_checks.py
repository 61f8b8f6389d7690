"""Output of ``roller profile --against`` and ``--budget``: differences and exceeded limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.table import Table

from roller.core.files import whole_file
from roller.errors import printable

if TYPE_CHECKING:
    from roller.cli.screen import Screen
    from roller.insight.step_profile.difference import ProfileDifference
    from roller.insight.step_profile.step_profile import StepProfile

_MIB = 1 << 20


def print_difference(screen: Screen, found: ProfileDifference, top: int) -> None:
    """Print the total difference, and the lines that differ most."""
    from roller.insight.step_profile.hints_difference_json import differing_lines

    screen.say(f"Before: {printable(str(found.before))}")
    screen.say(f"After: {printable(str(found.after))}")
    memory = "memory does not compare" if found.delta_bytes is None else f"{found.delta_bytes / _MIB:+.1f} MiB"
    screen.say(f"Difference: {_delta(found.delta_s)}, {memory}.")
    for sentence in found.misfits:
        screen.say(printable(sentence))
    table = Table("line", "time", "of its modules", "memory", "weights made here", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    shown = differing_lines(found)[: 2 * top]
    for line in shown:
        table.add_row(
            printable(line.name) or "(in no line)", _delta(line.delta_s),
            _delta(line.made_delta_s) if line.made_delta_s else "",
            f"{line.delta_bytes / _MIB:+.2f} MiB" if found.fits else "",
            f"{line.made_delta_bytes / _MIB:+.3f} MiB" if line.made_delta_bytes and found.fits else "",
        )  # fmt: skip
    if shown:
        screen.print(table)


def _delta(seconds: float) -> str:
    return f"{1e3 * seconds:+.3f} ms"


def check_budget_file(profile: StepProfile, path: Path, sarif_path: Path | None) -> None:
    """Print what exceeds a budget, write it as SARIF if a file is named, and exit with 1 if anything does."""
    from roller.insight.step_profile.budget import changed_versions, check_budget, read_budget, sarif

    budget = read_budget(path)
    found = check_budget(profile, budget)
    causes = changed_versions(profile, budget) if found else ()
    if sarif_path is not None:
        with whole_file(sarif_path) as file:
            file.write(json.dumps(sarif(found, causes), indent=1).encode())
    for sentence in (*map(str, found), *causes):
        typer.echo(f"roller: {printable(sentence)}", err=True)
    if found:
        raise typer.Exit(1)
