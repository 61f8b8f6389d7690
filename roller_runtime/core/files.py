"""Reads regular files only, and writes files atomically."""

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


def check_folder_writable(folder: Path) -> None:
    """Create and remove a subfolder, to detect an unwritable folder before any work is done."""
    # Permission bits are not enough: a file system can be read-only or reject new files, for root too.
    os.rmdir(tempfile.mkdtemp(prefix=".", dir=folder))


def open_regular_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading; raise an error for a folder, or a pipe or device, which may block forever."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0))
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind):
        os.close(descriptor)
        code = errno.EISDIR if stat.S_ISDIR(kind) else errno.EINVAL
        raise OSError(code, "it is a folder" if stat.S_ISDIR(kind) else "it is a pipe or a device", os.fspath(path))
    return os.fdopen(descriptor, "rb")


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Return the contents of a regular file."""
    with open_regular_file(path) as file:
        return file.read()


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the UTF-8 text of a regular file, with Unix line ends."""
    return read_file(path).decode("utf-8").replace("\r\n", "\n")


def make_private_folder(folder: Path) -> None:
    """Create a folder and its missing parents with mode 0700."""
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_private_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


@contextlib.contextmanager
def write_atomically(
    path: Path, *, durable: bool = False, beside: Path | None = None, mode: int = 0o666
) -> Iterator[BinaryIO]:
    """Yield a temporary file that replaces ``path`` when the block succeeds and is removed when it fails."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is a folder, a pipe or a device", os.fspath(path))
    # Not tempfile: the file gets the permissions of any other file the user makes.
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
