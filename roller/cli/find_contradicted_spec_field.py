"""``roller doctor``: find the field of a device's spec that contradicts the measured times."""

from __future__ import annotations

from typing import Annotated

import typer
from rich import box
from rich.table import Table

from roller.cli.shared_options_and_tables import (
    DeviceOption,
    JsonOption,
    SetOption,
    console,
    load_device_spec,
    print_json,
)
from roller.errors import counted
from roller.hardware.detect_cpu_spec import is_this_machine
from roller.probing.find_wrong_spec_field import diagnose
from roller.probing.read_measured_programs import cached_measured_programs
from roller.runtime.cache import KernelCache
from roller_runtime.timing.clock import SystemClock
from roller_runtime.timing.disturbance import observe_machine

OutdatedOption = Annotated[
    bool, typer.Option("--outdated", help="Also take kernels that other versions of roller built.")
]


def doctor_command(
    device: DeviceOption = "cpu",
    outdated: OutdatedOption = False,
    as_json: JsonOption = False,
    settings: SetOption = None,
) -> None:
    """Compare predictions with the measured times in the cache, and name the field that explains the difference.

    If no field explains it, print why: too few records, no pattern, or several fields that explain it equally well.
    """
    spec = load_device_spec(device, settings)
    evidence = cached_measured_programs(KernelCache(), spec.name, outdated=outdated)
    found = diagnose(evidence.observations, spec)
    now = str(observe_machine(SystemClock())) if is_this_machine(spec) else ""
    if as_json:
        doubtful = [{"disturbance": why, "times": count} for why, count in evidence.doubtful]
        more = {"outdated_kernels": 0 if outdated else evidence.outdated, "doubtful": doubtful, "now": now or None}
        print_json({**found.to_dict(), **more})
        return
    screen = console()
    screen.print(f"{spec.name}: {found.records} measured programs of {found.operators} operators", soft_wrap=True)
    if evidence.outdated:
        screen.print(f"left out: {evidence.outdated} kernels that other sources of roller built (--outdated)")
    for why, count in evidence.doubtful:
        screen.print(f"left out: {counted(count, 'doubtful time')}: {why or 'disturbed'}", soft_wrap=True)
    if now:
        screen.print(f"now: {now}; what is timed now may be doubtful", soft_wrap=True)
    if found.tried:
        screen.print(f"measured over predicted: {found.bias:.3f} in the median; {found.residual:.1%} off in the mean")
        table = Table(title="Fields, by what changing each leaves unexplained", box=box.SIMPLE, title_justify="left")
        table.add_column("field")
        for name in ("in the spec", "fits best", "left", "records", "operators"):
            table.add_column(name, justify="right")
        for e in found.tried:
            cells = (f"{e.value:.4g}", f"{e.fitted:.4g}", f"{e.residual:.1%}", str(e.records), str(e.operators))
            table.add_row(e.field, *cells)
        screen.print(table)
    screen.print(str(found.finding) if found.finding is not None else found.reason, soft_wrap=True)
