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

from roller.artifact import KernelArtifact
from roller.core.validation import validate_flag
from roller.core.validation import validate_path as path_of
from roller.errors import ArtifactError
from roller.models.graph.execution_plan import Plan
from roller.models.graph.plan_json import plan_to_dict
from roller.models.session.array_file import ArrayWriter
from roller.models.session.cpu_kernel_loading import LoadedKernel
from roller.models.session.native_runner import Runner
from roller.models.session.packed_constants import Constants
from roller.runtime.verified_container import SAVED, ContainerWriter, write_container

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
    """

    plan: Plan
    kernels: Mapping[str, LoadedKernel]
    constants: Constants
    cores: int
    runner: Runner | None
    artifacts: Mapping[str, KernelArtifact]

    def save(self, folder: str | os.PathLike[str], *, sources: bool) -> Path:
        """Write a folder that :func:`roller.load_model` loads."""
        target = path_of(folder, "folder", error=ArtifactError)
        sources = validate_flag(sources, "sources", error=ArtifactError)
        with write_container(target) as work:
            body = {
                "machine": [sys.platform, platform.machine()],
                "features": sorted({f for k in self.kernels.values() for f in k.code.features}),
                "cores": self.cores,
                "plan": plan_to_dict(self.plan),
                "kernels": [self._save_kernel(n, key, work, sources) for n, key in enumerate(self.kernels)],
                "arrays": self._save_arrays(work.folder / ARRAYS),
                "runner": None if self.runner is None else _write_file(work, RUNNER, self.runner.image),
            }
            work.write_manifest(SAVED, body)
        return target

    def _save_kernel(self, number: int, key: str, work: ContainerWriter, sources: bool) -> dict[str, Any]:
        stem, kernel = f"kernels/{number:04d}", self.kernels[key]
        row = {"key": key, "code": kernel.code.to_dict(), **_write_file(work, f"{stem}.so", kernel.library)}
        artifact = self.artifacts.get(key) if sources else None
        if artifact is not None:
            text = json.dumps(replace(artifact, binary=None).to_dict())
            row["artifact"] = _write_file(work, f"{stem}.json", text.encode())
        return row

    def _save_arrays(self, path: Path) -> dict[str, Any]:
        with ArrayWriter(path) as writer:
            named = [[name, writer.add(array)] for name, array in self.constants.arrays.items()]
            panels = [[key, list(names), [writer.add(a) for a in arrays]]
                      for (key, names), arrays in self.constants.panels.items()]  # fmt: skip
            return {"file": ARRAYS, "bytes": writer.close(), "constants": named, "panels": panels}


def _write_file(work: ContainerWriter, name: str, data: bytes) -> dict[str, str]:
    return {"file": name, "sha256": work.add(name, data)}
