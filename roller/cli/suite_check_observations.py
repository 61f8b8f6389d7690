"""``roller suite observe``: check the published observations against predicted studies, and choose a device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from roller.cli.output_file_checks import check_output_paths
from roller.cli.progress import track_progress
from roller.cli.shared_options_and_tables import JsonOption, SetOption, console, print_json
from roller.cli.suite_run import ModelsArgument
from roller.cli.suite_tables import number_text, percent_text
from roller.cli.sweep import PricesOption
from roller.cli.training_options import parse_devices
from roller.cli.usage_error import UsageError

if TYPE_CHECKING:
    from roller.cli.screen import Screen
    from roller.insight.rate_card import RateCard
    from roller.suite.device_choice import DeviceCost
    from roller.suite.observations import Verdict
    from roller.suite.studies import Studies


def observe_command(
    models: ModelsArgument = None,
    devices: Annotated[
        str,
        typer.Option("--device", "-d", metavar="NAMES", help="GPUs of `roller devices`; the first also in clusters."),
    ] = "p4000,titanxp",
    most: Annotated[
        int | None, typer.Option("--most", min=1, metavar="N", help="Largest batch; by default the largest that fits.")
    ] = None,
    reduced: Annotated[
        bool, typer.Option("--reduced", help="The sizes that two cores train in seconds, not the published ones.")
    ] = False,
    saved: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="Take the studies that --out wrote, and predict nothing."),
    ] = None,
    cases: Annotated[
        bool, typer.Option("--cases", help="Print all cases of each check, not only contradicting ones.")
    ] = False,
    prices: PricesOption = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Also write all of it as JSON.")] = None,
    as_json: JsonOption = False,
    settings: SetOption = None,
) -> None:
    """Check the fourteen published observations against predictions (needs PyTorch), and explain the failures."""
    from roller.insight.rate_card import read_rate_card
    from roller.insight.trace.progress import listening
    from roller.suite.device_choice import device_costs
    from roller.suite.observations import check_observations
    from roller.suite.registry import models_of
    from roller.suite.run_file import read_json, write_json
    from roller.suite.studies import Studies, run_studies

    if saved is not None and (models or most or reduced):
        raise UsageError("--from: expected no models, --most or --reduced beside a file, got some. Leave them out.")
    asked, specs = models_of(models or ()), parse_devices(devices, settings)
    if any(count > 1 or not spec.traits.discrete for spec, count in specs):
        raise UsageError("--device: expected GPUs, one of each, got others. Name each alone, e.g. p4000,titanxp.")
    check_output_paths([path for path in (prices, saved) if path is not None], {"--out": out})
    rates = None if prices is None else read_rate_card(prices)
    if saved is not None:
        found = Studies.from_dict(read_json(saved, "studies"))
    else:
        with track_progress("suite", len(asked) * len(specs)) as done, listening(done.report_step_share):
            found = run_studies(asked, [spec for spec, _ in specs], reduced=reduced, most=most, done=done)
    verdicts, costs = check_observations(found), list(device_costs(found, rates))
    data = {
        "kind": "predicted", "observations": [one.to_dict() for one in verdicts], **found.to_dict(),
        "choice": [one.to_dict() for one in costs], "currency": None if rates is None else rates.currency,
    }  # fmt: skip
    if out is not None:
        write_json(out, data)
    if as_json:
        print_json(data)
        return
    screen = console()
    screen.say("predicted, at the clock that lasts")
    screen.print(_batch_sweep_table(found))
    screen.say("devices together, each with the model's own batch, under DistributedDataParallel")
    screen.print(_cluster_table(found))
    screen.say("what a change would bring at the model's own batch: time before over time after")
    screen.print(_speedup_by_change_table(found))
    screen.say("observations, decided by the models of the first edition that were asked for")
    _print_verdicts(screen, verdicts, cases)
    screen.say(_device_choice_title(costs, rates))
    screen.print(_device_choice_table(costs, rates))
    if rates is not None:
        for sentence in (
            *filter(None, map(rates.missing_rate_note, found.devices)),
            *rates.old_rate_notes(found.devices),
        ):
            screen.say(sentence)


def _batch_sweep_table(found: Studies) -> Table:
    from roller.suite.studies import saturation_batch

    table = Table("model", "device", "batch", "throughput", "unit", "active", "of peak", "memory", "", box=None)
    for model in found.models:
        for device in found.devices:
            rows = found.sweep_of(model, device)
            knee = saturation_batch(rows)
            for row in rows:
                table.add_row(
                    model, device, str(row["batch"]), number_text(row["throughput_per_s"]), f"{row['unit']}/s",
                    percent_text(row["compute_utilisation"]), percent_text(row["peak_share"]),
                    f"{row['total_bytes'] / 2**30:.2f} GiB", "saturates" if row["batch"] == knee else "",
                )  # fmt: skip
    return table


def _cluster_table(found: Studies) -> Table:
    table = Table("model", "device", "batch", "cluster", "throughput", "of one", "active", box=None)
    one = {row.model: row.throughput for row in found.clusters if row.devices == 1}
    for row in found.clusters:
        cells = [row.model, row.device, str(row.batch), row.cluster]
        if row.throughput is None:
            cells += [row.reason, "-", "-"]
        else:
            alone = one.get(row.model)
            ratio = "-" if alone is None else f"{row.throughput / alone:.2f}"
            cells += [number_text(row.throughput), ratio, percent_text(row.compute_utilisation)]
        table.add_row(*cells)
    return table


def _speedup_by_change_table(found: Studies) -> Table:
    table = Table("model", "device", "batch", "change", "speed-up", box=None)
    for row in found.changes:
        speed = row.reason if row.speedup is None else f"{row.speedup:.2f}"
        table.add_row(row.model, row.device, str(row.batch), row.change, speed)
    return table


def _print_verdicts(screen: Screen, verdicts: Sequence[Verdict], every: bool) -> None:
    for one in verdicts:
        counted = f" ({one.agreeing} of {one.decisive} cases)" if one.decisive else ""
        screen.say(f"{one.number:2}. {one.word}{counted}: {one.claim}")
        if one.missing or one.possible_cause:
            screen.say(f"    {one.missing or f'Possible cause: {one.possible_cause}'}")
        for case in one.cases:
            if every or not case.agrees:
                screen.say(f"    {'+' if case.agrees else '-'} {case.name}: {case.figures}")


def _device_choice_title(costs: Sequence[DeviceCost], rates: RateCard | None) -> str:
    best = [one.device for one in costs if one.cheapest]
    counts = sorted({(best.count(device), device) for device in best}, reverse=True)
    details = ", ".join(f"{device} {count}" for count, device in counts)
    if rates is None:
        return f"which device is fastest, at the best batch that fits: {details} (with --prices also which is cheapest)"
    return f"which device is cheapest at your prices, at the best batch that fits: {details}"


def _device_choice_table(costs: Sequence[DeviceCost], rates: RateCard | None) -> Table:
    cost = "cost" if rates is None else f"{rates.currency} per million"
    table = Table("model", "device", "batch", "throughput", "unit", "of the first", cost, "", box=None)
    for one in costs:
        relative = "-" if one.relative is None else f"{one.relative:.2f}"
        price = "-" if one.cost is None else f"{one.cost:.3g}"
        table.add_row(
            one.model, one.device, str(one.batch), number_text(one.throughput), f"{one.unit}/s", relative, price,
            "*" if one.cheapest else "",
        )  # fmt: skip
    return table
