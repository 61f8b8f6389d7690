"""``roller serve``: show a live profile of a training step beside its source in a browser."""

from __future__ import annotations

import os
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated

import typer

from roller.cli.shared_options_and_tables import console
from roller.cli.training_options import (
    AmpOption,
    BatchesOption,
    CheckpointOption,
    parse_batches,
    parse_checkpoints,
    parse_devices,
    parse_word_list,
    split_device_names,
)
from roller.cli.training_script_options import GivenArgument, ScriptRun, YesOption
from roller.cli.usage_error import UsageError
from roller.errors import RollerError

if TYPE_CHECKING:
    from roller.hardware import DeviceSpec

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="An entry file, or a training script.")]
DevicesOption = Annotated[
    str,
    typer.Option(
        "--device",
        "-d",
        metavar="NAMES",
        help="Devices, e.g. h100,2xa100: the step is profiled on the first, and forecast on the others.",
    ),
]
HostOption = Annotated[
    str,
    typer.Option("--host", metavar="ADDRESS", help="Address to listen on; by default only this machine reaches it."),
]
PortOption = Annotated[
    int, typer.Option("--port", min=0, max=65535, metavar="N", help="Port to listen on; 0 takes a free one.")
]
PricesOption = Annotated[
    Path | None,
    typer.Option(
        "--prices",
        metavar="FILE",
        help="YAML file of hourly rates: currency; per_hour, source and date of each device.",
    ),
]
OpenOption = Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")]
LiveOption = Annotated[
    bool, typer.Option("--live/--no-live", help="Profile at each save, or only when the page asks for it.")
]
PatienceOption = Annotated[
    float,
    typer.Option(
        "--patience", min=1.0, metavar="SECONDS", help="Stop a profile that makes no progress within this time."
    ),
]


def serve_command(
    file: FileArgument,
    given: GivenArgument = None,
    devices: DevicesOption = "a100",
    batches: BatchesOption = "",
    amp: AmpOption = "fp32",
    checkpoint: CheckpointOption = "no",
    host: HostOption = "127.0.0.1",
    port: PortOption = 0,
    prices: PricesOption = None,
    opens: OpenOption = True,
    live: LiveOption = True,
    patience: PatienceOption = 60.0,
    yes: YesOption = False,
) -> None:
    """Show the time and memory of a training step beside its source in a browser, and update them at each save.

    The page shows what `roller profile`, `forecast` and `whatif` predict, for devices that are not here. Only this
    machine can reach it, at the printed address.
    """
    try:
        from roller.server.serve_entry_file import is_loopback_address, serve
    except ImportError as error:
        raise RollerError(
            f"serve: expected the package {error.name}, got none. Install roller with the extra 'serve', e.g. "
            f"pip install 'roller[serve,insight]'."
        ) from error
    from roller.insight.rate_card import read_rate_card
    from roller.insight.step_profile.profiling import profile_source_file_kind
    from roller.insight.tracing import require_torch
    from roller.server.profile_request import StepOptions

    kind = profile_source_file_kind(file)
    if kind not in ("entry", "script"):
        raise UsageError(
            f"{file}: expected an entry file or a training script, got a {kind}. Use roller report for those."
        )
    require_torch("serve")
    ScriptRun(given or [], yes, patience).check(file, kind == "script")
    sizes = parse_batches(batches)
    precisions, again = parse_word_list("--amp", amp, ("fp32", "fp16", "bf16")), parse_checkpoints(checkpoint)
    if len(sizes) > 1 or len(precisions) > 1 or len(again) > 1:
        raise UsageError(
            "--batch, --amp, --checkpoint: expected one value each, got several. Give one; the page can change it."
        )
    chosen = parse_devices(devices, None)
    files = _spec_files_by_name([name for name, _ in split_device_names(devices)], [spec.name for spec, _ in chosen])
    options = StepOptions(
        tuple((spec.name, count) for spec, count in chosen), None if sizes[0] is None else int(sizes[0]),
        precisions[0], again[0],
    )  # fmt: skip
    card = None if prices is None else read_rate_card(prices)
    screen = console()

    def open_page(address: str) -> None:
        screen.say(f"{file.name}: {address}")
        screen.say("Ctrl-C ends it. Whoever has this address can read and write the project's Python files.")
        if not is_loopback_address(host):
            screen.say(f"Other machines reach {host}, and the address goes over the network unencrypted.")
        if opens:  # in a thread, since a terminal browser returns only when the user quits it
            Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    serve(
        file, _offered_devices([spec for spec, _ in chosen]), options, host=host, port=port, prices=card,
        arguments=given or (), patience_s=patience, is_live=live, specs=files, ready=open_page,
    )  # fmt: skip


def _offered_devices(chosen: Sequence[DeviceSpec]) -> list[DeviceSpec]:
    """Return the devices to offer on the page: the chosen ones, and those on which a step can be profiled."""
    from roller.hardware import list_specs, load_spec

    known = [load_spec(name) for name in list_specs()]
    offered = {spec.name: spec for spec in known if spec.traits.blocks or not spec.traits.discrete}
    return list({**offered, **{spec.name: spec for spec in chosen}}.values())


def _spec_files_by_name(words: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Return the specification files of devices given as files, by name; raise an error if two have the same name."""
    found: dict[str, str] = {}
    for word, name in zip(words, names, strict=True):
        file = str(Path(word).resolve()) if word.endswith((".yaml", ".yml")) or os.sep in word else ""
        if found.setdefault(name, file) != file:
            raise UsageError(
                f"--device: expected one specification of the name {name}, got two. Write another name in {word}."
            )
    return {name: file for name, file in found.items() if file}
