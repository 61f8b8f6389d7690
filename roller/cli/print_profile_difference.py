"""Output of ``roller profile --against`` and ``--budget``: differences and exceeded limits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.table import Table

from roller.cli.usage_error import UsageError
from roller.errors import RollerError, printable
from roller_runtime.core.files import write_atomically

if TYPE_CHECKING:
    from roller.cli.screen import Screen
    from roller.insight.step_profile.budget import Budget
    from roller.insight.step_profile.difference import ProfileDifference
    from roller.insight.step_profile.step_profile import StepProfile

_MIB = 1 << 20


#: Units for a column of times, largest first; the column's largest time selects its unit.
_UNITS = ((1.0, "s"), (1e3, "ms"), (1e6, "us"))
#: Nonzero changes whose magnitude is below this fraction of a unit are printed as ``< 0.001``.
_LEAST = 5e-4


def print_difference(screen: Screen, found: ProfileDifference, top: int) -> None:
    """Print the total difference and at most ``2 * top`` lines that differ most."""
    from roller.insight.whatif.predict import HARDLY

    screen.say(f"Before: {printable(str(found.before))}")
    screen.say(f"After: {printable(str(found.after))}")
    memory = "memory does not compare" if found.delta_bytes is None else _memory_difference_text(found.delta_bytes)
    screen.say(f"Difference: {_time_difference_texts([found.delta_s])[0]}, {memory}.")
    for sentence in found.misfits:
        screen.say(printable(sentence))
    table = Table("line", "time", "registered modules", "memory", "weights made here", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    shown = found.differing[: 2 * top]
    times = (
        _time_difference_texts([row.delta_s for row in shown]),
        _time_difference_texts([row.made_delta_s for row in shown], zero=""),
    )
    for line, own, made in zip(shown, *times, strict=True):
        table.add_row(
            printable(line.name) or "(in no line)", own, made,
            _memory_difference_text(line.delta_bytes) if found.fits else "",
            _memory_difference_text(line.made_delta_bytes) if line.made_delta_bytes and found.fits else "",
        )  # fmt: skip
    if shown:
        screen.print(table)
    if not shown:
        screen.say("No line differs.")
    elif found.is_hardly_anything:
        screen.say(f"The time changes by less than {100 * HARDLY:.0f} %: hardly anything, steps differ by as much.")


def _time_difference_texts(deltas: Sequence[float], zero: str = "0") -> list[str]:
    """Format time differences in the unit of the largest one, with three decimals."""
    most = max(map(abs, deltas), default=0.0)
    factor, unit = next((one for one in _UNITS if most * one[0] >= 1), _UNITS[-1])
    nothing = f"{zero} {unit}" if zero else ""
    texts = [f"{factor * delta:+.3f} {unit}" for delta in deltas]
    small = f"< 0.001 {unit}"  # never a zero with a sign
    return [
        nothing if not delta else text if abs(factor * delta) >= _LEAST else small
        for delta, text in zip(deltas, texts, strict=True)
    ]


def _memory_difference_text(delta_bytes: int) -> str:
    if not delta_bytes:
        return "0 MiB"
    mib = delta_bytes / _MIB
    return f"{mib:+.1f} MiB" if abs(mib) >= 10 else f"{mib:+.3f} MiB" if abs(mib) >= 0.001 else f"{delta_bytes:+} B"


def read_budget_option(path: Path | None) -> Budget | None:
    """Return the budget in a file, or ``None`` without a file; raise a usage error if the file is invalid."""
    from roller.insight.step_profile.budget import read_budget

    try:
        return None if path is None else read_budget(path)
    except RollerError as error:
        raise UsageError(str(error)) from error


def check_budget_and_exit(profile: StepProfile, budget: Budget, sarif_path: Path | None) -> None:
    """Print the exceeded limits, write them as SARIF if a file is named, and exit with code 1 if there are any."""
    from roller.insight.step_profile.budget import changed_version_notes, check_budget, excesses_to_sarif

    try:
        found = check_budget(profile, budget)
    except RollerError as error:  # exit code 1 means an exceeded budget
        raise UsageError(str(error)) from error
    causes = changed_version_notes(profile, budget) if found else ()
    if sarif_path is not None:
        with write_atomically(sarif_path) as file:
            file.write(json.dumps(excesses_to_sarif(found, causes), indent=1).encode())
    for sentence in (*map(str, found), *causes):
        typer.echo(f"roller: {printable(sentence)}", err=True)
    if found:
        raise typer.Exit(1)
