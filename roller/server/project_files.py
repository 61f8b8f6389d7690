"""Reads and writes the files of a project; all are below one folder and have relative names."""

from __future__ import annotations

import hashlib
import io
import math
import os
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roller.errors import RollerError, shown
from roller.insight.trace.project_folder import find_project_folder
from roller_runtime.core.files import read_file, write_atomically

#: Maximum size of a source file in bytes.
_LARGEST = 4 << 20


class ProjectError(RollerError):
    """Raised if a file of the project is missing, cannot be read or written, or has changed since it was read."""


@dataclass(frozen=True)
class SourceFile:
    """A source file: project-relative name with ``/``, text with the file's own line ends, and digest of its bytes."""

    name: str
    text: str
    digest: str


class Project:
    """Project of an entry file: the nearest folder with a ``pyproject.toml`` or similar, or else the file's folder."""

    def __init__(self, entry: str | Path) -> None:
        whole = Path(entry).resolve()
        if not whole.is_file() or whole.suffix != ".py":
            raise ProjectError(f"{entry}: expected a Python file, got none. Name the file with the training step.")
        self.entry = whole
        self.folder = find_project_folder(whole.parent)
        self.entry_name = whole.relative_to(self.folder).as_posix()

    def path_of(self, name: str) -> Path:
        """Return the path of a Python file of the project; raise an error for other names."""
        wanted = f"expected a Python file below {shown(self.folder.name)}, relative to it"
        if not isinstance(name, str) or not name or "\0" in name or "\\" in name or name.startswith("/"):
            raise ProjectError(f"{shown(name)}: {wanted}. Name one, such as {self.entry_name}.")
        try:
            path = (self.folder / name).resolve()
            is_file = path.is_file()
        except (OSError, RuntimeError, ValueError):
            is_file = False
        if not is_file or not path.is_relative_to(self.folder) or path.suffix != ".py":
            raise ProjectError(f"{shown(name)}: {wanted}, got none. Name one, such as {self.entry_name}.")
        return path

    def name_of(self, path: str | Path) -> str | None:
        """Return the project-relative name of a path; ``None`` for a path outside the project."""
        try:
            return Path(path).resolve().relative_to(self.folder).as_posix()
        except (OSError, RuntimeError, ValueError):
            return None

    def relative(self, data: Any) -> Any:
        """Return JSON data in which project paths are relative and non-finite numbers are replaced by null."""
        if isinstance(data, str):
            return data.replace(f"{self.folder}{os.sep}", "") if str(self.folder) in data else data
        if isinstance(data, float):
            return data if math.isfinite(data) else None
        if isinstance(data, Mapping):
            return {name: self.relative(value) for name, value in data.items()}
        return [self.relative(one) for one in data] if isinstance(data, (list, tuple)) else data

    def read(self, name: str) -> SourceFile:
        """Read a file of the project."""
        path = self.path_of(name)
        try:
            if path.stat().st_size > _LARGEST:
                raise ProjectError(f"{name}: expected at most {_LARGEST >> 20} MiB of source, got more. Name another.")
            data = read_file(path)
        except OSError as error:
            raise ProjectError(f"{name}: expected a file that can be read, got {shown(error.strerror)}.") from error
        return SourceFile(name, _decode_source(data, name), digest_of_bytes(data))

    def write(self, name: str, text: str, base: str) -> SourceFile:
        """Write a file of the project atomically; ``base`` is the digest of the text that was edited."""
        path = self.path_of(name)
        if self.read(name).digest != base:
            raise ProjectError(f"{name}: expected the file as it was read, got a newer one. Read it again, then save.")
        data = _encode_source(text, name)
        try:
            mode = path.stat().st_mode & 0o7777
            if not mode & 0o222 or not os.access(path, os.W_OK):
                raise ProjectError(f"{name}: expected a file that may be written, got one that may only be read.")
            with write_atomically(path) as file:
                os.fchmod(file.fileno(), mode)
                file.write(data)
        except OSError as error:
            raise ProjectError(f"{name}: expected a file that can be written, got {shown(error.strerror)}.") from error
        return SourceFile(name, text, digest_of_bytes(data))


def _declared_encoding(data: bytes) -> str:
    """Return the encoding that a source declares (PEP 263); a byte order mark is left in the text."""
    found, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    return "utf-8" if found == "utf-8-sig" else found


def _decode_source(data: bytes, name: str) -> str:
    encoding = "UTF-8"
    try:
        encoding = _declared_encoding(data)
        text = data.decode(encoding)
        is_same = text.encode(encoding) == data
    except (SyntaxError, LookupError, ValueError):
        is_same = False
    if not is_same:
        raise ProjectError(f"{name}: expected text in {encoding}, got other bytes. Declare the encoding, or use UTF-8.")
    return text


def _encode_source(text: str, name: str) -> bytes:
    encoding = "UTF-8"
    try:
        encoding = _declared_encoding(text.encode(errors="replace"))
        return text.encode(encoding)
    except UnicodeEncodeError as error:
        what = "half a character" if encoding.upper() == "UTF-8" else shown(text[error.start])
        raise ProjectError(
            f"{name}: expected text, got {what} at {error.start}. Save what {encoding.upper()} can say."
        ) from None
    except (SyntaxError, LookupError, ValueError):
        raise ProjectError(f"{name}: expected an encoding that Python knows, got another. Use UTF-8.") from None


def digest_of_bytes(data: bytes) -> str:
    """Return the digest of a file's bytes."""
    return hashlib.sha256(data).hexdigest()[:32]


def file_mtime_size_inode(path: str | Path) -> tuple[int, int, int]:
    """Return a file's modification time, size and inode, to detect changes; ``(0, -1, 0)`` if there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return (0, -1, 0)
    return (found.st_mtime_ns, found.st_size, found.st_ino)
