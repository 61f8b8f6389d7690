"""``roller suite``: the training benchmark: its models, what they are made of, and what they would do on devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from roller.cli.common import JsonOption, SetOption, console, print_json
from roller.cli.progress import counted_steps
from roller.cli.training import MIB, batches_of, devices_of
from roller.cli.usage import UsageError

if TYPE_CHECKING:
    from roller.suite.prediction import Prediction

suite_app = typer.Typer(
    name="suite",
    help="The training benchmark: sixteen models, and what they would do on devices that are not here.",
    no_args_is_help=True,
    add_completion=False,
)

ModelsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[MODEL]...", help="Names of `roller suite list`; all if none is given.")
]
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
    """Print the models with their applications, units of throughput and numbers of parameters."""
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
def digest_command(models: ModelsArgument = None, reduced: ReducedOption = False, as_json: JsonOption = False) -> None:
    """Print what models are made of (needs PyTorch): hashes of layers and operators, and all of them with --json."""
    from roller.suite.digest import digest
    from roller.suite.registry import models_of

    found = [digest(model, reduced=reduced) for model in models_of(models or ())]
    if as_json:
        print_json([one.to_dict() for one in found])
        return
    table = Table("model", "batch", "parameters", "modules", "operators", "lines", box=None)
    for one in found:
        lines = f"{len(one.modules)} + {len(one.operators)}"
        table.add_row(
            one.model, str(one.batch), f"{one.parameters:,}", one.modules_key, one.operators_key, lines
        )  # fmt: skip
    console().print(table)


@suite_app.command("predict")
def predict_command(
    models: ModelsArgument = None,
    devices: DevicesOption = "p4000,titanxp,v100,h100",
    batches: BatchesOption = "",
    reduced: ReducedOption = False,
    as_json: JsonOption = False,
    settings: SetOption = None,
) -> None:
    """Predict training of the models on devices (needs PyTorch): throughput, utilisation, and memory by kind."""
    from roller.insight.trace.progress import listening
    from roller.suite.prediction import predict
    from roller.suite.registry import models_of

    asked = models_of(models or ())
    specs = devices_of(devices, settings)
    if any(count > 1 for _, count in specs):
        raise UsageError("--device: expected one of each, got several: the suite trains on one. Name it alone.")
    sizes = [None if size is None else int(size) for size in batches_of(batches)]
    total = len(asked) * len(specs) * len(sizes)
    with counted_steps("suite", total) as done, listening(done.within):
        found = list(predict(asked, [spec for spec, _ in specs], sizes, reduced=reduced, done=done))
    if as_json:
        print_json([one.to_dict() for one in found])
        return
    screen = console()
    screen.say("predicted, at the clock that lasts")
    screen.print(_throughput_table(found))
    screen.say("memory at its peak, in MiB; feature maps also at theirs, which may come sooner")
    screen.print(_memory_table(found))
    for note in dict.fromkeys(note for one in found for note in one.forecast.notes):
        screen.say(note)


def _throughput_table(found: list[Prediction]) -> Table:
    """Return a row for each prediction; what does not fit has no throughput."""
    table = Table(
        "model", "device", "batch", "throughput", "between", "unit", "active", "of peak", "bound", "", box=None
    )
    for one in found:
        low, high = one.throughput_between
        between = "-" if low is None or high is None else f"{_number(low)} to {_number(high)}"
        cells = [one.model, one.device, str(one.batch)]
        if one.throughput is None:
            cells += ["does not fit", "-", f"{one.unit}/s", "-", "-", "-"]
        else:
            cells += [
                _number(one.throughput), between, f"{one.unit}/s", f"{100 * one.compute_utilisation:.0f} %",
                f"{100 * one.peak_share:.0f} %", one.forecast.bound,
            ]  # fmt: skip
        table.add_row(*cells, "predicted")
    return table


def _memory_table(found: list[Prediction]) -> Table:
    """Return the memory of each prediction by kind, without the kinds that none has."""
    from roller.suite.memory_kinds import ROWS

    fitting = [one for one in found if one.fits]
    kinds = [kind for kind in ROWS if any(one.memory[kind] for one in fitting)]
    table = Table("model", "device", "batch", *kinds, "total", "most feature maps", box=None)
    for one in fitting:
        parts, total = one.memory, one.forecast.memory.total_bytes
        sizes = (*(parts[kind] for kind in kinds), total, one.most_memory.get("feature maps", 0))
        table.add_row(one.model, one.device, str(one.batch), *(f"{size / MIB:.1f}" for size in sizes))
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
