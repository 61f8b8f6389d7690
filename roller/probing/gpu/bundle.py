"""From a specification to times and back: on a device that is here, or through a folder that travels to it."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from roller.errors import ArtifactError, BuildError, RollerError
from roller.hardware import DeviceSpec, parse_spec
from roller.probing.document import spec_text
from roller.probing.gpu import compute, memory
from roller.probing.gpu.session import GpuSession, Results
from roller.probing.gpu.sources import OPTIONS
from roller.runtime.bundle_format import read_checked, whole_folder, write_manifest
from roller.runtime.devices import DeviceHandle, DeviceProperties, properties_of
from roller.runtime.probe_bundle import (
    FORMAT,
    RESULTS,
    RESULTS_VERSION,
    VERSION,
    built,
)
from roller.runtime.probe_format import Plan
from roller.runtime.probe_run import NO_IMAGE, PlanRunner

#: Floors a machine needs on which the probes only run (the standard library, NumPy and CuPy do the rest). The modules
#: beside the floors are few and small: all of them go along.
_DRIVER = ("expr", "tile", "backends", "runtime")

_PLANS: tuple[Callable[[DeviceSpec], Plan | None], ...] = (
    compute.tiles_plan, compute.rates_plan, compute.matrix_plan, compute.group_matrix_plan, compute.shared_plan,
    memory.latency_plan, compute.control_plan, memory.l2_plan, memory.transactions_plan, memory.dram_plan,
)  # fmt: skip


def plans(spec: DeviceSpec) -> tuple[Plan, ...]:
    """Return the plans of all probes of a GPU, in the order they run.

    Examples
    --------
    >>> from roller.hardware import load_spec
    >>> [p.name for p in plans(load_spec("k80"))][:4]
    ['tiles', 'rates', 'shared', 'latency']
    """
    return tuple(p for p in (make(spec) for make in _PLANS) if p is not None)


def image_of(plan: Plan, spec: DeviceSpec) -> bytes | str:
    """Return a plan's kernels built for a device, or why they cannot be."""
    language = spec.target["language"]
    try:
        return built(plan.source, language, plan.arch or spec.target["arch"], OPTIONS[language])
    except BuildError as err:
        return str(err)


def create_bundle(
    spec: DeviceSpec, folder: Path, *, images: bool = True, driver: bool = True
) -> dict[str, Any]:
    """Write all probes of a GPU as a folder that runs where the device is, with what runs it.

    Parameters
    ----------
    spec
        What is known of the device: its architecture, and the sizes the cases follow.
    folder
        Must not exist, or be empty; appears whole or not at all.
    images
        Build them here; else the machine with the device needs a compiler.
    driver
        Put what runs them beside them; else it is there already.

    Returns
    -------
    dict
        The manifest.

    Raises
    ------
    ArtifactError
        Where the device is no GPU, or the folder cannot be written.
    """
    if spec.kind != "gpu":
        raise ArtifactError(
            f"--device: expected the specification of a GPU, got '{spec.name}'. Probe a CPU where it is."
        )
    with whole_folder(folder) as work:
        for name in ("plans", "sources", "images"):
            (work / name).mkdir()
        if driver:
            _copy_driver(work / "roller")
        rows = [_write(work, plan, image_of(plan, spec) if images else "left out") for plan in plans(spec)]
        body = {
            "format": FORMAT, "version": VERSION, "device": spec.name, "language": spec.target["language"],
            "arch": spec.target["arch"], "units": spec.units, "options": list(OPTIONS[spec.target["language"]]),
            "spec": {"name": spec.name, "content_key": spec.content_key}, "yaml": spec_text(spec),
            "roller": sys.modules["roller"].__version__, "plans": rows,
        }  # fmt: skip
        return write_manifest(work, body)


def _copy_driver(to: Path) -> None:
    """Put a copy of the bare part of the package into a bundle, so that it runs without an installation."""
    package = Path(__file__).resolve().parents[2]
    to.mkdir()
    for module in package.glob("*.py"):
        shutil.copy(module, to / module.name)
    for floor in _DRIVER:
        shutil.copytree(package / floor, to / floor, ignore=shutil.ignore_patterns("__pycache__"))


def _write(work: Path, plan: Plan, image: bytes | str) -> dict[str, Any]:
    data = json.dumps(plan.to_dict()).encode()
    (work / "plans" / f"{plan.name}.json").write_bytes(data)
    (work / "sources" / f"{plan.name}.cu").write_text(plan.source, encoding="utf-8")
    row = {"name": plan.name, "sha256": hashlib.sha256(data).hexdigest(), "key": plan.key, "cases": len(plan.cases)}
    if isinstance(image, str):
        return {**row, "image_sha256": None, "reason": image}
    (work / "images" / f"{plan.name}.bin").write_bytes(image)
    return {**row, "image_sha256": hashlib.sha256(image).hexdigest()}


def properties_of_results(results: Mapping[str, Any]) -> DeviceProperties:
    """Return what the device said of itself where a bundle ran."""
    data = dict(results["properties"])
    return properties_of({**data, "stated": dict(data.get("stated", {}))})


def session_of_results(path: Path) -> tuple[GpuSession, dict[str, Any]]:
    """Return the session of what a bundle brought home, and the results themselves.

    Parameters
    ----------
    path
        JSON of ``bundle run``.

    Raises
    ------
    ArtifactError
        Where the file is refused: missing, altered, or for plans that this code would make differently.
    """
    results = read_checked(path, RESULTS, RESULTS_VERSION)
    spec = parse_spec(results["yaml"], f"{path}: yaml")
    if spec.content_key != results["spec"]["content_key"]:
        raise ArtifactError(f"{path}: its specification does not read back as the one that was probed. Report this.")

    def look_up(plan: Plan) -> Results:
        if results["plans"].get(plan.name) != plan.key:
            raise ArtifactError(
                f"{path}: probe '{plan.name}' was made by roller {results['roller']} with other sources than these. "
                "Import it with those, or write the bundle again."
            )
        found: Mapping[str, Any] = results["results"].get(plan.name, {})
        return found

    return GpuSession(spec, look_up), results


class DeviceSession(GpuSession):
    """A session that measures on a device that is here; a context manager that ends the device process.

    Parameters
    ----------
    handle
        The device.
    describe
        What the device says of itself -> the specification to start from.

    Raises
    ------
    LaunchError
        Where the device cannot be reached.
    """

    def __init__(self, handle: DeviceHandle, describe: Callable[[DeviceProperties], DeviceSpec]) -> None:
        self._runner = PlanRunner(handle)
        try:
            self.properties = self._runner.properties()
            super().__init__(describe(self.properties), self._run)
        except RollerError:
            self._runner.close()
            raise
        self._built: dict[str, bytes | str] = {}
        self._handle = handle

    def __enter__(self) -> DeviceSession:
        return self

    def __exit__(self, *error: object) -> None:
        self._runner.close()

    def _run(self, plan: Plan) -> Results:
        if plan.name not in self._built:
            self._built[plan.name] = NO_IMAGE if self._handle.kind == "null" else image_of(plan, self.spec)
        return self._runner.run(plan, self._built[plan.name])
