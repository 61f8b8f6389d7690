"""A model for a GPU as a folder: plan, kernels and constants, and what it must compute; it needs no compiler to run.

``manifest.json`` names every file with its checksum; ``plan.json`` holds steps and places; ``kernels.xz`` every kernel
once, source and image; ``arrays.bin`` the constants as they are (mapped, never read whole) and the expected results.
The folder runs with Python, NumPy and CuPy: ``python -m roller.models.session.bundle run FOLDER``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from roller.artifact import KernelArtifact
from roller.backends.devices import same_arch
from roller.core.dtypes import bits_of
from roller.errors import ArtifactError, LaunchError
from roller.horizontal import HorizontalKernel
from roller.models.graph.plan import CONSTANT, Plan
from roller.models.graph.plan_data import plan_from_dict, plan_to_dict
from roller.models.graph.steps import Run, reads
from roller.models.session.arrays import ArrayReader, ArrayWriter
from roller.models.session.constants import steps_of
from roller.models.session.horizontal import check_packs
from roller.runtime.bundle_format import pack, unpack
from roller.runtime.container import MODEL_BUNDLE, Container, filled

#: Bundles without packs are written in this version, for earlier readers.
_FIRST_VERSION = 1
_PLAN, _KERNELS, _ARRAYS, _PACKS, _PLAIN = "plan.json", "kernels.xz", "arrays.bin", "packs.json", "plain.json"
#: How far an output may be from what is expected, relative to the largest magnitude of that output.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Expected:
    """Inputs of a model and what it makes of them.

    Parameters
    ----------
    feeds, outputs
        Arrays in the order of the model's inputs and outputs.
    source
        Who computed the outputs, for people.
    """

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
    packs: Mapping[str, HorizontalKernel] | None = None,
    plain: Plan | None = None,
) -> dict[str, Any]:
    """Write a model for a GPU; the folder appears whole or not at all."""
    program = plan.program
    steps = [s for p in (plan, plain) if p is not None for s in steps_of(p.program.steps)]
    keys = sorted({s.kernel for s in steps if isinstance(s, Run)})
    check_packs(program.name, program.steps, packs or {})
    missing = [k for k in keys if k not in artifacts]
    if missing:
        raise ArtifactError(f"{program.name}: expected a kernel for every key, got none for {missing[:5]}. Compile it.")
    every = {**program.constants, **(plain.program.constants if plain is not None else {})}
    names = sorted({n for p in (plan, plain) if p is not None for n in _constants(p)})
    with filled(folder) as work:
        files = {_PLAN: _plan_bytes(plan), _KERNELS: pack([(k, artifacts[k]) for k in keys])}
        if packs:
            files[_PACKS] = _packs_bytes(packs)
        if plain is not None:
            files[_PLAIN] = _plan_bytes(plain)
        digests = {name: work.add(name, data) for name, data in files.items()}
        with ArrayWriter(work.folder / _ARRAYS) as writer:
            constants = [[n, writer.add(bits_of(every[n]))] for n in names]
            tests = [{"feeds": [writer.add(bits_of(a)) for a in e.feeds], "source": e.source,
                      "outputs": [writer.add(bits_of(a)) for a in e.outputs]} for e in expected]  # fmt: skip
            nbytes = writer.close()
        body = {"model": program.name, "device": device, "target": dict(target), "files": digests,
                "kernels": len(keys), "built": sum(artifacts[k].binary is not None for k in keys),
                "proved": {k: str(artifacts[k].build.get("proved", "")) for k in keys},
                "array_bytes": nbytes, "constants": constants, "expected": tests, "tolerance": tolerance}  # fmt: skip
        return work.seal(MODEL_BUNDLE, body, None if packs or plain is not None else _FIRST_VERSION)


def _constants(plan: Plan) -> list[str]:
    """Return the names of the constants that steps read."""
    used = {plan.places[n] for s in steps_of(plan.program.steps) for n in reads(s)}
    return sorted({p.name for p in used if p.space == CONSTANT})


def _plan_bytes(plan: Plan) -> bytes:
    """Return a plan as JSON, of its constants only those that steps read."""
    constants = {n: plan.program.constants[n] for n in _constants(plan)}
    return json.dumps(plan_to_dict(replace(plan, program=replace(plan.program, constants=constants)))).encode()


def _packs_bytes(packs: Mapping[str, HorizontalKernel]) -> bytes:
    """Return packed kernels as JSON, each once however many keys it has."""
    kernels = list({id(p): p for p in packs.values()}.values())
    number = {id(p): n for n, p in enumerate(kernels)}
    keys = {key: number[id(p)] for key, p in sorted(packs.items())}
    return json.dumps({"kernels": [p.to_dict() for p in kernels], "keys": keys}).encode()


class ModelBundle(Container):
    """A bundle that was opened: everything but the arrays is verified, they are as they are read.

    Parameters
    ----------
    folder
        The bundle.

    Raises
    ------
    ArtifactError
        See :class:`~roller.runtime.container.Container`.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, MODEL_BUNDLE)
        with self.fields():
            self.model: str = self.manifest["model"]
            self.device: str = self.manifest["device"]
            self.arch: str = self.manifest["target"]["arch"]
            self.tolerance = float(self.manifest["tolerance"])
            self._arrays = ArrayReader(self.path(_ARRAYS), int(self.manifest["array_bytes"]), verify=True)

    def check_device(self, properties: Mapping[str, Any]) -> None:
        """Refuse a device of another architecture than the kernels."""
        if not same_arch(properties["arch"], self.arch):
            raise LaunchError(
                f"{self.folder}: built for {self.device} ({self.arch}), the device is {properties['name']} "
                f"({properties['arch']}). Compile the model for its spec."
            )

    def plan(self) -> Plan:
        """Return the plan with its constants, which are mapped from the file."""
        return self._plan(_PLAN)

    @property
    def has_plain(self) -> bool:
        """Whether there is a plan without packs to compare with."""
        return _PLAIN in self.files

    def plain(self) -> Plan | None:
        """Return the plan without packs, where there is one."""
        return self._plan(_PLAIN) if self.has_plain else None

    def packs(self) -> dict[str, HorizontalKernel]:
        """Return the kernels of the plan's packs."""
        if _PACKS not in self.files:
            return {}
        data = self.json(_PACKS)
        with self.fields():
            kernels = [HorizontalKernel.from_dict(p, str(self.folder / _PACKS)) for p in data["kernels"]]
            return {str(key): kernels[n] for key, n in data["keys"].items()}

    def _plan(self, file: str) -> Plan:
        data = self.json(file)
        with self.fields():
            rows = {str(name): row for name, row in self.manifest["constants"]}
            constants = {name: self._arrays.get(rows[name]) for name in data.get("constants", ()) if name in rows}
        return plan_from_dict(data, constants, str(self.folder / file))

    def artifacts(self) -> dict[str, KernelArtifact]:
        """Return the kernels by key."""
        return dict(unpack(self.read(_KERNELS), str(self.folder / _KERNELS)))

    def expected(self) -> list[Expected]:
        """Return what the model must compute; bfloat16 as bits."""
        return [Expected(tuple(self._arrays.get(r) for r in row["feeds"]),
                         tuple(self._arrays.get(r) for r in row["outputs"]), str(row["source"]))
                for row in self.manifest["expected"]]  # fmt: skip
