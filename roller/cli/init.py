"""``roller init``: write the three functions of an entry file for a model class."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from roller.cli.shared_options_and_tables import check_writable, console
from roller.cli.usage_error import UsageError

ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="A Python file that defines the model's class.")]
ClassOption = Annotated[
    str, typer.Option("--class", metavar="NAME", help="By default the only class that no other one uses.")
]
InputOption = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="SHAPE", help="Sizes of one sample and a dtype: 3x224x224:float32. Repeatable."),
]
ArgumentsOption = Annotated[
    str, typer.Option("--arguments", metavar="TEXT", help="Of the constructor: 'width=64, depth=2'.")
]
OutOption = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="FILE", help="By default the model's name with _entry appended.")
]


def init_command(
    model: ModelArgument,
    class_name: ClassOption = "",
    inputs: InputOption = None,
    arguments: ArgumentsOption = "",
    out: OutOption = None,
) -> None:
    """Write an entry file for a model: `model_provider`, `input_provider` and `iteration_provider`; needs PyTorch.

    The step runs once, on shapes only, before the file is kept.
    """
    from roller.insight.capture.entry_writer import write_entry
    from roller.insight.tracing import require_torch

    if not model.is_file():
        raise UsageError(f"{model}: expected a Python file, got no such file. Name that of the model.")
    if out is not None:
        check_writable(out)
    require_torch("init")
    path, step = write_entry(model, class_name or None, inputs or [], arguments, out)
    count, batch = len(step.steady()), step.options["batch"]
    console().say(f"{path}: a step of {batch} samples runs, {count} operators; ask: roller profile {path}")
