"""``roller suite``: list, measure and predict the models of the training benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from roller.cli.output_file_checks import check_output_paths
from roller.cli.progress import track_progress
from roller.cli.shared_options_and_tables import JsonOption, SetOption, console, print_json
from roller.cli.suite_check_observations import observe_command
from roller.cli.suite_run import ModelsArgument, OutOption, compare_command, diff_command, run_command
from roller.cli.suite_tables import inefficient_operators_table, memory_table, throughput_table
from roller.cli.training_options import parse_batches, parse_devices
from roller.cli.usage_error import UsageError

if TYPE_CHECKING:
    from roller.suite.model_structure_text import Digest

suite_app = typer.Typer(
    name="suite",
    help="The training benchmark: sixteen models, measured here, and predicted on devices that are not here.",
    no_args_is_help=True,
    add_completion=False,
)

DevicesOption = Annotated[
    str,
    typer.Option("--device", "-d", metavar="NAMES", help="Names of `roller devices`, or YAML files, e.g. v100,h100."),
]
BatchesOption = Annotated[
    str, typer.Option("--batch", "-b", metavar="N,...", help="Samples of a step; by default each model's own.")
]
ReducedOption = Annotated[
    bool, typer.Option("--reduced", help="The sizes that two cores train in seconds, not the published ones.")
]


@suite_app.command("list")
def list_command(as_json: JsonOption = False) -> None:
    """Print the models with their applications, throughput units and numbers of parameters."""
    from roller.suite.registry import MODELS

    rows = list(MODELS.values())
    if as_json:
        print_json([
            {
                "model": m.name, "title": m.title, "application": m.application, "unit": m.unit,
                "batches": list(m.batches), "parameters": m.parameters,
                "parameters_published": m.parameters_published or None, "layers": dict(m.layers), "source": m.source,
            }
            for m in rows
        ])  # fmt: skip
        return
    table = Table("model", "title", "application", "throughput", "parameters", "published", box=None)
    for m in rows:
        published = f"{m.parameters_published:,}" if m.parameters_published else "-"
        table.add_row(m.name, m.title, m.application, f"{m.unit}/s", f"{m.parameters:,}", published)
    console().print(table)


@suite_app.command("digest")
def digest_command(
    models: ModelsArgument = None,
    reduced: ReducedOption = False,
    against: Annotated[
        Path | None, typer.Option("--against", metavar="FILE", help="Compare with digests that --out wrote elsewhere.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Also write all lines as JSON.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print digests of models (needs PyTorch): hashes of layers and operators; --json adds the full lists.

    With --against, exit with code 1 if a model differs from the file's digest.
    """
    from roller.suite.model_structure_text import digest_model, read_digests
    from roller.suite.registry import models_of
    from roller.suite.run_file import write_json

    asked = models_of(models or ())
    check_output_paths([] if against is None else [against], {"--out": out})
    known = None if against is None else read_digests(against)
    found = [digest_model(model, reduced=reduced) for model in asked]
    if out is not None:
        write_json(out, [one.to_dict() for one in found])
    if as_json:
        print_json([one.to_dict() for one in found])
    else:
        table = Table("model", "batch", "parameters", "modules", "operators", "lines", box=None)
        for one in found:
            lines = f"{len(one.modules)} + {len(one.operators)}"
            table.add_row(
                one.model, str(one.batch), f"{one.parameters:,}", one.modules_key, one.operators_key, lines
            )  # fmt: skip
        console().print(table)
    if known is not None and _print_digest_differences(found, known, tells=not as_json):
        raise typer.Exit(1)


def _print_digest_differences(found: Sequence[Digest], known: Mapping[str, Digest], *, tells: bool) -> bool:
    """Print the differences from known digests if ``tells``; return whether any model differs or is unknown."""
    screen, differs = console(), False
    for one in found:
        other = known.get(one.model)
        lines = ("it is not in the file",) if other is None else other.difference(one)
        differs = differs or bool(lines)
        for line in lines if tells else ():
            screen.say(f"{one.model}: {line}")
    return differs


@suite_app.command("predict")
def predict_command(
    models: ModelsArgument = None,
    devices: DevicesOption = "p4000,titanxp,v100,h100",
    batches: BatchesOption = "",
    reduced: ReducedOption = False,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Also the five longest operators that use the peak less than the step.")
    ] = False,
    out: OutOption = None,
    as_json: JsonOption = False,
    settings: SetOption = None,
) -> None:
    """Predict training of the models on devices (needs PyTorch): throughput, utilisation, and memory by kind."""
    from roller import __version__
    from roller.insight.trace.progress import listening
    from roller.suite.prediction import predict
    from roller.suite.registry import models_of
    from roller.suite.run_file import SuiteRun, run_header, write_run

    check_output_paths((), {"--out": out})
    asked = models_of(models or ())
    specs = parse_devices(devices, settings)
    if any(count > 1 for _, count in specs):
        raise UsageError("--device: expected one of each, got several: the suite trains on one. Name it alone.")
    sizes = [None if size is None else int(size) for size in parse_batches(batches)]
    total = len(asked) * len(specs) * len(sizes)
    with track_progress("suite", total) as done, listening(done.report_step_share):
        found = list(predict(asked, [spec for spec, _ in specs], sizes, reduced=reduced, done=done))
    rows = [one.to_dict() for one in found]
    if out is not None:
        write_run(out, SuiteRun(run_header(__version__, sizes="reduced" if reduced else "published"), rows))
    if as_json:
        print_json(rows)
        return
    screen = console()
    screen.say("predicted, at the clock that lasts")
    screen.print(throughput_table(rows))
    screen.say("memory at its peak, in MiB; feature maps also at theirs, which may come sooner")
    screen.print(memory_table(rows))
    if kernels:
        screen.say("operators that take longest among those that use the peak less than the step")
        screen.print(inefficient_operators_table(rows))
    for note in dict.fromkeys(note for row in rows for note in row["notes"]):
        screen.say(note)


suite_app.command("run")(run_command)
suite_app.command("compare")(compare_command)
suite_app.command("diff")(diff_command)
suite_app.command("observe")(observe_command)
