"""``roller record``: run a training script and record a profile of a few of its steps."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Annotated

import typer

from roller.cli.output_file_checks import check_output_paths
from roller.cli.shared_options_and_tables import console
from roller.cli.usage_error import UsageError

ScriptArgument = Annotated[Path, typer.Argument(metavar="SCRIPT", help="A program that trains with PyTorch.")]
GivenArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="ARGUMENTS...", help="Arguments of the script; after -- if they begin with a dash."),
]
OutOption = Annotated[Path, typer.Option("--out", metavar="FILE", help="Where the profile goes: .json or .json.gz.")]
WarmupOption = Annotated[int, typer.Option("--warmup", help="Steps to skip before timing.")]
TimedOption = Annotated[
    int, typer.Option("--timed", help="Steps that are only timed, to measure the overhead of recording.")
]
StepsOption = Annotated[int, typer.Option("--steps", help="Steps that are recorded.")]


class _RecordingDone(BaseException):
    """Raised after the last recorded step to stop the script."""


def record_command(
    script: ScriptArgument,
    given: GivenArgument = None,
    out: OutOption = Path("profile.json.gz"),
    warmup: WarmupOption = 2,
    timed: TimedOption = 3,
    steps: StepsOption = 3,
) -> None:
    """Run a training script until a few steps, each ended by its optimizer, are recorded; then ask `roller whatif`.

    Modules are marked by their paths, and the overhead of recording is written into the profile. The script's output
    and exceptions are its own.
    """
    from roller.insight.step.recording import Recorder, use_script_argv

    if not script.is_file():
        raise UsageError(f"{script}: expected a program, got no such file. Name one.")
    check_output_paths([script], {"--out": out})
    recorder = Recorder(out, warmup=warmup, timed=timed, steps=steps)
    recorder.when_done = _stop_script
    try:
        with use_script_argv(str(script), given or []), recorder:
            runpy.run_path(str(script), run_name="__main__")
    except _RecordingDone:
        pass
    console().say(f"{out}: {steps} steps of {script.name}; ask: roller whatif {out} --all")


def _stop_script() -> None:
    raise _RecordingDone
