"""``roller sweep``: compare devices, batches and precisions of a step, and mark the Pareto front."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from roller.cli.output_file_checks import check_output_paths
from roller.cli.progress import track_progress
from roller.cli.shared_options_and_tables import JsonOption, SetOption, console, print_json
from roller.cli.terminal_escaping import redirect_stdout_to_stderr
from roller.cli.training_options import (
    AmpOption,
    BatchesOption,
    CallsOption,
    CheckpointOption,
    DevicesOption,
    EntryArgument,
    Tf32Option,
    TorchReleaseOption,
    monitor_memory_text,
    parse_amps,
    parse_batches,
    parse_checkpoints,
    parse_devices,
    parse_word_list,
    trace_step_of_file,
)
from roller.cli.training_script_options import PATIENCE_S, GivenArgument, PatienceOption, ScriptRun, YesOption

if TYPE_CHECKING:
    from roller.insight.rate_card import RateCard
    from roller.insight.sweep import SweepRow

PricesOption = Annotated[
    Path | None,
    typer.Option("--prices", metavar="FILE", help="YAML: currency; by device per_hour, source and date."),
]
PolicyOption = Annotated[
    str, typer.Option("--policy", help="Whose kernels: library (PyTorch's), compiled (torch.compile's) or roller.")
]
CsvOption = Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write the rows as CSV.")]
PictureOption = Annotated[
    Path | None,
    typer.Option("--picture", metavar="FILE", help="Draw throughput against price, or memory: .png, .svg, .pdf."),
]


def sweep_command(
    file: EntryArgument,
    given: GivenArgument = None,
    devices: DevicesOption = "a100,h100",
    batches: BatchesOption = "",
    amp: AmpOption = "fp32",
    checkpoint: CheckpointOption = "no",
    calls: CallsOption = None,
    torch_release: TorchReleaseOption = "",
    tf32: Tf32Option = None,
    policy: PolicyOption = "library",
    prices: PricesOption = None,
    csv: CsvOption = None,
    picture: PictureOption = None,
    yes: YesOption = False,
    patience: PatienceOption = PATIENCE_S,
    as_json: JsonOption = False,
    settings: SetOption = None,
) -> None:
    """Compare devices, batches and ways to train a step (entry file or script; PyTorch): `*` marks the Pareto front.

    Batches count the samples on all devices of a row together; `--batch max` takes the largest that fits each device.
    """
    from roller.insight import sweep as sweeps
    from roller.insight.rate_card import read_rate_card
    from roller.insight.trace.entry_file_providers import is_script
    from roller.insight.trace.progress import listening

    specs, sizes = parse_devices(devices, settings), parse_batches(batches, largest=True)
    amps, checkpoints = parse_amps(amp), parse_checkpoints(checkpoint)
    (policy,) = parse_word_list("--policy", policy, ("library", "compiled", "roller"))[:1]
    known = None if prices is None else read_rate_card(prices)
    check_output_paths([file, *filter(None, [prices])], {"--csv": csv, "--picture": picture})
    if picture is not None:
        sweeps.check_picture_path(picture)
    script = ScriptRun(given or [], yes, patience)
    script.check(file, is_script(file))
    step = trace_step_of_file(file, calls, script, torch_release=torch_release, tf32=tf32)
    total = len(specs) * len(sizes) * len(amps) * len(checkpoints)
    with track_progress("sweep", total) as done, listening(done.report_step_share), redirect_stdout_to_stderr():
        rows = sweeps.sweep(
            step, specs, batches=sizes, amps=amps, checkpoints=checkpoints, policy=policy, prices=known, done=done
        )
    if csv is not None:
        from roller_runtime.core.files import write_atomically

        with write_atomically(csv) as out:
            out.write(sweeps.rows_to_csv(rows).encode())
    if picture is not None:
        sweeps.draw_sweep(rows, picture, known)
    if as_json:
        said = [[] if row.forecast is None else list(row.forecast.notes) for row in rows]
        print_json([{**row.to_dict(), "notes": notes} for row, notes in zip(rows, said, strict=True)])
        return
    screen = console()
    screen.say(f"{file.name}: predicted, at the clock that lasts")
    screen.print(_table(rows, known))
    unpriced = sorted({row.device for row in rows if known is not None and known.per_hour(row.device) is None})
    if unpriced:
        screen.say(f"{prices} has no price for {', '.join(unpriced)}: not on the front.")
    for note in known.old_rate_notes(row.device for row in rows) if known is not None else ():
        screen.say(note)
    for row in rows:
        if row.said:
            screen.say(f"{row.device}, {row.amp}: {row.said}")
    for note in dict.fromkeys(n for row in rows if row.forecast is not None for n in row.forecast.notes):
        screen.say(note)


def price_text(price: float) -> str:
    """Format a price with two decimals, or with three significant digits below 0.1, so that no price reads as zero."""
    return f"{price:.2f}" if price >= 0.1 else f"{price:.3g}"


def _table(rows: list[SweepRow], prices: RateCard | None) -> Table:
    columns = ["", "device", "batch", "amp", "checkpoint", "time", "between", "samples/s", "memory", "bound"]
    columns += [] if prices is None else [f"{prices.currency} a million samples"]
    table = Table(*columns, box=None)
    for row in rows:
        device = row.device if row.devices == 1 else f"{row.devices}x{row.device}"
        cells = ["*" if row.front else "", device, str(row.batch or "-"), row.amp, "yes" if row.checkpoint else "no"]
        found = row.forecast
        if found is None:
            cells += ["-", "-", "-", "no such step", "-"]
        elif not found.memory.fits:
            cells += ["-", "-", "-", monitor_memory_text(found.memory), "-"]
        else:
            cells += [
                f"{found.iteration_s * 1e3:.1f} ms", f"{found.lower_s * 1e3:.1f} to {found.upper_s * 1e3:.1f} ms",
                f"{found.throughput:.1f}", monitor_memory_text(found.memory), found.bound,
            ]  # fmt: skip
        cells += [] if prices is None else ["-" if row.price_per_million is None else price_text(row.price_per_million)]
        table.add_row(*cells)
    return table
