"""Describes a saved model from its manifest, without loading its code, and verifies all its files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roller_runtime.storage.array_file import ArrayReader
from roller_runtime.storage.verified_container import SAVED, Container

__all__ = ["SavedModelDescription", "verify_saved_model"]


@dataclass(frozen=True)
class SavedModelDescription:
    """Facts of a saved model's manifest; those that folders of older releases lack are empty.

    Parameters
    ----------
    folder
        The folder.
    name
        Name of the model.
    format_version
        Version of the format: 2 for fixed shapes, 3 for ranges of sizes.
    roller
        Release of Roller that compiled the model.
    model_sha256
        SHA-256 of the ONNX file or bytes that the model was compiled from, without external weights.
    machine
        System and processor architecture, for example ``("linux", "x86_64")``.
    features
        Processor features that the kernels require, as in ``/proc/cpuinfo``.
    threads
        Number of threads per call.
    ranges
        Smallest and largest value, and step, of each dynamic size.
    kernels
        Number of kernels.
    file_count, array_bytes
        Number of files, and size of the file of weights in bytes.
    """

    folder: Path
    name: str
    format_version: int
    roller: str
    model_sha256: str
    machine: tuple[str, ...]
    features: tuple[str, ...]
    threads: int
    ranges: Mapping[str, tuple[int, int, int]]
    kernels: int
    file_count: int
    array_bytes: int


def verify_saved_model(folder: str | os.PathLike[str]) -> SavedModelDescription:
    """Verify every file of a saved model, including its weights; load none of its code.

    Raises
    ------
    ArtifactError
        If a file is missing, altered or malformed, or the format is newer than this release.
    """
    opened = Container(folder, SAVED)
    with opened.fields():
        body, arrays = opened.manifest, opened.manifest["arrays"]
        for name, digest in opened.files.items():
            if digest is not None:
                opened.read(name)
        reader = ArrayReader(opened.path(arrays["file"]), int(arrays["bytes"]), verify=False)
        for row in _array_rows(arrays):
            reader.get(row)
        reader.check()
        plan = body["plan"]
        name = opened.json(plan["file"])["name"] if "ranges" in body else plan["name"]
        return SavedModelDescription(
            opened.folder, str(name), int(body[SAVED.key]), str(body.get("roller", "")),
            str(body.get("model_sha256") or ""), tuple(map(str, body["machine"])), tuple(map(str, body["features"])),
            int(body["cores"]), {str(n): (int(a), int(b), int(c)) for n, (a, b, c) in body.get("ranges", {}).items()},
            len(body["kernels"]), len(opened.files) + 1, int(arrays["bytes"]),
        )  # fmt: skip


def _array_rows(arrays: Any) -> Iterator[Any]:
    yield from (row for _, row in arrays["constants"])
    for _, _, rows in arrays["panels"]:
        yield from rows
