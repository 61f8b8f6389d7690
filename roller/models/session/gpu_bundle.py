"""A model bundle for a GPU: a folder of plan, kernels, constants and expected results that needs no compiler to run.

``manifest.json`` lists the files with their checksums, ``plan.json`` contains steps and places, ``kernels.xz`` contains
sources and images, and ``arrays.bin`` contains constants (memory-mapped) and expected results.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from roller.artifact import KernelArtifact
from roller.errors import ArtifactError
from roller.runtime.bundle_format import pack_candidates, unpack_candidates
from roller.runtime.container_kinds import MODEL_BUNDLE
from roller.runtime.device_container import DeviceContainer
from roller_runtime.core.dtypes import as_numpy_bits
from roller_runtime.plan.execution_plan import CONSTANT, Plan
from roller_runtime.plan.plan_json import plan_from_dict, plan_to_dict
from roller_runtime.plan.program_steps import Run, values_read
from roller_runtime.session.packed_constants import flatten_lanes
from roller_runtime.storage.array_file import ArrayReader, ArrayWriter
from roller_runtime.storage.verified_container import write_container

#: Version of written bundles. Version 2 had packs; :mod:`roller_runtime.plan.plan_json` refuses plans with them.
_WRITTEN_VERSION = 1
_PLAN, _KERNELS, _ARRAYS = "plan.json", "kernels.xz", "arrays.bin"
#: Largest accepted error of an output, relative to its largest magnitude.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Expected:
    """Inputs and expected outputs of a model, in order; ``source`` names the origin of the outputs."""

    feeds: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray, ...]
    source: str = ""


def write_bundle(
    folder: Path,
    plan: Plan,
    artifacts: Mapping[str, KernelArtifact],
    *,
    device: str,
    target: Mapping[str, str],
    expected: Sequence[Expected] = (),
    tolerance: float = TOLERANCE,
) -> dict[str, Any]:
    """Write a bundle atomically."""
    program = plan.program
    keys = sorted({s.kernel for s in flatten_lanes(program.steps) if isinstance(s, Run)})
    missing = [k for k in keys if k not in artifacts]
    if missing:
        raise ArtifactError(f"{program.name}: expected a kernel for every key, got none for {missing[:5]}. Compile it.")
    with write_container(folder) as work:
        files = {_PLAN: _serialise_plan(plan), _KERNELS: pack_candidates([(k, artifacts[k]) for k in keys])}
        digests = {name: work.add(name, data) for name, data in files.items()}
        with ArrayWriter(work.folder / _ARRAYS) as writer:
            constants = [[n, writer.add(as_numpy_bits(program.constants[n]))] for n in _constants_read(plan)]
            tests = [{"feeds": [writer.add(as_numpy_bits(a)) for a in e.feeds], "source": e.source,
                      "outputs": [writer.add(as_numpy_bits(a)) for a in e.outputs]} for e in expected]  # fmt: skip
            nbytes = writer.close()
        body = {"model": program.name, "device": device, "target": dict(target), "files": digests,
                "kernels": len(keys), "built": sum(artifacts[k].binary is not None for k in keys),
                "proved": {k: str(artifacts[k].build.get("proved", "")) for k in keys},
                "array_bytes": nbytes, "constants": constants, "expected": tests, "tolerance": tolerance}  # fmt: skip
        return work.write_manifest(MODEL_BUNDLE, body, _WRITTEN_VERSION)


def _constants_read(plan: Plan) -> list[str]:
    """Return the names of the constants that steps read."""
    used = {plan.places[n] for s in flatten_lanes(plan.program.steps) for n in values_read(s)}
    return sorted({p.name for p in used if p.space == CONSTANT})


def _serialise_plan(plan: Plan) -> bytes:
    """Return a plan as JSON, with only the constants that steps read."""
    constants = {n: plan.program.constants[n] for n in _constants_read(plan)}
    return json.dumps(plan_to_dict(replace(plan, program=replace(plan.program, constants=constants)))).encode()


class ModelBundle(DeviceContainer):
    """An opened bundle; arrays are verified when read, all other files on opening."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, MODEL_BUNDLE)
        with self.fields():
            self.model: str = self.manifest["model"]
            self.device = self.manifest["device"]
            self.arch = self.manifest["target"]["arch"]
            self.tolerance = float(self.manifest["tolerance"])
            self._arrays = ArrayReader(self.path(_ARRAYS), int(self.manifest["array_bytes"]), verify=True)

    def check(self, properties: Mapping[str, Any]) -> None:
        """Raise an error if the device's architecture differs from that of the kernels."""
        self.check_device("the device", properties["name"], properties["arch"], "", "Compile the model for its spec.")

    def verify(self) -> str:
        """Read every file; return a summary."""
        plan, kernels, tests = self.plan(), self.artifacts(), self.expected()
        built = sum(a.binary is not None for a in kernels.values())
        return (f"{self.model}, {len(plan.program.steps)} steps, {len(kernels)} kernels ({built} built) "
                f"for {self.device}, {len(tests)} tests")  # fmt: skip

    def plan(self) -> Plan:
        """Return the plan with memory-mapped constants."""
        data = self.json(_PLAN)
        with self.fields():
            rows = {str(name): row for name, row in self.manifest["constants"]}
            constants = {name: self._arrays.get(rows[name]) for name in data.get("constants", ()) if name in rows}
        return plan_from_dict(data, constants, str(self.folder / _PLAN))

    def artifacts(self) -> dict[str, KernelArtifact]:
        """Return the kernels by key."""
        return dict(unpack_candidates(self.read(_KERNELS), str(self.folder / _KERNELS)))

    def expected(self) -> list[Expected]:
        """Return the tests of the bundle, with bfloat16 values as bits."""
        return [Expected(tuple(self._arrays.get(r) for r in row["feeds"]),
                         tuple(self._arrays.get(r) for r in row["outputs"]), str(row["source"]))
                for row in self.manifest["expected"]]  # fmt: skip
