"""Files that appear whole or not at all, whoever is killed or interrupted while they are written."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def try_folder(folder: Path) -> None:
    """Make and remove something in a folder, so that one that cannot be written is known before any work.

    Permissions alone do not tell: file systems are read-only, or take no files, for root too.
    """
    os.rmdir(tempfile.mkdtemp(prefix=".", dir=folder))


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file to read; a pipe or a device, which may never end or never begin, is none."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0))
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind):
        os.close(descriptor)
        code = errno.EISDIR if stat.S_ISDIR(kind) else errno.EINVAL
        raise OSError(code, "it is a folder" if stat.S_ISDIR(kind) else "it is a pipe or a device", os.fspath(path))
    return os.fdopen(descriptor, "rb")


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a file; see :func:`open_file`."""
    with open_file(path) as file:
        return file.read()


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a file; see :func:`open_file`. ``UnicodeDecodeError`` where it is none."""
    return read_file(path).decode("utf-8").replace("\r\n", "\n")


def private_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for this user alone, whatever files are made for."""
    if folder.is_dir():
        return
    if folder.parent != folder:
        private_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


@contextlib.contextmanager
def whole_file(
    path: Path, *, durable: bool = False, beside: Path | None = None, mode: int = 0o666
) -> Iterator[BinaryIO]:
    """Yield a file to fill, which becomes ``path`` at the end; nothing is left of it where filling fails.

    It gets the permissions of any other file the user makes, unlike those of ``tempfile``.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is a folder, a pipe or a device", os.fspath(path))
    folder = path.absolute().parent if beside is None else beside
    temporary = folder / f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}"
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
