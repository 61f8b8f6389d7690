"""Bundles of kernels: a container with one compressed file of candidates per operator.

An operator's file contains each source, expression and binary once, however many candidates share it.
"""

from __future__ import annotations

import json
import lzma
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from roller.artifact import KernelArtifact
from roller.errors import MALFORMED, ArtifactError, shown
from roller.runtime.container_kinds import BUNDLE
from roller.runtime.device_container import DeviceContainer
from roller_runtime.storage.verified_container import write_container

_MAGIC = b"RLB1"
_HEAD = struct.Struct("<4sI")
#: Largest unpacked size of an operator's file in bytes, so that a damaged one cannot exhaust memory.
_LARGEST = 1 << 28
#: Keys of ``build`` that differ between builds of one kernel; they are left out, so that equal models give equal
#: bundles.
_OF_THE_BUILD = ("log", "seconds", "prove_s")

Candidates = Sequence[tuple[str, KernelArtifact]]


@dataclass(frozen=True)
class OperatorEntry:
    """One operator of a bundle.

    Parameters
    ----------
    file, sha256, size_bytes
        Path (relative to the bundle), digest and size of the file with the operator's candidates.
    candidates, predicted_s
        Ids and predicted seconds of the candidates, best estimate first.
    binaries
        Number of candidates, counted from the first, that include a binary; the others include only source.
    failed
        ``(id, reason)`` for each candidate that did not lower or build.
    flops
        Number of floating-point operations per call; ``None`` if unknown.
    proved
        Result of each candidate's proof (``"emulated"``, ``"not proved (reason)"``); empty if no proofs were requested.
    """

    id: str
    expression: str
    file: str
    sha256: str
    size_bytes: int
    candidates: tuple[str, ...]
    predicted_s: tuple[float, ...]
    binaries: int
    failed: tuple[tuple[str, str], ...] = ()
    flops: float | None = None
    proved: tuple[str, ...] = ()


def pack_candidates(candidates: Candidates, binaries: int | None = None) -> bytes:
    """Serialize the candidates of one operator, with binaries for only the first ``binaries`` (all if ``None``)."""
    shared: dict[str, int] = {}
    blobs: dict[bytes, int] = {}
    rows = []

    def share(value: Any) -> int:
        return shared.setdefault(json.dumps(value, sort_keys=True), len(shared))

    for rank, (name, artifact) in enumerate(candidates):
        keep = artifact.binary if binaries is None or rank < binaries else None
        info = {k: v for k, v in artifact.build.items() if k not in _OF_THE_BUILD}
        data = replace(artifact, binary=None, build=info).to_dict()
        data["expression"] = share(data["expression"])
        data["program"]["expr"] = share(data["program"]["expr"])
        for launch in data["launches"]:
            launch["source"] = share(launch["source"])
        rows.append([name, data, None if keep is None else blobs.setdefault(keep, len(blobs))])
    header = {"shared": [json.loads(s) for s in shared], "candidates": rows, "blobs": [len(b) for b in blobs]}
    text = json.dumps(header, separators=(",", ":")).encode()
    return lzma.compress(b"".join((_HEAD.pack(_MAGIC, len(text)), text, *blobs)), preset=6)


