"""Folders and documents that travel between machines, with a verified kind, version and checksums.

A container is a folder whose manifest contains its kind, its format version, the SHA-256 of every file, and a checksum
of its own. It is written atomically. Saved models for a processor are one kind of container (:data:`SAVED`);
``roller`` has others.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from roller_runtime.core.files import check_folder_writable, read_file, read_text, write_atomically
from roller_runtime.core.validation import validate_path as path_of
from roller_runtime.errors import MALFORMED, ArtifactError, ModelError

MANIFEST = "manifest.json"
#: Maximum length of a file name, and of what temporary names next to a folder add to the folder's name, in bytes.
_NAME_BYTES, _BESIDE_BYTES = 255, 20
#: SHA-256 of every file by name; ``None`` for a file of arrays, each of which has its own checksum.
Files: TypeAlias = dict[str, "str | None"]


@dataclass(frozen=True)
class DocumentKind:
    """A kind of document, or of folder whose manifest is such a document.

    Parameters
    ----------
    format
        Name in the document's ``format`` field.
    version, oldest
        Newest and oldest versions that can be read.
    what
        Noun for messages.
    remedy, make
        Remedies for messages if the document is damaged or missing.
    files
        Function that returns the files that a manifest of this kind lists; old manifests stay readable.
    manifest, key
        File name of the manifest, and name of its version field.
    """

    format: str
    version: int
    what: str
    remedy: str = "Copy it again."
    make: str = "Check the path."
    files: Callable[[Mapping[str, Any]], Files] = lambda manifest: {}
    manifest: str = MANIFEST
    key: str = "version"
    oldest: int = 1

    def read(self, path: Path) -> dict[str, Any]:
        """Read and verify a document of this kind."""
        try:
            data: dict[str, Any] = json.loads(read_text(path))
        except OSError as err:
            raise ArtifactError(f"{path}: cannot read it ({err.strerror}). {self.make}") from err
        except (ValueError, RecursionError) as err:
            raise ArtifactError(f"{path}: not valid JSON ({err}). {self.remedy}") from err
        found = data.get("format") if isinstance(data, dict) else None
        if found != self.format:
            another = f"'{found}'" if isinstance(found, str) and found.isprintable() else "another kind of file"
            raise ArtifactError(f"{path}: expected {self.what} ('{self.format}'), got {another}. Check the path.")
        version = data.get(self.key)
        if type(version) is not int or not self.oldest <= version <= self.version:
            older = type(version) is int and version < self.oldest
            wanted = f"version {self.version}" + (f" or {self.oldest}" if self.oldest > 1 else " or older")
            remedy = f"{self.remedy[:-1]} with this roller." if older else "Upgrade roller."
            raise ArtifactError(f"{path}: expected {wanted}, got {version}. {remedy}")
        if data.get("checksum") != checksum(data):
            raise ArtifactError(f"{path}: checksum does not match; it was altered or damaged. {self.remedy}")
        return data

    def with_checksum(self, body: Mapping[str, Any], version: int | None = None) -> dict[str, Any]:
        """Return a document as a reader sees it: with its kind, version and checksum."""
        named = {"format": self.format, self.key: version or self.version, **body}
        plain = json.loads(json.dumps(named))  # converts tuples to lists, as a reader sees them
        return {**plain, "checksum": checksum(plain)}

    def write(self, path: Path, body: Mapping[str, Any]) -> dict[str, Any]:
        """Write a document atomically; return it as a reader sees it."""
        document = self.with_checksum(body)
        try:
            with write_atomically(path, durable=True) as file:
                file.write((json.dumps(document, indent=1) + "\n").encode())
        except OSError as err:
            raise ArtifactError(f"{path}: cannot write ({err.strerror}). Choose a writable path for --json.") from err
        return document

    def is_kind_of_folder(self, folder: Path) -> bool:
        """Return whether a folder claims to be of this kind; do not verify anything."""
        folder = path_of(folder, "folder", error=ArtifactError, what=f"the folder of {self.what}")
        try:
            data = json.loads(read_text(folder / self.manifest))
        except (OSError, ValueError, RecursionError):
            return False
        return isinstance(data, dict) and data.get("format") == self.format


def _saved_model_files(manifest: Mapping[str, Any]) -> Files:
    kernels = manifest["kernels"]
    plan = manifest["plan"] if "ranges" in manifest else None
    known = (manifest["arrays"], plan, *(manifest.get(name) for name in ("runner", "prover", "native")))
    rows = (*known, *kernels, *(row.get("artifact") for row in kernels))
    return {row["file"]: row.get("sha256") for row in rows if row is not None}


#: Versions of saved models for a processor: for fixed sizes, and for ranges. The native runner is in the folder.
OLDEST_SAVED, SAVED_RANGES = 2, 3
SAVED = DocumentKind("roller-model", SAVED_RANGES, "a saved model", "Save the model again.",
             "Pass the folder that save wrote.", _saved_model_files, "model.json", "format_version",
             oldest=OLDEST_SAVED)  # fmt: skip


class Container:
    """An open folder; its manifest is verified at once, each other file when it is read.

    Raises
    ------
    ArtifactError
        If the manifest is missing, altered, malformed, too new or of another kind, or names a file outside the folder.
    """

    def __init__(self, folder: str | os.PathLike[str], kind: DocumentKind) -> None:
        self.kind = kind
        self.folder = folder = path_of(folder, "folder", error=ArtifactError, what=f"the folder of {kind.what}")
        if not folder.is_dir():
            raise ArtifactError(f"{folder}: expected the folder of {kind.what}, found none. {kind.make}")
        self.manifest = kind.read(folder / kind.manifest)
        self.checksum: str = self.manifest["checksum"]
        with self.fields():
            self.files = kind.files(self.manifest)
            self._root = folder.resolve()
            for name in self.files:
                self.path(name)

    @contextmanager
    def fields(self) -> Iterator[None]:
        """Turn errors from missing or malformed fields of the manifest into an :class:`ArtifactError`."""
        try:
            yield
        except ArtifactError:
            raise
        except (LookupError, ValueError, MemoryError, *MALFORMED) as err:
            what = str(err) if isinstance(err, ModelError) else f"a field is missing or malformed: {err!r}"
            place = self.folder / self.kind.manifest
            raise ArtifactError(f"{place}: the manifest is damaged ({what}). {self.kind.remedy}") from err

    def path(self, name: str) -> Path:
        """Return the path of a file listed in the manifest, whether or not it exists."""
        if name not in self.files:
            raise ArtifactError(f"{self.folder}: expected the manifest to list '{name}', found nothing of it. "
                                f"{self.kind.remedy}")  # fmt: skip
        relative = PurePosixPath(name)
        inside = not relative.is_absolute() and ".." not in relative.parts and "\\" not in name
        steps = itertools.accumulate(relative.parts, os.path.join, initial=str(self._root))
        if inside and any(map(_is_link, itertools.islice(steps, 1, None))):  # most folders have none to resolve
            with suppress(RuntimeError):  # links in a circle: reading the file raises an error
                inside = (self.folder / relative).resolve().is_relative_to(self._root)
        if not inside:
            raise ArtifactError(
                f"{self.folder / self.kind.manifest}: file '{name}' lies outside the folder. Do not trust it."
            )
        return self.folder / relative

    def read(self, name: str) -> bytes:
        """Read a file and verify its digest; return the verified bytes."""
        path = self.path(name)
        try:
            data = read_file(path)
        except OSError as err:
            raise ArtifactError(f"{path}: cannot read it ({err.strerror}). {self.kind.remedy}") from err
        if content_sha256(data) != self.files[name]:
            raise ArtifactError(
                f"{path}: checksum does not match the manifest; it was altered or damaged. {self.kind.remedy}"
            )
        return data

    def json(self, name: str) -> Any:
        """Read a JSON file; see :meth:`read`."""
        try:
            return json.loads(self.read(name))
        except (ValueError, RecursionError) as err:
            if isinstance(err, ArtifactError):
                raise
            raise ArtifactError(f"{self.folder / name}: not valid JSON ({err}). {self.kind.remedy}") from err


def _is_link(path: str) -> bool:
    """Return whether a path is a link; raise ``ValueError`` if no file can have it."""
    try:
        return stat.S_ISLNK(os.lstat(path).st_mode)
    except OSError:
        return False


class ContainerWriter:
    """A folder that is being filled; see :func:`write_container`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, name: str, data: bytes) -> str:
        """Write a file; return its SHA-256."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return content_sha256(data)

    def write_manifest(self, kind: DocumentKind, body: Mapping[str, Any], version: int | None = None) -> dict[str, Any]:
        """Write and return the manifest, by default in the kind's newest version."""
        manifest = kind.with_checksum(body, version)
        (self.folder / kind.manifest).write_text(json.dumps(manifest) + "\n", encoding="utf-8")
        return manifest


