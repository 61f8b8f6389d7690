"""``roller probe`` for a GPU, on this machine or elsewhere through a bundle."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from roller.backends.parse_device_names import (
    DeviceHandle,
    DeviceProperties,
    is_reachable_device_name,
    parse_device_name,
)
from roller.cli.check_probe_options import check_spec_output
from roller.cli.progress import track_progress
from roller.cli.shared_options_and_tables import console, load_device_spec, parse_overrides, print_json
from roller.errors import ArtifactError, SpecError
from roller.hardware import DeviceSpec, list_specs, load_spec, parse_spec, spec_folder
from roller.probing import check_and_write_spec, insert_measured_values, probes, spec_to_yaml
from roller.probing.gpu.correct_spec_by_driver_values import choose_base_spec, correct_by_driver_numbers
from roller.probing.gpu.run_or_bundle_probes import (
    LocalDeviceSession,
    read_device_properties,
    session_from_results,
    write_probe_bundle,
)
from roller.probing.run_probes import ProbeReport, run_probes
from roller.targets import is_simulated_device

#: Number of rounds of a full run on a device; each takes some seconds and repeats all timing windows.
ROUNDS = 3

Show = Callable[[DeviceSpec, ProbeReport, Path | None], None]


def probe_device(device: str, settings: Sequence[str] | None, out: Path | None, quick: bool, show: Show) -> None:
    """Measure a GPU of this machine and write its specification to ``out`` if given."""
    if out is not None:
        check_spec_output(out, "gpu")
    handle = parse_device_name(device)
    parse_overrides(settings)  # raise on wrong settings before the device is opened
    if handle.target.pretends and out is not None:
        raise ArtifactError(f"device '{device}': its times are not measured. Leave --out out.")

    def describe(properties: DeviceProperties) -> DeviceSpec:
        return _spec_of_properties(handle, properties, settings)

    rounds, chosen = 1 if quick else ROUNDS, probes("gpu")
    with track_progress("probes", rounds * len(chosen)) as progress, LocalDeviceSession(handle, describe) as session:
        report = run_probes(chosen, session, session.spec, rounds, progress)
    _save_and_show(session.spec, report, out, show, f"on {session.properties.name}")


def write_probes(device: str, settings: Sequence[str] | None, folder: Path, as_json: bool) -> None:
    """Write a bundle of probes for a GPU elsewhere; ``device`` is the nearest known specification."""
    if is_reachable_device_name(device):
        raise SpecError(
            f"--bundle: expected the name of the specification nearest to the device, got '{device}'. Give it with "
            "--device, e.g. --device h200 (`roller devices` lists them)."
        )
    manifest = write_probe_bundle(load_device_spec(device, settings), folder)
    rows = manifest["plans"]
    missing = {r["name"]: r["reason"] for r in rows if r["image_sha256"] is None}
    if as_json:
        print_json({"folder": str(folder), "device": manifest["device"], "probes": len(rows), "source_only": missing})
        return
    screen = console()
    cases = sum(r["cases"] for r in rows)
    screen.print(f"{folder}: {len(rows)} probes, {cases} cases for {manifest['device']} ({manifest['arch']})")
    for name, reason in missing.items():
        screen.print(f"{name}: source only, to be built there: {reason.splitlines()[0]}", soft_wrap=True)
    screen.print("run it there, in the folder: python -m roller.runtime.bundle run . --json times.json", soft_wrap=True)
    screen.print("and then here: roller probe --import times.json --out hardware_specs/NAME.yaml", soft_wrap=True)


def import_probes(results_path: Path, out: Path | None, show: Show) -> None:
    """Write the specification that a bundle of probes has measured."""
    if out is not None:
        check_spec_output(out, "gpu")
    session, results = session_from_results(results_path)
    if is_simulated_device(results["kind"]) and out is not None:
        raise ArtifactError(f"{results_path}: was run on a null device; its times are not measured. Leave --out out.")
    report = run_probes(probes("gpu"), session, session.spec, 1)
    if not results["complete"]:
        report = replace(
            report, remarks=(*report.remarks, "the run was not complete: run the bundle again to continue")
        )
    spec = correct_by_driver_numbers(session.spec, read_device_properties(results))
    _save_and_show(spec, report, out, show, f"on {results['device']}")


def _spec_of_properties(
    handle: DeviceHandle, properties: DeviceProperties, settings: Sequence[str] | None
) -> DeviceSpec:
    if handle.spec:
        return load_device_spec(handle.spec, settings)
    specs = [load_spec(name) for name in list_specs()]
    spec = correct_by_driver_numbers(choose_base_spec(properties, specs), properties)
    return spec.with_overrides(parse_overrides(settings))


def _save_and_show(spec: DeviceSpec, report: ProbeReport, out: Path | None, show: Show, where: str) -> None:
    if out is not None:
        today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        stamp = f"probed {today} by roller probe {where}"
        check_and_write_spec(out, insert_measured_values(base_spec_yaml(spec, out), report.values, stamp, str(out)))
    show(spec, report, out)


def base_spec_yaml(spec: DeviceSpec, out: Path) -> str:
    """Return the YAML into which the measured values are inserted."""
    if out.exists():
        text = out.read_text(encoding="utf-8")
        found = parse_spec(text, str(out))
        if found.target_items != spec.target_items:
            raise SpecError(
                f"{out}: describes {dict(found.target_items)}, the device is {dict(spec.target_items)}. "
                "Choose another --out."
            )
        return text
    shipped = spec_folder() / f"{spec.name}.yaml"
    if spec.name in list_specs() and load_spec(spec.name).content_key == spec.content_key:
        text = shipped.read_text(encoding="utf-8")
        return re.sub(r"(?m)^name: .*$", f"name: {out.stem}", text, count=1)
    return spec_to_yaml(spec, out.stem)
