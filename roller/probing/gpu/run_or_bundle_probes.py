"""Runs GPU probes on a local device, or through a bundle that is copied to the device's machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from roller.backends.parse_device_names import DeviceHandle, DeviceProperties, properties_from_data
from roller.errors import ArtifactError, BuildError, RollerError
from roller.hardware import DeviceSpec, parse_spec
from roller.probing.gpu import compute, memory
from roller.probing.gpu.gpu_probe_timings import GpuSession, Results
from roller.probing.write_measured_spec_yaml import spec_to_yaml
from roller.runtime.container_kinds import PROBES
from roller.runtime.copy_package import copy_packages
from roller.runtime.probe_bundle import RESULTS, compile_probe
from roller.runtime.probe_plan_format import ProbePlan
from roller.runtime.probe_run import NO_IMAGE, PlanRunner
from roller.targets import target_for
from roller_runtime.storage.verified_container import ContainerWriter, write_container

#: Subpackages that a machine needs to run probes, besides the standard library, NumPy and CuPy. All
#: top-level modules are included.
DRIVER = ("core", "expr", "targets", "tile", "backends", "runtime")

_PLANS: tuple[Callable[[DeviceSpec], ProbePlan | None], ...] = (
    compute.tiles_plan, compute.rates_plan, compute.matrix_plan, compute.group_matrix_plan, compute.shared_plan,
    memory.latency_plan, compute.control_plan, memory.l2_plan, memory.transactions_plan, memory.dram_plan,
)  # fmt: skip


def probe_plans(spec: DeviceSpec) -> tuple[ProbePlan, ...]:
    """Return the plans of all GPU probes in order of execution.

    >>> from roller.hardware import load_spec
    >>> [p.name for p in probe_plans(load_spec("k80"))][:4]
    ['tiles', 'rates', 'shared', 'latency']
    """
    return tuple(p for p in (make(spec) for make in _PLANS) if p is not None)


def build_plan_image(plan: ProbePlan, spec: DeviceSpec) -> bytes | str:
    """Return a plan's kernels built for a device, or the reason why they cannot be built."""
    target = target_for(spec)
    try:
        return compile_probe(plan.source, target.language, plan.arch or spec.target["arch"], target.probe_options)
    except BuildError as err:
        return str(err)


def write_probe_bundle(spec: DeviceSpec, folder: Path, *, images: bool = True, driver: bool = True) -> dict[str, Any]:
    """Write all GPU probes, with a runner, as a folder that can be run on the device's machine."""
    if not spec.traits.discrete:
        raise ArtifactError(
            f"--device: expected the specification of a GPU, got '{spec.name}'. Probe a CPU where it is."
        )
    with write_container(folder) as work:
        if driver:
            copy_packages(work.folder, DRIVER)
        rows = [
            _write_plan_files(work, plan, build_plan_image(plan, spec) if images else "left out")
            for plan in probe_plans(spec)
        ]
        body = {
            "device": spec.name, "language": spec.target["language"],
            "arch": spec.target["arch"], "units": spec.units, "options": list(target_for(spec).probe_options),
            "spec": {"name": spec.name, "content_key": spec.content_key}, "yaml": spec_to_yaml(spec),
            "roller": sys.modules["roller"].__version__, "plans": rows,
        }  # fmt: skip
        return work.write_manifest(PROBES, body)


def _write_plan_files(work: ContainerWriter, plan: ProbePlan, image: bytes | str) -> dict[str, Any]:
    digest = work.add(f"plans/{plan.name}.json", json.dumps(plan.to_dict()).encode())
    work.add(f"sources/{plan.name}.cu", plan.source.encode())
    row = {"name": plan.name, "sha256": digest, "key": plan.key, "cases": len(plan.cases)}
    if isinstance(image, str):
        return {**row, "image_sha256": None, "reason": image}
    return {**row, "image_sha256": work.add(f"images/{plan.name}.bin", image)}


def read_device_properties(results: Mapping[str, Any]) -> DeviceProperties:
    """Return the device's properties, read from a bundle's results."""
    data = dict(results["properties"])
    return properties_from_data({**data, "stated": dict(data.get("stated", {}))})


def session_from_results(path: Path) -> tuple[GpuSession, dict[str, Any]]:
    """Return a session that reads a bundle's results, and the results themselves."""
    results = RESULTS.read(path)
    spec = parse_spec(results["yaml"], f"{path}: yaml")
    if spec.content_key != results["spec"]["content_key"]:
        raise ArtifactError(f"{path}: its specification does not read back as the one that was probed. Report this.")

    def look_up(plan: ProbePlan) -> Results:
        if results["plans"].get(plan.name) != plan.key:
            raise ArtifactError(
                f"{path}: probe '{plan.name}' was made by roller {results['roller']} with other sources than these. "
                "Import it with those, or write the bundle again."
            )
        found: Mapping[str, Any] = results["results"].get(plan.name, {})
        return found

    return GpuSession(spec, look_up), results


class LocalDeviceSession(GpuSession):
    """A session on a local device, which ends on exit; ``describe`` returns its initial specification."""

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

    def __enter__(self) -> LocalDeviceSession:
        return self

    def __exit__(self, *error: object) -> None:
        self._runner.close()

    def _run(self, plan: ProbePlan) -> Results:
        if plan.name not in self._built:
            self._built[plan.name] = NO_IMAGE if self._handle.target.pretends else build_plan_image(plan, self.spec)
        return self._runner.run(plan, self._built[plan.name])
