"""``roller devices``: the known devices, and every number of one with its source."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from roller.cli.common import JsonOption, SetOption, UsageError, console, device_of, print_json
from roller.hardware import THIS_MACHINE, DeviceSpec, list_specs, load_spec
from roller.hardware.spec import settable

ShowOption = Annotated[str | None, typer.Option("--show", metavar="DEVICE", help="Print every number of one device.")]


def devices_command(show: ShowOption = None, as_json: JsonOption = False, settings: SetOption = None) -> None:
    """List the devices, or show one with the source of every number."""
    if show is not None:
        spec = device_of(show, settings)
        if as_json:
            print_json(spec.to_dict())
        else:
            console().print(_numbers_table(spec))
        return
    if settings:
        raise UsageError("--set: expected --show DEVICE beside it. Name the device whose number to override.")
    specs = [load_spec(name) for name in (THIS_MACHINE, *list_specs())]
    if as_json:
        print_json([_summary(spec) for spec in specs])
    else:
        console().print(_summary_table(specs))


def _summary(spec: DeviceSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "kind": spec.kind,
        "description": spec.description,
        "target": spec.target,
        "units": spec.units,
        "peak_flops_per_s": 2 * spec.ops_per_s("fma"),
        "bandwidth_bytes_per_s": spec.memory_layers[-1].bandwidth_bytes_per_s,
        "sources": dict(Counter(spec.sources.values())),
    }


def _summary_table(specs: list[DeviceSpec]) -> Table:
    title = "Devices (effective numbers; roller devices --show NAME for their sources)"
    table = Table(title=title, box=box.SIMPLE, title_justify="left")
    table.add_column("name")
    table.add_column("target")
    for name in ("units", "float32 TFLOP/s", "memory GB/s"):
        table.add_column(name, justify="right")
    table.add_column("numbers by source")
    table.add_column("description")
    for spec in specs:
        row = _summary(spec)
        target = row["target"].get("arch") or row["target"]["mcpu"]
        counts = ", ".join(f"{n} {source}" for source, n in sorted(row["sources"].items()))
        peak, bandwidth = row["peak_flops_per_s"] / 1e12, row["bandwidth_bytes_per_s"] / 1e9
        table.add_row(spec.name, target, str(spec.units), f"{peak:.3g}", f"{bandwidth:.4g}", counts, spec.description)
    return table


def _numbers_table(spec: DeviceSpec) -> Table:
    target = " ".join(f"{k}={v}" for k, v in spec.target.items())
    table = Table(title=f"{spec.name}: {spec.description}; {target}", box=box.SIMPLE, title_justify="left")
    table.add_column("field")
    table.add_column("value", justify="right")
    table.add_column("unit")
    table.add_column("source")
    known = settable(spec)
    for path, value in spec.values().items():
        table.add_row(path, f"{value:.6g}" if isinstance(value, float) else str(value), known[path].unit,
                      spec.sources.get(path, "override"))  # fmt: skip
    return table
