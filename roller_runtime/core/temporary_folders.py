"""Temporary folders that do not outlast killed processes: the next process that needs one removes abandoned ones."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from roller_runtime.errors import LaunchError

_PREFIX, _LOCK = "roller-scratch-", ".roller-scratch"
#: Minimum age, in seconds, of a folder to remove: its lock file is created before it is locked.
_YOUNG_S = 60.0


@contextlib.contextmanager
def scratch_folder(purpose: str = "") -> Iterator[str]:
    """Yield a new temporary folder, which is removed at the end."""
    remove_abandoned_folders(tempfile.gettempdir())
    with tempfile.TemporaryDirectory(prefix=_PREFIX + purpose, ignore_cleanup_errors=True) as folder:
        held = os.open(Path(folder, _LOCK), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            with contextlib.suppress(OSError):  # without locks no process removes folders either
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield folder
        finally:
            os.close(held)


class ScratchLibraries:
    """Temporary copies of libraries in one folder, which the context removes: a loaded library needs no file."""

    def __init__(self) -> None:
        self._held, self._folder, self._count = contextlib.ExitStack(), "", 0

    def __enter__(self) -> ScratchLibraries:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def write(self, data: bytes, where: str, name: str = "kernel") -> Path:
        """Return the path of a library with the given bytes; raise a ``LaunchError`` if it cannot be written."""
        try:
            self._folder = self._folder or self._held.enter_context(scratch_folder())
            # The loader returns the library that it has of the same path, so every path is new.
            path = Path(self._folder, f"{name}_{self._count}.so")
            self._count += 1
            path.write_bytes(data)
        except OSError as err:  # the file system is full or read-only
            raise LaunchError(f"{where}: cannot write a temporary copy of its library ({err}). Set TMPDIR.") from err
        return path


@functools.cache
def remove_abandoned_folders(where: str) -> None:
    """Remove this user's unlocked scratch folders, once per process."""
    with contextlib.suppress(OSError):
        for path in Path(where).glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):
                _remove_if_unlocked(path)


def _remove_if_unlocked(path: Path) -> None:
    state = path.lstat()
    if path.is_symlink() or state.st_uid != os.getuid() or time.time() - state.st_mtime < _YOUNG_S:
        return
    held = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(held)
