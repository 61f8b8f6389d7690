"""Bundles on disk: a manifest with checksums, and one compressed file of candidates per operator.

An operator's file holds each source, expression and binary once, however many candidates share it. Everything
is verified before it is used: a bundle travels between machines, and runs code on them.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from roller.artifact import KernelArtifact
from roller.errors import ArtifactError
from roller.files import try_folder, whole_file
from roller.validation import path as path_of

FORMAT, VERSION = "roller-bundle", 1
MANIFEST = "manifest.json"
_MAGIC = b"RLB1"
_HEAD = struct.Struct("<4sI")
#: An operator's file never unpacks to more than this (bytes): a damaged one must not fill the memory.
_LARGEST = 1 << 28
#: What differs from build to build of one kernel, and is left out: equal models make equal bundles.
_OF_THE_BUILD = ("log", "seconds", "prove_s")

Candidates = Sequence[tuple[str, KernelArtifact]]


@dataclass(frozen=True)
class OperatorEntry:
    """One operator of a bundle.

    Parameters
    ----------
    id
        Its name in the list of operators.
    expression
        One line for people.
    file, sha256, size_bytes
        Where its candidates are, relative to the bundle, and what they must be.
    candidates
        Their ids, best estimate first.
    predicted_s
        Predicted seconds, one per candidate.
    binaries
        How many of them, from the first, carry a binary; the others only source.
    failed
        ``(id, reason)`` of candidates that did not lower or build.
    flops
        Floating-point operations of one call, where known.
    proved
        What the emulator knows of each candidate (``"emulated"``, ``"not proved (reason)"``); empty where nobody asked.
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


def pack(candidates: Candidates, binaries: int | None = None) -> bytes:
    """Return the file of one operator.

    Parameters
    ----------
    candidates
        Ids and artifacts, best estimate first.
    binaries
        Keep the binaries of this many, from the first; all when ``None``.
    """
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


def unpack(data: bytes, where: str) -> list[tuple[str, KernelArtifact]]:
    """Return the candidates of an operator's file; the inverse of :func:`pack`.

    Raises
    ------
    ArtifactError
        Where the file is damaged.
    """
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
            artifact = KernelArtifact.from_dict(row, f"{where}: {name}")
            out.append((name, artifact if blob is None else artifact.with_binary(blobs[blob])))
        return out
    except (lzma.LZMAError, struct.error, KeyError, IndexError, TypeError, ValueError) as err:
        raise ArtifactError(f"{where}: the operator's file is damaged ({err}). Copy the bundle again.") from err


def write_bundle(
    folder: Path, header: Mapping[str, Any], operators: Sequence[tuple[OperatorEntry, bytes]]
) -> dict[str, Any]:
    """Write a bundle; the folder appears whole or not at all.

    Parameters
    ----------
    folder
        Must not exist, or be empty.
    header
        What the manifest says of the bundle as a whole.
    operators
        Entries (their ``file``, ``sha256`` and ``size_bytes`` are filled in here) and the files' contents.

    Returns
    -------
    dict
        The manifest.

    Raises
    ------
    ArtifactError
        Where the folder cannot be written.
    """
    with whole_folder(folder) as work:
        (work / "ops").mkdir()
        rows = []
        for n, (entry, data) in enumerate(operators):
            file = f"ops/{n:04d}.xz"
            (work / file).write_bytes(data)
            digest = hashlib.sha256(data).hexdigest()
            rows.append(asdict(replace(entry, file=file, sha256=digest, size_bytes=len(data))))
        return write_manifest(work, {"format": FORMAT, "version": VERSION, **header, "operators": rows})


