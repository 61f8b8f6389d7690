"""``roller devices``: list the known devices, or all values of one device with their sources."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from roller.backends.parse_device_names import is_reachable_device_name
from roller.cli.device_spec_warnings import unprobed_note
from roller.cli.shared_options_and_tables import (
    JsonOption,
    SetOption,
    UsageError,
    console,
    load_device_spec,
    print_json,
)
from roller.errors import counted
from roller.hardware import THIS_MACHINE, DeviceSpec, list_specs, load_spec
from roller.hardware.consistency import spec_warnings
from roller.hardware.detect_cpu_spec import profile_file_paths
from roller.hardware.driver_reported_memory import device_memory_capacity
from roller.hardware.peak_rates import peak_flops_and_instruction_class, peak_report_lines
from roller.hardware.reader import spec_path
from roller.hardware.spec import settable_fields
from roller.targets import canonical_device_name

ShowOption = Annotated[str | None, typer.Option("--show", metavar="DEVICE", help="Print every number of one device.")]


def devices_command(show: ShowOption = None, as_json: JsonOption = False, settings: SetOption = None) -> None:
    """List the devices, or show one with the source of every number."""
    if show is not None:
        spec = load_device_spec(show, settings, tells=False)
        files = [str(path.absolute()) for path in _spec_files(show, spec)]
        if as_json:
            print_json({**spec.to_dict(), "files": files})
        else:
            _print_device(spec, files)
        return
    if settings:
        raise UsageError("--set: expected --show DEVICE beside it. Name the device whose number to override.")
    specs = [load_spec(name) for name in (THIS_MACHINE, *list_specs())]
    if as_json:
        print_json([_device_json(spec) for spec in specs])
    else:
        console().print(_devices_table(specs))
        note = unprobed_note(specs[0])
        if note:
            console().say(note)


def _spec_files(name: str, spec: DeviceSpec) -> tuple[Path, ...]:
    """Return the files that contain a device's values."""
    if canonical_device_name(name) == THIS_MACHINE:
        return profile_file_paths(spec)
    return (spec_path(spec.name if is_reachable_device_name(name) else name),)


def _print_device(spec: DeviceSpec, files: list[str]) -> None:
    """Print a device's values, the peaks derived from them, and suspicious values."""
    screen = console()
    screen.print(_spec_values_table(spec))
    for path in files:
        screen.print(f"from {path}", soft_wrap=True)
    screen.say("What follows from these numbers; hold it against the datasheet:")
    for line in peak_report_lines(spec):
        screen.print(f"  {line}", soft_wrap=True)
    screen.print(f"  what a step has to fit: {device_memory_capacity(spec).text}", soft_wrap=True)
    doubts = spec_warnings(spec)
    for line in doubts:
        screen.say(f"suspicious: {line}.")
    screen.say(f"{spec.name}: valid" + (f", with {counted(len(doubts), 'suspicion')}" if doubts else ""))


def _device_json(spec: DeviceSpec) -> dict[str, Any]:
    half = peak_flops_and_instruction_class(spec, "float16")
    return {
        "name": spec.name,
        "kind": spec.kind,
        "description": spec.description,
        "target": spec.target,
        "units": spec.units,
        "peak_flops_per_s": 2 * spec.ops_per_s("fma"),
        "clock_hz": spec.clock_hz,
        "float16_flops_per_s": None if half is None else half[0],
        "bandwidth_bytes_per_s": spec.home.bandwidth_bytes_per_s,
        "sources": dict(Counter(spec.sources.values())),
    }


def _devices_table(specs: list[DeviceSpec]) -> Table:
    title = "Devices (effective numbers; roller devices --show NAME for their sources)"
    table = Table(title=title, box=box.SIMPLE, title_justify="left")
    table.add_column("name")
    table.add_column("target")
    for name in ("units", "GHz", "float32 TFLOP/s", "float16", "memory GB/s"):
        table.add_column(name, justify="right")
    table.add_column("numbers by source")
    table.add_column("description")
    for spec in specs:
        row = _device_json(spec)
        target = row["target"].get("arch") or row["target"]["mcpu"]
        counts = ", ".join(f"{n} {source}" for source, n in sorted(row["sources"].items()))
        peak, bandwidth = row["peak_flops_per_s"] / 1e12, row["bandwidth_bytes_per_s"] / 1e9
        half = row["float16_flops_per_s"]
        numbers = (f"{spec.clock_hz / 1e9:.3g}", f"{peak:.3g}", "-" if half is None else f"{half / 1e12:.3g}")
        table.add_row(spec.name, target, str(spec.units), *numbers, f"{bandwidth:.4g}", counts, spec.description)
    table.caption = "float16: of the matrix unit where there is one. Peaks are at the clock of the column GHz."
    return table


def _spec_values_table(spec: DeviceSpec) -> Table:
    target = " ".join(f"{k}={v}" for k, v in spec.target.items())
    table = Table(title=f"{spec.name}: {spec.title}; {target}", box=box.SIMPLE, title_justify="left")
    table.add_column("field")
    table.add_column("value", justify="right")
    table.add_column("unit")
    table.add_column("source")
    known = settable_fields(spec)
    for path, value in spec.values().items():
        table.add_row(path, f"{value:.6g}" if isinstance(value, float) else str(value), known[path].unit,
                      spec.sources.get(path, "override"))  # fmt: skip
    return table
