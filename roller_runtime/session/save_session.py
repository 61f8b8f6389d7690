"""The parts of a CPU session, and the folder that :meth:`SessionParts.save` writes for ``saved.py``.

``model.json`` contains the plan, the kernels' interfaces and the offsets of arrays; ``kernels/`` contains the
libraries, ``arrays.bin`` the constants as kernels read them, and ``runner.so`` the native runner.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from roller_runtime.core.validation import validate_flag
from roller_runtime.core.validation import validate_path as path_of
from roller_runtime.errors import ArtifactError
from roller_runtime.plan.execution_plan import Plan
from roller_runtime.plan.plan_json import plan_to_dict
from roller_runtime.session.cpu_kernel_loading import LoadedKernel
from roller_runtime.session.model_digest import ModelDigest, unknown_digest
from roller_runtime.session.native_runner import Runner
from roller_runtime.session.packed_constants import Constants
from roller_runtime.storage.array_file import ArrayWriter
from roller_runtime.storage.verified_container import OLDEST_SAVED, SAVED, ContainerWriter, write_container
from roller_runtime.version import __version__

ARRAYS, RUNNER = "arrays.bin", "runner.so"


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
        """Write a folder that :func:`roller.load_model` loads."""
        target = path_of(folder, "folder", error=ArtifactError)
        sources = validate_flag(sources, "sources", error=ArtifactError)
        with write_container(target) as work:
            body = {
                **describe_compilation(self.kernels, self.cores, self.model_digest),
                "plan": plan_to_dict(self.plan),
                "kernels": save_kernels(work, self.kernels, self.artifacts if sources else {}),
                "arrays": save_arrays(work, self.constants),
                "runner": None if self.runner is None else write_file(work, RUNNER, self.runner.image),
            }
            work.write_manifest(SAVED, body, OLDEST_SAVED)
        return target


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


def save_arrays(work: ContainerWriter, constants: Constants) -> dict[str, Any]:
    """Write constants, each array once; return the manifest's row."""
    rows: dict[int, list[Any]] = {}
    with ArrayWriter(work.folder / ARRAYS) as writer:

        def add(array: np.ndarray) -> list[Any]:
            if id(array) not in rows:  # kernels of a range share packed constants
                rows[id(array)] = writer.add(array)
            return rows[id(array)]

        named = [[name, add(array)] for name, array in constants.arrays.items()]
        panels = [[key, list(names), list(map(add, arrays))] for (key, names), arrays in constants.panels.items()]
        return {"file": ARRAYS, "bytes": writer.close(), "constants": named, "panels": panels}


def write_file(work: ContainerWriter, name: str, data: bytes) -> dict[str, str]:
    """Write a file; return its name and digest for the manifest."""
    return {"file": name, "sha256": work.add(name, data)}