def write_manifest(work: Path, body: Mapping[str, Any]) -> dict[str, Any]:
    """Write and return the manifest of a bundle: ``body`` with its checksum."""
    plain = json.loads(json.dumps(body))  # tuples become the lists that a reader sees
    manifest = {**plain, "checksum": checksum(plain)}
    (work / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return manifest


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder to fill, which becomes ``folder`` at the end; nothing is left of it where filling fails.

    Raises
    ------
    ArtifactError
        Where ``folder`` exists and holds something, or cannot be written.
    """
    check_target(folder)
    try:
        work = Path(tempfile.mkdtemp(dir=folder.absolute().parent, prefix=f".{folder.name}."))
    except OSError as err:
        raise ArtifactError(f"{folder}: cannot write ({err.strerror}). Choose a writable folder.") from err
    try:
        yield work
        work.chmod(0o755)
        if folder.exists():
            folder.rmdir()
        os.replace(work, folder)
    except BaseException as err:
        shutil.rmtree(work, ignore_errors=True)
        if isinstance(err, OSError):
            raise ArtifactError(f"{folder}: cannot write ({err.strerror}). Choose a writable folder.") from err
        raise


def check_target(folder: Path) -> None:
    """Refuse an output folder that exists and holds something or cannot be written, before any work goes into it.

    Raises
    ------
    ArtifactError
        Where it does or cannot, or its parent does not exist.
    """
    if not folder.absolute().parent.is_dir():
        raise ArtifactError(f"{folder}: its parent folder does not exist. Create it first.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ArtifactError(f"{folder}: exists and is not empty. Remove it, or choose another folder.")
    try:
        try_folder(folder.absolute().parent)
    except OSError as err:
        raise ArtifactError(f"{folder}: cannot write ({err.strerror}). Choose a writable folder.") from err


def checksum(body: Mapping[str, Any]) -> str:
    """Return the SHA-256 of JSON data in canonical form, its own checksum left out."""
    rest = {k: v for k, v in body.items() if k != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def write_checked(path: Path, body: Mapping[str, Any]) -> dict[str, Any]:
    """Write results as JSON with their checksum, whole or not at all; return them as a reader sees them.

    Raises
    ------
    ArtifactError
        Where the file cannot be written.
    """
    plain = json.loads(json.dumps(body))
    results = {**plain, "checksum": checksum(plain)}
    try:
        with whole_file(path, durable=True) as file:
            file.write((json.dumps(results, indent=1) + "\n").encode())
    except OSError as err:
        raise ArtifactError(f"{path}: cannot write ({err.strerror}). Choose a writable path for --json.") from err
    return results


def earlier_results(path: Path, kind: str, version: int, header: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the results that an earlier run wrote, ``None`` where there are none.

    Raises
    ------
    ArtifactError
        Where they are damaged, or of another run than ``header`` describes.
    """
    if not path.exists():
        return None
    earlier = read_checked(path, kind, version)
    if any(earlier.get(k) != v for k, v in header.items()):
        raise ArtifactError(f"{path}: holds the results of another run. Remove it, or choose another --json.")
    return earlier


def read_checked(path: Path, kind: str, version: int) -> dict[str, Any]:
    """Return a JSON document that names its format and carries a checksum.

    Raises
    ------
    ArtifactError
        Where it is missing, of another kind, of a newer version, or altered.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as err:
        raise ArtifactError(f"{path}: cannot read ({err}). Check the path.") from err
    except json.JSONDecodeError as err:
        raise ArtifactError(f"{path}: not valid JSON ({err.msg} at character {err.pos}). Copy it again.") from err
    except (ValueError, RecursionError) as err:
        raise ArtifactError(f"{path}: not valid JSON ({err}). Copy it again.") from err
    if not isinstance(data, dict) or data.get("format") != kind:
        raise ArtifactError(f"{path}: expected a file of format '{kind}', got something else. Check the path.")
    if not isinstance(data.get("version"), int) or data["version"] > version:
        raise ArtifactError(f"{path}: expected version {version} or older, got {data.get('version')}. Upgrade roller.")
    if data.get("checksum") != checksum(data):
        raise ArtifactError(f"{path}: checksum does not match; the file was altered or damaged. Copy it again.")
    return data


def _entry(row: Mapping[str, Any]) -> OperatorEntry:
    """Rebuild an entry from JSON, whose lists become tuples."""
    lists: dict[str, Any] = {name: tuple(row[name]) for name in ("candidates", "predicted_s")}
    lists["proved"] = tuple(row.get("proved", ()))  # bundles of before it was known have none
    lists["failed"] = tuple((name, reason) for name, reason in row["failed"])
    return OperatorEntry(**{**row, **lists})


class Bundle:
    """A bundle that was opened: its manifest verified, its operators verified as they are loaded.

    Parameters
    ----------
    folder
        The bundle.

    Raises
    ------
    ArtifactError
        Where the manifest is missing, altered, or names a file outside the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder = path_of(folder, "bundle", error=ArtifactError, what="the folder of a bundle")
        if not folder.is_dir():
            raise ArtifactError(f"{folder}: expected a bundle's folder, found none. Make one: `roller bundle create`.")
        self.manifest = read_checked(folder / MANIFEST, FORMAT, VERSION)
        try:
            self.operators = tuple(_entry(row) for row in self.manifest["operators"])
            self.checksum: str = self.manifest["checksum"]
            self.device: str = self.manifest["device"]
            self.arch: str = self.manifest["spec"]["target"]["arch"]
        except (KeyError, TypeError) as err:
            raise ArtifactError(
                f"{folder / MANIFEST}: a field is missing or malformed ({err!r}). Copy it again."
            ) from err
        for entry in self.operators:
            self._path(entry)

    def load(self, entry: OperatorEntry) -> list[tuple[str, KernelArtifact]]:
        """Return the candidates of an operator, best estimate first.

        Raises
        ------
        ArtifactError
            Where its file is missing, altered or damaged.
        """
        path = self._path(entry)
        try:
            data = path.read_bytes()
        except OSError as err:
            raise ArtifactError(f"{path}: cannot read ({err.strerror}). Copy the bundle again.") from err
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise ArtifactError(
                f"{path}: checksum does not match the manifest; the file was altered or damaged. Copy the bundle again."
            )
        return unpack(data, str(path))

    def _path(self, entry: OperatorEntry) -> Path:
        """Return the file of an operator; inside the folder, links followed, or refused."""
        relative = PurePosixPath(entry.file)
        path = self.folder / relative
        inside = not relative.is_absolute() and ".." not in relative.parts and "\\" not in entry.file
        if not inside or not path.resolve().is_relative_to(self.folder.resolve()):
            raise ArtifactError(
                f"{self.folder}: operator '{entry.id}' names the file '{entry.file}', which is outside the bundle. "
                "The bundle is refused."
            )
        return path
