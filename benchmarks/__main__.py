"""``python -m benchmarks list``, ``run SUITE`` and ``report``: the published evaluations, measured here or predicted.

``run`` measures on this machine's processor, or predicts what another device would do (``--device h100``). It prints
tables, compares with the last run of the same kind, and writes JSON, Markdown and a figure to ``--out``. ``report``
writes the page of what is published beside what is measured and predicted here, from the files of ``results``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import reproduction
from benchmarks.common import screen, table
from benchmarks.suites.registry import SUITES
from benchmarks.suites.running import check_folder, finish, run_suite
from benchmarks.suites.suite import Request
from roller.errors import RollerError, did_you_mean, shown
from roller.hardware import load_spec

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)


@app.command("list")
def list_command() -> None:
    """Print the suites, and what measuring each needs."""
    rows = [(s.name, s.about, "nothing: it only predicts" if s.measure is None else s.needs) for s in SUITES.values()]
    screen().print(table("suites", ("suite", "what", "measuring needs"), rows))


@app.command("run")
def run_command(
    name: Annotated[str, typer.Argument(metavar="SUITE", help="A name of `list`.")],
    device: Annotated[
        str,
        typer.Option("--device", "-d", help="Names or YAML files of devices to predict; cpu measures this machine."),
    ] = "cpu",
    quick: Annotated[
        bool, typer.Option("--quick", help="Few cases, in minutes; operators are all predicted all the same.")
    ] = False,
    pattern: Annotated[str, typer.Option("--filter", help="Comma-separated ids or patterns of cases: 'M*,C1?'.")] = "*",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of inputs.")] = 0,
    out: Annotated[Path, typer.Option("--out", help="Folder of results and figures.")] = Path("build/benchmarks"),
) -> None:
    """Run a suite on this processor, or predict it for other devices."""
    if name not in SUITES:
        hint = did_you_mean(name, SUITES) or f"; there are {', '.join(SUITES)}."
        sys.exit(f"benchmarks: run: expected a suite, got {shown(name)}{hint}")
    try:
        specs = [load_spec(part.strip()) for part in device.split(",")]  # all, before the first one runs
        check_folder(out)
        for spec in specs:
            request = Request(spec, quick, pattern, seed, out)
            finish(SUITES[name], request, run_suite(SUITES[name], request))
    except RollerError as error:
        sys.exit(f"benchmarks: {error}")


app.command("report")(reproduction.main)


if __name__ == "__main__":
    app()
