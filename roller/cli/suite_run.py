"""``roller suite run`` and ``diff``: train models on this machine, and compare two runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from roller.cli.output_file_checks import check_output_paths
from roller.cli.progress import track_progress
from roller.cli.shared_options_and_tables import JsonOption, console, print_json
from roller.cli.suite_tables import inefficient_operators_table, memory_table, throughput_table
from roller.cli.usage_error import UsageError

if TYPE_CHECKING:
    from roller.suite.difference import RunDifference

ModelsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[MODEL]...", help="Names of `roller suite list`; all if none is given.")
]
OutOption = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Also write the run as JSON.")]


def run_command(
    models: ModelsArgument = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Train by a looser rule of sampling, within ten minutes for all models.")
    ] = False,
    published: Annotated[bool, typer.Option("--published", help="The published sizes, not the reduced ones.")] = False,
    budget_s: Annotated[
        float | None,
        typer.Option("--budget-s", min=1.0, help="Seconds for all models; by default an hour, ten minutes if quick."),
    ] = None,
    repeat: Annotated[
        int, typer.Option("--repeat", min=1, max=100, help="Processes per model, whose spread is the noise of `diff`.")
    ] = 1,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of weights and inputs.")] = 0,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train models on this machine's processor (needs PyTorch) until their throughput is stable, and measure them."""
    from roller import __version__
    from roller.insight.trace.progress import listening
    from roller.suite.measuring import measure
    from roller.suite.registry import models_of
    from roller.suite.run_file import SuiteRun, run_header, write_run
    from roller.suite.sampling import QUICK, SamplingRule

    asked = models_of(models or ())
    check_output_paths((), {"--out": out})
    rule = QUICK if quick else SamplingRule()
    failures: list[str] = []
    budget = budget_s or (540.0 if quick else 3600.0)
    with track_progress("suite", len(asked)) as done, listening(done.report_step_share):
        found = list(measure(
            asked, reduced=not published, rule=rule, budget_s=budget, repeat=repeat, seed=seed, done=done,
            failed=lambda name, error: failures.append(f"{name}: {error}"),
        ))  # fmt: skip
    rows = [one.to_dict() for one in found]
    head = run_header(
        __version__, seed=seed, rule=vars(rule), budget_s=budget, sizes="published" if published else "reduced",
        failed=failures,
    )  # fmt: skip
    run = SuiteRun(head, rows)
    if out is not None:
        write_run(out, run)
    if as_json:
        print_json(run.to_dict())
    else:
        _print_run(rows, failures)
    if failures:
        raise typer.Exit(1)


def _print_run(rows: Sequence[Mapping[str, Any]], failures: Sequence[str]) -> None:
    screen = console()
    for machine in dict.fromkeys(row["device"] for row in rows):
        screen.say(f"measured: {machine}")
    if rows:
        _print_tables(rows)
    unstable = [row["model"] for row in rows if not row["is_stable"]]
    if unstable:
        screen.say(f"unstable, so without a time: {', '.join(unstable)}")
    for row in rows:
        for note in row["notes"]:
            screen.say(f"{row['model']}: {note}")
    for sentence in failures:
        screen.say(f"failed: {sentence}")


def _print_tables(rows: Sequence[Mapping[str, Any]]) -> None:
    screen = console()
    screen.print(throughput_table(rows))
    screen.say("memory at the peak of the tensors, in MiB; context: the rest of the process")
    screen.print(memory_table(rows))
    screen.say("operators that take longest among those that use the peak less than the step")
    screen.print(inefficient_operators_table(rows))


