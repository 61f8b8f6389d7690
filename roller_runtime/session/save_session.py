"""The parts of a CPU session, and the folder that :meth:`SessionParts.save` writes for ``load_model.py``.

``model.json`` contains the plan, the kernels' interfaces and the offsets of arrays; ``kernels/`` contains the
libraries, ``arrays.bin`` the constants as kernels read them, ``runner.so`` the native runner, and ``native.bin`` the
steps for the C interface.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from roller_runtime.core.validation import validate_flag
from roller_runtime.core.validation import validate_path as path_of
from roller_runtime.errors import ArtifactError
from roller_runtime.plan.execution_plan import Plan
from roller_runtime.plan.plan_json import plan_to_dict
from roller_runtime.session.cpu_kernel_loading import LoadedKernel
from roller_runtime.session.model_digest import ModelDigest, unknown_digest
from roller_runtime.session.native_program import PythonStepError, native_program
from roller_runtime.session.native_runner import Runner
from roller_runtime.session.packed_constants import Constants
from roller_runtime.storage.array_file import ArrayWriter
from roller_runtime.storage.verified_container import OLDEST_SAVED, SAVED, ContainerWriter, write_container
from roller_runtime.version import __version__

ARRAYS, RUNNER, NATIVE = "arrays.bin", "runner.so", "native.bin"
#: Address, size and offset in a file, in bytes, of each of several arrays.
Spans: TypeAlias = list[tuple[int, int, int]]


@dataclass(frozen=True)
class SessionParts:
    """All parts of a session on this machine's processor.

    Parameters
    ----------
    constants
        Constants as kernels read them.
    cores
        Number of threads per call, including the calling thread.
    runner
        The native runner; ``None`` if it is not used.
    artifacts
        Programs, estimates and sources of kernels by key; may be empty.
    model_digest
        Function that returns the digest of the model's file.
    """

    plan: Plan
    kernels: Mapping[str, LoadedKernel]
    constants: Constants
    cores: int
    runner: Runner | None
    artifacts: Mapping[str, Any]
    model_digest: ModelDigest = unknown_digest

    def save(self, folder: str | os.PathLike[str], *, sources: bool) -> Path:
        """Write a folder that :func:`roller_runtime.load_model` loads."""
        target = path_of(folder, "folder", error=ArtifactError)
        sources = validate_flag(sources, "sources", error=ArtifactError)
        with write_container(target) as work:
            arrays, spans = save_arrays(work, self.constants)
            body = {
                **describe_compilation(self.kernels, self.cores, self.model_digest),
                "plan": plan_to_dict(self.plan),
                "kernels": save_kernels(work, self.kernels, self.artifacts if sources else {}),
                "arrays": arrays,
                "runner": None if self.runner is None else write_file(work, RUNNER, self.runner.image),
            }
            work.write_manifest(SAVED, {**body, **self._save_native_program(work, body, spans)}, OLDEST_SAVED)
        return target

    def _save_native_program(self, work: ContainerWriter, body: dict[str, Any], spans: Spans) -> dict[str, Any]:
        """Write the file for the C interface if no step needs Python; return the manifest's fields for it."""
        if self.runner is None:
            return {}
        try:
            data = native_program(
                self.plan, self.kernels, self.constants, self.cores, runner=(RUNNER, self.runner.image),
                gathers=self.runner.gathers,
                files={row["key"]: row["file"] for row in body["kernels"]}, machine=body["machine"],
                features=body["features"], arrays=(ARRAYS, body["arrays"]["bytes"], spans),
            )  # fmt: skip
        except PythonStepError as err:
            return {"only_in_python": str(err)}
        return {"native": write_file(work, NATIVE, data)}


def describe_compilation(kernels: Mapping[str, LoadedKernel], cores: int, model_digest: ModelDigest) -> dict[str, Any]:
    """Return the fields of a manifest that say where, and by which release, the model was compiled."""
    return {
        "roller": __version__,
        "model_sha256": model_digest(),
        "machine": [sys.platform, platform.machine()],
        "features": sorted({f for k in kernels.values() for f in k.code.features}),
        "cores": cores,
    }


def save_kernels(
    work: ContainerWriter, kernels: Mapping[str, LoadedKernel], artifacts: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Write the libraries of kernels, and the given artifacts without their binaries; return the manifest's rows."""
    rows = []
    for number, (key, kernel) in enumerate(kernels.items()):
        stem = f"kernels/{number:04d}"
        row = {"key": key, "code": kernel.code.to_dict(), **write_file(work, f"{stem}.so", kernel.library)}
        artifact = artifacts.get(key)
        if artifact is not None:
            # The artifacts of a session that was loaded without the package roller are JSON data.
            data = artifact if isinstance(artifact, dict) else replace(artifact, binary=None).to_dict()
            row["artifact"] = write_file(work, f"{stem}.json", json.dumps(data).encode())
        rows.append(row)
    return rows


def save_arrays(work: ContainerWriter, constants: Constants) -> tuple[dict[str, Any], Spans]:
    """Write constants, each array once; return the manifest's row, and where they are in memory and in the file."""
    rows: dict[int, list[Any]] = {}
    spans: list[tuple[int, int, int]] = []
    with ArrayWriter(work.folder / ARRAYS) as writer:

        def add(array: np.ndarray) -> list[Any]:
            if id(array) not in rows:  # kernels of a range share packed constants
                rows[id(array)] = writer.add(array)
                spans.append((array.__array_interface__["data"][0], array.nbytes, rows[id(array)][0]))
            return rows[id(array)]

        named = [[name, add(array)] for name, array in constants.arrays.items()]
        panels = [[key, list(names), list(map(add, arrays))] for (key, names), arrays in constants.panels.items()]
        return {"file": ARRAYS, "bytes": writer.close(), "constants": named, "panels": panels}, spans


def write_file(work: ContainerWriter, name: str, data: bytes) -> dict[str, str]:
    """Write a file; return its name and digest for the manifest."""
    return {"file": name, "sha256": work.add(name, data)}