def unpack_candidates(data: bytes, where: str) -> list[tuple[str, KernelArtifact]]:
    """Return the candidates of an operator's file; the inverse of :func:`pack_candidates`."""
    try:
        stream = lzma.LZMADecompressor()
        raw = stream.decompress(data, max_length=_LARGEST)
        if not stream.eof:
            raise ValueError("it is cut short, or larger than any operator's")
        magic, size = _HEAD.unpack_from(raw)
        if magic != _MAGIC:
            raise ValueError("it is another kind of file")
        header = json.loads(raw[_HEAD.size : _HEAD.size + size])
        shared, at, blobs = header["shared"], _HEAD.size + size, []
        for length in header["blobs"]:
            blobs.append(raw[at : at + length])
            at += length
        out = []
        for name, row, blob in header["candidates"]:
            row["expression"] = shared[row["expression"]]
            row["program"]["expr"] = shared[row["program"]["expr"]]
            for launch in row["launches"]:
                launch["source"] = shared[launch["source"]]
            if not isinstance(name, str):
                raise TypeError(f"candidate {shown(name)}")
            artifact = KernelArtifact.from_dict(row, f"{where}: {name}")
            out.append((name, artifact if blob is None else artifact.with_binary(blobs[blob])))
        return out
    except (lzma.LZMAError, struct.error, ValueError, MemoryError, *MALFORMED) as err:
        raise ArtifactError(f"{where}: the operator's file is damaged ({err}). Copy the bundle again.") from err


def write_bundle(
    folder: Path, header: Mapping[str, Any], operators: Sequence[tuple[OperatorEntry, bytes]]
) -> dict[str, Any]:
    """Write a bundle atomically; return its manifest."""
    with write_container(folder) as work:
        rows = []
        for n, (entry, data) in enumerate(operators):
            file = f"ops/{n:04d}.xz"
            rows.append(asdict(replace(entry, file=file, sha256=work.add(file, data), size_bytes=len(data))))
        return work.write_manifest(BUNDLE, {**header, "operators": rows})


def _entry_from_json(row: Mapping[str, Any]) -> OperatorEntry:
    """Build an entry from JSON, converting lists to tuples and checking types."""
    lists: dict[str, Any] = {name: tuple(row[name]) for name in ("candidates", "predicted_s")}
    lists["proved"] = tuple(row.get("proved", ()))  # missing in old bundles
    lists["failed"] = tuple((str(name), str(reason)) for name, reason in row["failed"])
    made = OperatorEntry(**{**row, **lists})
    numbers, texts = (made.binaries, made.size_bytes), (made.id, made.expression, made.file, made.sha256)
    times = (*made.predicted_s, *(() if made.flops is None else (made.flops,)))
    for wanted, values in ((str, (*texts, *made.candidates, *made.proved)), (int, numbers), ((int, float), times)):
        for value in values:
            if not isinstance(value, wanted) or isinstance(value, bool):
                raise TypeError(f"operator {shown(made.id)}: {shown(value)}")
    if len(set(made.candidates)) != len(made.candidates) or len(made.candidates) != len(made.predicted_s):
        raise ValueError(f"operator {shown(made.id)}: candidates twice, or without a prediction")
    return made


class Bundle(DeviceContainer):
    """An open bundle of kernels; see :class:`~roller_runtime.storage.verified_container.Container`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, BUNDLE)
        with self.fields():
            self.operators = tuple(_entry_from_json(row) for row in self.manifest["operators"])
            self.device = self.manifest["device"]
            self.arch = self.manifest["spec"]["target"]["arch"]
            if not isinstance(self.device, str) or not isinstance(self.arch, str):
                raise TypeError(f"device {shown(self.device)}, {shown(self.arch)}")
            if len({e.id for e in self.operators}) != len(self.operators):
                raise ValueError("two operators of one id")

    def verify(self) -> str:
        """Read every file; return a description of the contents."""
        count = sum(len(self.load(e)) for e in self.operators)
        return f"{len(self.operators)} operators, {count} candidates for {self.device}"

    def load(self, entry: OperatorEntry) -> list[tuple[str, KernelArtifact]]:
        """Return the candidates of an operator, best estimate first."""
        found = unpack_candidates(self.read(entry.file), str(self.folder / entry.file))
        names = tuple(name for name, _ in found)
        if names != entry.candidates:
            raise ArtifactError(f"{self.folder / entry.file}: expected the candidates {shown(entry.candidates)} of the "
                                f"manifest, got {shown(names)}. {self.kind.remedy}")  # fmt: skip
        return found
