"""Output of ``roller profile --against`` and ``--budget``: differences and exceeded limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.table import Table

from roller.cli.usage import UsageError
from roller.core.files import whole_file
from roller.errors import RollerError, printable

if TYPE_CHECKING:
    from roller.cli.screen import Screen
    from roller.insight.step_profile.budget import Budget
    from roller.insight.step_profile.difference import ProfileDifference
    from roller.insight.step_profile.step_profile import StepProfile

_MIB = 1 << 20


def print_difference(screen: Screen, found: ProfileDifference, top: int) -> None:
    """Print the total difference, and the lines that differ most."""
    from roller.insight.step_profile.hints_difference_json import differing_lines

    screen.say(f"Before: {printable(str(found.before))}")
    screen.say(f"After: {printable(str(found.after))}")
    screen.say(f"Difference: {_delta(found.delta_s)}, {found.delta_bytes / _MIB:+.1f} MiB.")
    table = Table("line", "time", "of its modules", "memory", "weights made here", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    shown = differing_lines(found)[: 2 * top]
    for line in shown:
        table.add_row(
            printable(line.name) or "(in no line)", _delta(line.delta_s),
            _delta(line.made_delta_s) if line.made_delta_s else "", f"{line.delta_bytes / _MIB:+.2f} MiB",
            f"{line.made_delta_bytes / _MIB:+.3f} MiB" if line.made_delta_bytes else "",
        )  # fmt: skip
    if shown:
        screen.print(table)


def _delta(seconds: float) -> str:
    return f"{1e3 * seconds:+.3f} ms"


def budget_of(path: Path | None) -> Budget | None:
    """Return the budget of a file; a file that is none is a wrong option."""
    from roller.insight.step_profile.budget import read_budget

    try:
        return None if path is None else read_budget(path)
    except RollerError as error:
        raise UsageError(str(error)) from error


def check_budget_of(profile: StepProfile, budget: Budget, sarif_path: Path | None) -> None:
    """Print what exceeds a budget, write it as SARIF if a file is named, and exit with 1 if anything does."""
    from roller.insight.step_profile.budget import changed_versions, check_budget, sarif

    try:
        found = check_budget(profile, budget)
    except RollerError as error:  # 1 is for what exceeds the budget
        raise UsageError(str(error)) from error
    causes = changed_versions(profile, budget) if found else ()
    if sarif_path is not None:
        with whole_file(sarif_path) as file:
            file.write(json.dumps(sarif(found, causes), indent=1).encode())
    for sentence in (*map(str, found), *causes):
        typer.echo(f"roller: {printable(sentence)}", err=True)
    if found:
        raise typer.Exit(1)
