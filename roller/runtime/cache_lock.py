"""Locks between processes: ``flock`` on small files, which the operating system releases when their holder dies."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from roller_runtime.core.files import make_private_folder

try:
    import fcntl
except ImportError:  # without flock every process builds its own kernels
    fcntl = None  # type: ignore[assignment]

#: File descriptors of the locks that this process holds.
_held: set[int] = set()


def _close_locks_in_child() -> None:
    """Close a forked child's copies of the descriptors; otherwise, an orphan would keep its dead parent's lock."""
    for fd in _held:
        with contextlib.suppress(OSError):
            os.close(fd)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_locks_in_child)


@contextlib.contextmanager
def file_lock(path: Path, *, shared: bool = False, keep: bool = False, wait: bool = True) -> Iterator[None]:
    """Hold a lock against other processes and threads on this machine; ``keep`` leaves the file in place."""
    # Without keep the file is removed on release; a process that waited for it notices and locks the new file. Without
    # wait, a held lock raises BlockingIOError.
    fd = _acquire(path, shared, wait)
    owner = os.getpid()
    _held.add(fd)
    try:
        yield
    finally:
        if os.getpid() == owner:  # a forked child does not own the lock
            if not keep and not shared:
                with contextlib.suppress(OSError):
                    path.unlink()
            _held.discard(fd)
            os.close(fd)


def _acquire(path: Path, shared: bool, wait: bool) -> int:
    make_private_folder(path.parent)
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if fcntl is not None:
                fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
            if _same_file(fd, path):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def remove_unheld_lock(path: Path) -> bool:
    """Remove a lock file whose holder was killed; return whether it is gone."""
    if fcntl is None:
        return False
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _same_file(fd, path):
            path.unlink()
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _same_file(fd: int, path: Path) -> bool:
    """Return whether ``path`` still names the opened file; another holder may have removed it."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    mine = os.fstat(fd)
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)
