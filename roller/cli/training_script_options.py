"""Options of commands that accept a training script without providers: its arguments and permission to run it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from roller.cli.usage_error import UsageError
from roller.insight.capture.idle_timeout import PATIENCE_S as PATIENCE_S

GivenArgument = Annotated[
    list[str] | None, typer.Argument(metavar="ARGUMENTS...", help="Arguments of a training script, after --.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Run a training script without asking.")]
PatienceOption = Annotated[
    float,
    typer.Option(
        "--patience", metavar="SECONDS", help="Stop a script that shows no sign of training within this time."
    ),
]


@dataclass(frozen=True)
class ScriptRun:
    """How to run a training script: arguments, permission, and the time without training after which it is stopped."""

    arguments: list[str]
    yes: bool
    patience_s: float

    def check(self, file: Path, is_script: bool, name: str = "") -> None:
        """Ask for permission to run a training script unless ``--yes`` grants it; refuse arguments for other files."""
        name = name or file.name
        if not is_script:
            if self.arguments:
                raise UsageError(f"{name}: expected no arguments for a file of this kind, got some. Leave them out.")
            return
        if self.yes:
            return
        what = f"{name} has no providers, so the script itself runs, up to its first training steps"
        if not sys.stdin.isatty():
            raise UsageError(f"{what}: expected permission to run it, got no terminal to ask on. Pass --yes.")
        if not typer.confirm(
            f"{what}. It updates no weights, and can neither change files nor use the network. Run it?", err=True
        ):
            raise UsageError(f"{name}: expected yes, got no. Nothing ran.")
