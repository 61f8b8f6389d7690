"""``roller probe`` for a GPU, on this machine or elsewhere through a bundle."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from roller.backends.devices import DeviceHandle, DeviceProperties, is_reachable, parse
from roller.cli.common import console, device_of, overrides_of, print_json
from roller.cli.probe_checks import check_out
from roller.cli.progress import counted_steps
from roller.errors import ArtifactError, SpecError
from roller.hardware import DeviceSpec, list_specs, load_spec, parse_spec, spec_folder
from roller.probing import probes, save, spec_text, with_measured
from roller.probing.gpu.bundle import DeviceSession, create_bundle, properties_of_results, session_of_results
from roller.probing.gpu.stated import as_stated, base_of
from roller.probing.run import Report, run_probes
from roller.targets import pretends

#: Rounds of a full run on a device; each takes some seconds and repeats all timing windows.
ROUNDS = 3

Show = Callable[[DeviceSpec, Report, Path | None], None]


def probe_device(device: str, settings: Sequence[str] | None, out: Path | None, quick: bool, show: Show) -> None:
    """Measure a GPU of this machine, and write its specification to ``out`` if given."""
    if out is not None:
        check_out(out, "gpu")
    handle = parse(device)
    overrides_of(settings)  # raise on wrong settings before the device is opened
    if handle.target.pretends and out is not None:
        raise ArtifactError(f"device '{device}': its times are not measured. Leave --out out.")

    def describe(properties: DeviceProperties) -> DeviceSpec:
        return _described(handle, properties, settings)

    rounds, chosen = 1 if quick else ROUNDS, probes("gpu")
    with counted_steps("probes", rounds * len(chosen)) as progress, DeviceSession(handle, describe) as session:
        report = run_probes(chosen, session, session.spec, rounds, progress)
    _finish(session.spec, report, out, show, f"on {session.properties.name}")


def write_probes(device: str, settings: Sequence[str] | None, folder: Path, as_json: bool) -> None:
    """Write a bundle of probes for a GPU elsewhere; ``device`` is the nearest known specification."""
    if is_reachable(device):
        raise SpecError(
            f"--bundle: expected the name of the specification nearest to the device, got '{device}'. Give it with "
            "--device, e.g. --device h200 (`roller devices` lists them)."
        )
    manifest = create_bundle(device_of(device, settings), folder)
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
        check_out(out, "gpu")
    session, results = session_of_results(results_path)
    if pretends(results["kind"]) and out is not None:
        raise ArtifactError(f"{results_path}: was run on a null device; its times are not measured. Leave --out out.")
    report = run_probes(probes("gpu"), session, session.spec, 1)
    if not results["complete"]:
        report = replace(
            report, remarks=(*report.remarks, "the run was not complete: run the bundle again to continue")
        )
    spec = as_stated(session.spec, properties_of_results(results))
    _finish(spec, report, out, show, f"on {results['device']}")


def _described(handle: DeviceHandle, properties: DeviceProperties, settings: Sequence[str] | None) -> DeviceSpec:
    if handle.spec:
        return device_of(handle.spec, settings)
    specs = [load_spec(name) for name in list_specs()]
    spec = as_stated(base_of(properties, specs), properties)
    return spec.with_overrides(overrides_of(settings))


def _finish(spec: DeviceSpec, report: Report, out: Path | None, show: Show, where: str) -> None:
    if out is not None:
        today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        stamp = f"probed {today} by roller probe {where}"
        save(out, with_measured(base_text(spec, out), report.values, stamp, str(out)))
    show(spec, report, out)


def base_text(spec: DeviceSpec, out: Path) -> str:
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
    return spec_text(spec, out.stem)
