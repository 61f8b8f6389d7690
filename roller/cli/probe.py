"""``roller probe``: measure a device and write its specification."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from roller.backends.parse_device_names import is_reachable_device_name
from roller.cli.check_probe_options import QUICK_MARK, check_options, check_spec_output, refuse_quick_over_full
from roller.cli.progress import track_progress
from roller.cli.shared_options_and_tables import JsonOption, SetOption, UsageError, console, print_json
from roller.hardware import THIS_MACHINE, DeviceSpec
from roller.hardware.detect_cpu_spec import detect_cpu_without_probe
from roller.hardware.probed_profile_location import profile_path
from roller.hardware.spec import settable_fields
from roller.probing import (
    Probe,
    check_and_write_spec,
    insert_measured_values,
    mark_errors_validated,
    probes,
    spec_to_yaml,
)
from roller.probing.run_probes import QUICK_ROUNDS, ROUNDS, ProbeReport, run_probes
from roller.targets import canonical_device_name
from roller_runtime.timing.clock import SystemClock

DeviceArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="DEVICE", help="'cpu' is this machine's processor, the default; 'cuda:0' and 'rocm:0' its GPUs."
    ),
]
NearestOption = Annotated[
    str | None,
    typer.Option("--device", "-d", metavar="SPEC", help="With --bundle: the specification nearest to the device."),
]
BundleOption = Annotated[
    Path | None, typer.Option("--bundle", metavar="DIR", help="Write the probes for a GPU on another machine.")
]
ImportOption = Annotated[
    Path | None, typer.Option("--import", metavar="FILE.json", help="Import the results of a bundle of probes.")
]
OutOption = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="FILE.yaml", help="Write a complete specification there instead.")
]
QuickOption = Annotated[bool, typer.Option("--quick", help="One round; a full profile is not replaced by it.")]


def probe_command(
    device: DeviceArgument = None,
    out: OutOption = None,
    quick: QuickOption = False,
    bundle: BundleOption = None,
    nearest: NearestOption = None,
    results: ImportOption = None,
    as_json: JsonOption = False,
    settings: SetOption = None,
) -> None:
    """Measure a device: instruction rates, bandwidths, latencies and overheads, each with its spread.

    Without --out, this machine's profile is stored for this user, and device 'cpu' uses it from then on. For a GPU
    elsewhere: --bundle here, ``python -m roller.runtime.bundle run`` there, --import here.
    """
    device = None if device is None else canonical_device_name(device)
    check_options(device, out, quick, bundle, nearest, results, settings)
    device = device or THIS_MACHINE
    if bundle is not None or results is not None or is_reachable_device_name(device):
        _probe_gpu(device, out, quick, bundle, nearest, results, as_json, settings)
        return
    if settings:
        raise UsageError("--set: expected a GPU. This processor's facts come from the operating system.")
    base = detect_cpu_without_probe()
    if out is not None:
        check_spec_output(out, base.kind, base.machine)
    path = out or profile_path(base.machine)
    if quick:
        refuse_quick_over_full(path)
    report = _measure(base, QUICK_ROUNDS if quick else ROUNDS)
    if out is None:
        path.parent.mkdir(parents=True, exist_ok=True)
    check_and_write_spec(path, probed_spec_yaml(base, report, path.stem, quick))
    if as_json:
        print_json(_probe_report_json(path, report))
    else:
        _print_probe_report(console(), base, report, path)


def _probe_gpu(
    device: str, out: Path | None, quick: bool, bundle: Path | None, nearest: str | None, results: Path | None,
    as_json: bool, settings: list[str] | None,
) -> None:  # fmt: skip
    from roller.cli import probe_gpu

    def show(base: DeviceSpec, report: ProbeReport, path: Path | None) -> None:
        if as_json:
            print_json(_probe_report_json(path, report))
        else:
            _print_probe_report(console(), base, report, path)

    if bundle is not None:
        probe_gpu.write_probes(nearest or device, settings, bundle, as_json)
    elif results is not None:
        probe_gpu.import_probes(results, out, show)
    else:
        probe_gpu.probe_device(device, settings, out, quick, show)


def probed_spec_yaml(base: DeviceSpec, report: ProbeReport, name: str, quick: bool = False) -> str:
    """Return the YAML of a probed processor's specification: measured values, otherwise detected or assumed ones."""
    now = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    mark = f" {QUICK_MARK}" if quick else ""
    named = replace(base, description=f"{base.description}, probed {now}{mark}")
    if name == THIS_MACHINE:
        name = f"{name}-probed"
    text = insert_measured_values(spec_to_yaml(named, name), report.values, f"probed {now} by roller probe{mark}", name)
    return mark_errors_validated(text, name)


def _measure(base: DeviceSpec, rounds: int) -> ProbeReport:
    from roller.probing.cpu import CpuSession

    chosen: tuple[Probe, ...] = probes("cpu")
    with track_progress("probes", rounds * len(chosen)) as progress, CpuSession(base) as session:
        return run_probes(chosen, session, base, rounds, progress, SystemClock().load)


def _print_probe_report(screen: Console, base: DeviceSpec, report: ProbeReport, path: Path | None) -> None:
    table = Table(title=f"{base.description}: measured in {report.wall_s:.0f} s", box=box.SIMPLE, title_justify="left")
    table.add_column("field")
    for name in ("measured", "spread", "windows", "before"):
        table.add_column(name, justify="right")
    table.add_column("unit")
    known, before = settable_fields(base), base.values()
    for field, m in report.values.items():
        old = f"{before[field]:.4g} {base.sources.get(field, '')}" if field in before else "-"
        table.add_row(field, f"{m.value:.4g}", f"{m.spread:.1%}", str(m.samples), old, known[field].unit)
    for field, m in report.beside.items():
        table.add_row(field, f"{m.value:.4g}", f"{m.spread:.1%}", str(m.samples), "no field", "")
    screen.print(table)
    for field, reason in report.refused.items():
        screen.print(f"not written: {field}: {reason}", soft_wrap=True)
    for name, reason in report.failed.items():
        screen.print(f"probe {name} failed: {reason}", soft_wrap=True)
    for text in report.remarks:
        screen.print(text, soft_wrap=True)
    screen.print(f"written to {path}" if path else "written nowhere: give --out FILE.yaml", soft_wrap=True)


def _probe_report_json(path: Path | None, report: ProbeReport) -> dict[str, Any]:
    return {
        "path": None if path is None else str(path),
        "wall_s": report.wall_s,
        "values": {k: m.to_dict() for k, m in report.values.items()},
        "beside": {k: m.to_dict() for k, m in report.beside.items()},
        "refused": report.refused,
        "failed": report.failed,
        "remarks": report.remarks,
    }
