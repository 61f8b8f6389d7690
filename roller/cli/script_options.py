"""A training script without providers, on the command line: its arguments, and whether it may run."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from roller.cli.usage import UsageError

GivenArgument = Annotated[
    list[str] | None, typer.Argument(metavar="ARGUMENTS...", help="Of a training script; after -- if dashed.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Run a training script without asking.")]
PatienceOption = Annotated[
    float,
    typer.Option("--patience", metavar="SECONDS", help="Without a sign that a script will train: then it is given up."),
]


@dataclass(frozen=True)
class ScriptRun:
    """How a training script runs.

    Parameters
    ----------
    arguments
        Its own.
    yes
        Whether it may run without a question.
    patience_s
        Seconds without a sign that it will train.
    """

    arguments: list[str]
    yes: bool
    patience_s: float

    def check(self, file: Path, is_script: bool, name: str = "") -> None:
        """Ask whether somebody's program may run, unless that is said; a file of another kind has no arguments.

        Parameters
        ----------
        file
            The file.
        is_script
            Whether it is a training script.
        name
            What the question calls it; the file's name by default.

        Raises
        ------
        UsageError
            There are arguments for a file that takes none, nobody to ask, or the answer is no.
        """
        name = name or file.name
        if not is_script:
            if self.arguments:
                raise UsageError(f"{name}: expected no arguments for a file of this kind, got some. Leave them out.")
            return
        if self.yes:
            return
        what = f"{name} has no providers, so the script itself runs, up to its first steps"
        if not sys.stdin.isatty():
            raise UsageError(f"{what}: expected an answer whether it may, got no terminal to ask on. Pass --yes.")
        if not typer.confirm(f"{what}; it trains, writes and reaches nothing. Run it?", err=True):
            raise UsageError(f"{name}: expected yes, got no. Nothing ran.")
