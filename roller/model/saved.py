"""Saved models: a folder from which a session starts in under a second, with no compiler.

``model.json`` holds the plan, what runs each kernel, and where every array lies; ``kernels/`` the libraries;
``arrays.bin`` what no call changes, packed as the kernels read it, mapped into memory and shared by all processes
that load it; ``runner.so`` the native runner.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roller.artifact import KernelArtifact
from roller.errors import ArtifactError, ModelError
from roller.model.arrays import ArrayReader, ArrayWriter
from roller.model.constants import Constants, PanelKey
from roller.model.gpu_bundle import is_model_bundle, load_bundle
from roller.model.kernels import KernelCode, LoadedKernel, load_kernel
from roller.model.plan_data import plan_from_dict, plan_to_dict
from roller.model.runner import load_runner
from roller.model.session import Session, checked_threads
from roller.processor import missing
from roller.runtime.bundle_format import checksum, whole_folder
from roller.validation import flag
from roller.validation import path as path_of

if TYPE_CHECKING:
    from roller.model.gpu_device import Device
    from roller.model.gpu_runner import GpuSession

FORMAT = "roller-model"
VERSION = 2
MANIFEST, ARRAYS, RUNNER = "model.json", "arrays.bin", "runner.so"


def save_session(session: Session, folder: str | os.PathLike[str], *, sources: bool = True) -> Path:
    """Write a session for :func:`load_model`; the folder appears whole or not at all.

    Parameters
    ----------
    session
        Any session of this machine.
    folder
        Must not exist, or be empty.
    sources
        Whether programs, estimates and sources of the kernels go with it, for people; running needs none of them.

    Returns
    -------
    pathlib.Path
        The folder.

    Raises
    ------
    ArtifactError
        Where the folder holds something or cannot be written.
    """
    target = path_of(folder, "folder", error=ArtifactError)
    sources = flag(sources, "sources", error=ArtifactError)
    with whole_folder(target) as work:
        (work / "kernels").mkdir()
        body = {
            "format": FORMAT,
            "format_version": VERSION,
            "machine": [sys.platform, platform.machine()],
            "features": sorted({f for k in session.kernels.values() for f in k.code.features}),
            "cores": session.cores,
            "plan": plan_to_dict(session.plan),
            "kernels": [_save_kernel(session, n, key, work, sources) for n, key in enumerate(session.kernels)],
            "arrays": _save_arrays(session.constants, work / ARRAYS),
            "runner": None if session.runner is None else _save_file(work, RUNNER, session.runner.image),
        }
        plain = json.loads(json.dumps(body))  # tuples become the lists that a reader sees
        text = json.dumps({**plain, "checksum": checksum(plain)})
        (work / MANIFEST).write_text(text, encoding="utf-8")
    return target


def _save_file(work: Path, name: str, data: bytes) -> dict[str, str]:
    (work / name).write_bytes(data)
    return {"file": name, "sha256": hashlib.sha256(data).hexdigest()}


def _save_kernel(session: Session, number: int, key: str, work: Path, sources: bool) -> dict[str, Any]:
    stem = f"kernels/{number:04d}"
    row = {"key": key, "code": session.kernels[key].code.to_dict()}
    row |= _save_file(work, f"{stem}.so", session.kernels[key].library)
    artifact = session.artifacts.get(key) if sources else None
    if artifact is not None:
        text = json.dumps(replace(artifact, binary=None).to_dict())
        row["artifact"] = _save_file(work, f"{stem}.json", text.encode())
    return row


def _save_arrays(constants: Constants, path: Path) -> dict[str, Any]:
    with ArrayWriter(path) as writer:
        named = [[name, writer.add(array)] for name, array in constants.arrays.items()]
        panels = [[key, list(names), [writer.add(a) for a in arrays]]
                  for (key, names), arrays in constants.panels.items()]  # fmt: skip
        return {"file": ARRAYS, "bytes": writer.close(), "constants": named, "panels": panels}


def load_model(
    folder: str | os.PathLike[str],
    *,
    verify: bool = True,
    device: str | Device | None = None,
    threads: int | None = None,
) -> Session | GpuSession:
    """Load a model that was saved: nothing is compiled, nothing packed, and weights are mapped, not read.

    Parameters
    ----------
    folder
        What a session's ``save`` wrote. Its kernels are code: load only what comes from whom you trust.
    verify
        Whether the weights are checked against their checksums (several GB a second once they are in memory). All
        other files are always checked; of a model for a GPU the weights too.
    device
        The GPU that a model for one runs on, ``"cuda:1"`` for example; the first of its kind by default.
    threads
        Threads a call of a processor's model may use, the caller among them; by default as many as it was compiled
        for. Kernels stay as they were built: compile with ``threads=`` for those that suit the number best.

    Returns
    -------
    Session or GpuSession
        The latter where the model was compiled for a GPU.

    Raises
    ------
    ArtifactError
        Where the folder is damaged, incomplete, of a newer format, or of another kind of machine; where ``threads`` is
        no positive number, or given for a GPU.
    LaunchError
        Where TVM's runtime is not installed.
    """
    where = path_of(folder, "folder", error=ArtifactError, what="the folder of a saved model")
    verify = flag(verify, "verify", error=ArtifactError)
    if threads is not None:
        threads = checked_threads(threads, "gpu" if is_model_bundle(where) else "cpu")
    if is_model_bundle(where):
        return load_bundle(where, device)
    try:
        body = _manifest(where)
        if device is not None:
            raise ArtifactError(f"{where}: device: expected none for a model of this processor. Leave it out.")
        return _session(where, body, verify, threads)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, MemoryError) as err:
        if isinstance(err, ArtifactError):
            raise
        what = str(err) if isinstance(err, ModelError) else repr(err)
        raise ArtifactError(f"{where}: the model is damaged ({what}). Save it again.") from err


def _manifest(where: Path) -> dict[str, Any]:
    path = where / MANIFEST
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except OSError as err:
        raise ArtifactError(f"{path}: cannot read it ({err.strerror}). Pass the folder that save wrote.") from err
    except (ValueError, RecursionError) as err:
        raise ArtifactError(f"{path}: not valid JSON ({err}). Save the model again.") from err
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise ArtifactError(f"{path}: expected a model of roller, got another kind of file. Pass the right folder.")
    version = body.get("format_version")
    if version != VERSION:  # the native runner in the folder speaks no other
        newer = isinstance(version, int) and version > VERSION
        remedy = "Upgrade roller to load it." if newer else "Save the model again with this roller."
        raise ArtifactError(f"{path}: expected format {VERSION}, got {version}. {remedy}")
    found = body.pop("checksum", None)
    if found != checksum(body):
        raise ArtifactError(f"{path}: checksum does not match; the file is damaged. Save the model again.")
    here = [sys.platform, platform.machine()]
    if body.get("machine") != here:
        raise ArtifactError(f"{path}: saved for {body.get('machine')}, this is {here}. Compile the model here.")
    lacking = missing(str(feature) for feature in body["features"])
    if lacking:
        raise ArtifactError(
            f"{path}: expected a processor with {', '.join(body['features'])}, got one without {', '.join(lacking)}. "
            "Compile the model on this machine, or for a device whose 'mcpu' both have."
        )
    return body


def _session(where: Path, body: Mapping[str, Any], verify: bool, threads: int | None) -> Session:
    arrays = body["arrays"]
    reader = ArrayReader(_inside(where, arrays["file"]), int(arrays["bytes"]), verify=False)
    constants = Constants(
        {str(name): reader.get(row) for name, row in arrays["constants"]},
        {_panel_key(key, names): tuple(reader.get(r) for r in rows) for key, names, rows in arrays["panels"]},
    )
    if verify:
        reader.check()
    runner = None if body["runner"] is None else load_runner(_checked(where, body["runner"]))
    launch = runner.launch if runner is not None else None
    kernels = {str(row["key"]): _kernel(where, row, launch) for row in body["kernels"]}
    plan = plan_from_dict(body["plan"], {}, str(where / MANIFEST))
    artifacts = SavedArtifacts(where, {str(row["key"]): row.get("artifact") for row in body["kernels"]})
    cores = int(body["cores"]) if threads is None else threads
    return Session.restored(plan, kernels, constants, cores, runner, artifacts)


def _panel_key(key: Any, names: Any) -> PanelKey:
    return str(key), tuple(str(n) for n in names)


def _kernel(where: Path, row: Mapping[str, Any], launch: int | None) -> LoadedKernel:
    return load_kernel(KernelCode.from_dict(row["code"]), _checked(where, row), launch)


def _checked(where: Path, row: Mapping[str, Any]) -> bytes:
    """Return the content of a file, which is what its row says: what is checked is what is loaded."""
    path = _inside(where, row["file"])
    try:
        data = path.read_bytes()
    except OSError as err:
        raise ArtifactError(f"{path}: cannot read it ({err.strerror}). Save the model again.") from err
    if hashlib.sha256(data).hexdigest() != row["sha256"]:
        raise ArtifactError(f"{path}: checksum does not match; the file is damaged. Save the model again.")
    return data


def _inside(where: Path, name: Any) -> Path:
    """Return the path of a file of the folder, links followed.

    Raises
    ------
    ArtifactError
        Where it lies outside.
    """
    path = Path(where, str(name)).resolve()
    if not path.is_relative_to(where.resolve()):
        raise ArtifactError(f"{where / MANIFEST}: file '{name}' lies outside the folder. Do not trust this model.")
    return path


class SavedArtifacts(Mapping[str, KernelArtifact]):
    """Programs, estimates and sources of a saved model's kernels, read when somebody looks.

    Parameters
    ----------
    where
        The folder.
    rows
        File of each kernel's artifact; ``None`` where it was saved without.
    """

    def __init__(self, where: Path, rows: Mapping[str, Any]) -> None:
        self._where = where
        self._rows = {key: row for key, row in rows.items() if row is not None}

    def __getitem__(self, key: str) -> KernelArtifact:
        """Return an artifact, without its binary."""
        row = self._rows[key]
        return KernelArtifact.from_dict(json.loads(_checked(self._where, row)), str(self._where / row["file"]))

    def __iter__(self) -> Iterator[str]:
        """Yield the keys."""
        return iter(self._rows)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._rows)