def compare_command(
    models: ModelsArgument = None,
    python: Annotated[
        Path | None,
        typer.Option(
            "--with", metavar="PYTHON", help="Interpreter of the second process, for example with another PyTorch."
        ),
    ] = None,
    budget_s: Annotated[float, typer.Option("--budget-s", min=1.0, help="Seconds for all models.")] = 1800.0,
    repeat: Annotated[
        int,
        typer.Option(
            "--repeat", min=1, max=100, help="Pairs of processes per model; more pairs detect smaller changes."
        ),
    ] = 1,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of weights and inputs.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Also write the first run.")] = None,
    out_with: Annotated[Path | None, typer.Option("--out-with", metavar="FILE", help="Also write the second.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Train models alternately in two processes (needs PyTorch): exit with code 1 if the second is slower."""
    from roller import __version__
    from roller.insight.trace.progress import listening
    from roller.suite.difference import difference
    from roller.suite.pairs import measure_pairs
    from roller.suite.registry import models_of
    from roller.suite.run_file import SuiteRun, run_header, write_run

    asked = models_of(models or ())
    check_output_paths((), {"--out": out, "--out-with": out_with})
    if python is not None and not (python.is_file() and os.access(python, os.X_OK)):
        raise UsageError("--with: expected an interpreter, got a file that cannot be run. Name its python.")
    failures: list[str] = []
    with track_progress("suite", len(asked)) as done, listening(done.report_step_share):
        pairs = list(measure_pairs(
            asked, python=None if python is None else str(python), budget_s=budget_s, repeat=repeat, seed=seed,
            done=done, failed=lambda name, error: failures.append(f"{name}: {error}"),
        ))  # fmt: skip
    rows, parts = [pair.rows() for pair in pairs], [pair.environments for pair in pairs if pair.environments]
    more: dict[str, Any] = {
        "seed": seed,
        "budget_s": budget_s,
        "repeat": repeat,
        "sizes": "reduced",
        "failed": failures,
    }
    runs = []
    for n in (0, 1):  # each process has its own environment, since another interpreter has other packages
        own: dict[str, Any] = {"environment": parts[0][n]} if parts else {}
        runs.append(SuiteRun(run_header(__version__, **more, **own), [both[n] for both in rows]))
    for path, run in zip((out, out_with), runs, strict=True):
        if path is not None:
            write_run(path, run)
    found = difference(*runs)
    _print_difference(found, as_json)
    widths = [row.ratio.half_width for row in found.rows if row.ratio is not None]
    if widths and not as_json:
        console().say(f"changes of less than {200 * max(widths):.1f} % may not be found; --repeat finds smaller ones")
    for sentence in failures if not as_json else ():
        console().say(f"failed: {sentence}")
    if found.regressions or failures or not widths:
        raise typer.Exit(1)


RunFile = Annotated[Path, typer.Argument(metavar="FILE", help="What `roller suite run` or `predict` wrote with --out.")]


def diff_command(before: RunFile, after: RunFile, as_json: JsonOption = False) -> None:
    """Compare two runs: exit with code 1 if a model became slower by more than the measured noise."""
    from roller.suite.difference import difference
    from roller.suite.run_file import read_run

    found = difference(read_run(before), read_run(after))
    _print_difference(found, as_json)
    if found.regressions:
        raise typer.Exit(1)


def _print_difference(found: RunDifference, as_json: bool) -> None:
    from roller.suite.difference import difference_notes

    if as_json:
        print_json(found.to_dict())
        return
    screen = console()
    screen.print(_difference_table(found))
    for row in found.rows:
        if row.reason:
            screen.say(f"{row.model}: not compared: {row.reason}")
    for sentence in difference_notes(found):
        screen.say(sentence)


def _difference_table(found: RunDifference) -> Table:
    table = Table("model", "device", "batch", "time, second over first", "between", "verdict", "kind", box=None)
    for row in found.rows:
        cells: list[Any] = ["-", "-"]
        if row.ratio is not None:
            cells = [
                _percent_change_text(row.ratio.mean),
                f"{_percent_change_text(row.ratio.lower)} to {_percent_change_text(row.ratio.upper)}",
            ]
        table.add_row(row.model, row.device or "here", str(row.batch), *cells, row.verdict, row.kind)
    return table


def _percent_change_text(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"