@contextmanager
def write_container(folder: Path) -> Iterator[ContainerWriter]:
    """Yield a folder to fill, which is renamed to ``folder`` at the end and removed on failure."""
    check_output_folder(folder)
    work = None
    try:
        work = Path(tempfile.mkdtemp(dir=folder.absolute().parent, prefix=f".{folder.name}."))
        yield ContainerWriter(work)
        work.chmod(0o755)
        if folder.exists():
            folder.rmdir()
        os.replace(work, folder)
    except BaseException as err:
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)
        if isinstance(err, OSError):
            raise _unwritable_error(folder, err) from err
        raise


def check_folder_name(folder: Path) -> None:
    """Raise an error if a folder's name is too long for temporary names next to it."""
    if len(os.fsencode(folder.absolute().name)) + _BESIDE_BYTES > _NAME_BYTES:
        raise ArtifactError(f"{folder}: its name is too long. Choose a shorter one.")


def check_output_folder(folder: Path) -> None:
    """Raise an error if an output folder is not empty or cannot be written, before any work is done."""
    check_folder_name(folder)
    if not folder.absolute().parent.is_dir():
        raise ArtifactError(f"{folder}: its parent folder does not exist. Create it first.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ArtifactError(f"{folder}: exists and is not empty. Remove it, or choose another folder.")
    try:
        check_folder_writable(folder.absolute().parent)
    except OSError as err:
        raise _unwritable_error(folder, err) from err


def _unwritable_error(folder: Path, err: OSError) -> ArtifactError:
    return ArtifactError(f"{folder}: cannot write ({err.strerror}). Choose a writable folder.")


def content_sha256(data: bytes) -> str:
    """Return the SHA-256 of a file's content."""
    return hashlib.sha256(data).hexdigest()


def checksum(body: Mapping[str, Any]) -> str:
    """Return the SHA-256 of JSON data in canonical form, without the checksum field."""
    rest = {k: v for k, v in body.items() if k != "checksum"}
    return content_sha256(json.dumps(rest, sort_keys=True).encode())
