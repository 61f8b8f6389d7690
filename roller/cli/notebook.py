"""``%load_ext roller``: the cell magic ``%%roller_profile`` profiles the training step in a notebook cell."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import CodeType, FrameType
from typing import Any

from roller.cli.training_options import parse_devices
from roller.errors import ModelError, RollerError
from roller.insight.capture.cell_tracer import trace_cell
from roller.insight.capture.idle_timeout import PATIENCE_S
from roller.insight.step_profile.profiling import DEVICE, profile
from roller.insight.step_profile.step_profile import StepProfile
from roller.insight.tracing import require_torch

#: Options of the magic: their names, and their arguments for ``argparse``.
_OPTIONS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (
        ("--device", "-d"),
        {"default": DEVICE, "metavar": "NAME", "help": f"E.g. h100; 2xa100 for two. By default {DEVICE}."},
    ),
    (
        ("--batch", "-b"),
        {"type": int, "metavar": "N", "help": "Samples of a batch; by default that of the cell's loader."},
    ),
    (("--calls",), {"type": int, "metavar": "N", "help": "Training steps to trace; by default until they repeat."}),
    (
        ("--patience",),
        {
            "type": float,
            "default": PATIENCE_S,
            "metavar": "SECONDS",
            "help": "Stop a cell that shows no sign of training within this time.",
        },
    ),
)

#: Wording of a tracer's message about a script -> its wording about a cell.
SCRIPT_TO_CELL_WORDS = {
    "expected a script that ": "expected a cell that ",
    "Pass the arguments with which it trains after --, or give it more time": (
        "Let the cell itself train (loss.backward(), optimizer.step()), or give it more time"
    ),
    "expected a GPU for a training script, got the CPU. Name a GPU, or write the providers of an entry file: "
    "roller init.": "expected a GPU for a cell that trains, got the CPU. Name a GPU, e.g. --device h100.",
    "Pass the script's own argument for it after --.": "Change it where the loader is made, and leave out --batch.",
    "Pass the arguments for one device after --, and ask": "Train on one device in the cell, and ask",
    "Pass arguments that avoid it after --, or catch the PermissionError in the script.": (
        "Move it to an earlier cell, or catch the PermissionError."
    ),
    "script: it failed": "cell: it failed",
    "script: blocked": "cell: blocked",
    "device: the script trains": "device: the cell trains",
    "that of a script which moves": "that of a cell which moves",
}


def reword_for_cell(text: str) -> str:
    """Reword a tracer's message about a script so that it is about a notebook cell.

    Examples
    --------
    >>> reword_for_cell("In[2]: expected a script that trains, got its end.")
    'In[2]: expected a cell that trains, got its end.'
    """
    for of_script, of_cell in SCRIPT_TO_CELL_WORDS.items():
        text = text.replace(of_script, of_cell)
    return text


def load_ipython_extension(shell: Any) -> None:
    """Add the cell magic ``%%roller_profile`` to an IPython shell.

    Parameters
    ----------
    shell
        The shell that ``%load_ext`` passes.
    """
    shell.register_magic_function(_make_profile_magic(shell), "line_cell", "roller_profile")


def _make_profile_magic(shell: Any) -> Callable[..., StepProfile | None]:
    from IPython.core.error import UsageError
    from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

    def roller_profile(line: str, cell: str | None = None) -> StepProfile | None:
        """Profile the training step of the cell on a GPU that is not here; nothing is trained.

        The cell runs in a fork of the kernel until its steps repeat; it uses objects from earlier cells and leaves them
        unchanged.
        """
        if {"-h", "--help"} & set(line.split()):
            print(magic.parser.format_help())  # type: ignore[attr-defined]  # noqa: T201 - what was asked for
            return None
        asked = parse_argstring(magic, line)
        if cell is None:
            raise UsageError(
                "roller_profile: expected a cell that trains, got a line. Write %%roller_profile above its code."
            )
        try:
            found = _profile_cell(shell, cell, asked)
        except RollerError as error:
            raise UsageError(reword_for_cell(str(error))) from error
        return replace(found, notes=tuple(map(reword_for_cell, found.notes)))

    magic: Callable[..., StepProfile | None] = roller_profile
    for names, options in reversed(_OPTIONS):
        magic = argument(*names, **options)(magic)
    return magic_arguments()(magic)  # type: ignore[no-any-return]


def _profile_cell(shell: Any, cell: str, asked: Any) -> StepProfile:
    require_torch("profile")
    specs = parse_devices(asked.device, None)
    if len(specs) != 1:
        raise ModelError(f"--device: expected one device, got {len(specs)}. Name one in each cell.")
    spec, count = specs[0]
    code, name = _compile_cell(shell, cell)

    step = trace_cell(
        code,
        shell.user_ns,
        name,
        partial(_cell_name_of_file, shell),
        batch=asked.batch,
        device=spec,
        calls=asked.calls,
        patience_s=asked.patience,
    )
    return profile(step, spec, devices=count)


def _cell_name_of_file(shell: Any, file: str) -> str:
    """Return the name of the cell whose code has this file name, e.g. ``"In[3]"``; ``""`` for other code."""
    found = shell.compile.format_code_name(file)
    return str(found[1]) if found else ""


def _running_cell_name(shell: Any) -> str:
    """Return the running cell's name, from its frame: some IPython releases have already increased the counter."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if name := _cell_name_of_file(shell, frame.f_code.co_filename):
            return name
        frame = frame.f_back
    return f"In[{shell.execution_count}]"


def _compile_cell(shell: Any, cell: str) -> tuple[CodeType, str]:
    """Compile a cell; return its code and its name."""
    # IPython drops the magic's line and blank ones after it; add them back, so that line numbers are the notebook's.
    blank = next((n for n, line in enumerate(cell.splitlines()) if line.strip()), 0)
    source = "\n" * (1 + blank) + shell.transform_cell(cell)
    name = _running_cell_name(shell)
    file = shell.compile.cache(source, int(re.sub(r"\D", "", name)), raw_code=cell)
    try:
        return compile(source, file, "exec"), name
    except SyntaxError as error:
        raise ModelError(
            f"{name}:{error.lineno}: expected valid Python without await, got {error.msg}. Correct it."
        ) from error
