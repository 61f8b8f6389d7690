"""Content-addressed files: named by the SHA-256 of their bytes, whole or absent."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from roller.core.files import private_folder, read_file, whole_file

#: A temporary file older than this was left by a process that was killed (seconds).
_STALE_S = 3600.0
#: A file that was read so recently is not marked as read once more (seconds).
_RECENT_S = 60.0


#: What :meth:`ObjectFiles.read` raises where a file is damaged or gone; any other OSError says nothing of the file.
DAMAGE = (ValueError, FileNotFoundError)


class ObjectFiles:
    """The artifact files of a cache folder.

    Parameters
    ----------
    folder
        The cache folder; files lie in ``objects/ab/abcdef...`` under it.
    """

    def __init__(self, folder: Path) -> None:
        self._objects = folder / "objects"
        self._temporary = folder / "tmp"

    def path(self, digest: str) -> Path:
        """Return where the file of a digest lies."""
        return self._objects / digest[:2] / digest

    def read(self, digest: str) -> bytes:
        """Return the bytes of a file, verified."""
        path = self.path(digest)
        data = read_file(path)
        if digest_of(data) != digest:
            raise ValueError(f"checksum of {path.name[:12]} does not match ({len(data)} bytes)")
        with contextlib.suppress(OSError):  # where nobody may write, nobody removes anything either
            if time.time() - path.stat().st_mtime > _RECENT_S:
                os.utime(path)
        return data

    def used_at(self, digest: str) -> float | None:
        """Return when a file was last read (s since the epoch, to a minute), ``None`` where it is not there."""
        try:
            return self.path(digest).stat().st_mtime
        except OSError:
            return None

    def whole(self, digest: str) -> bool:
        """Whether the file is there and undamaged."""
        try:
            self.read(digest)
        except DAMAGE:
            return False
        return True

    def write(self, data: bytes) -> str:
        """Store bytes and return their digest; a process killed at any moment leaves the file whole or absent."""
        digest = digest_of(data)
        path = self.path(digest)
        with contextlib.suppress(OSError):  # what cannot be read is replaced by the same bytes
            if self.whole(digest):
                return digest
        private_folder(path.parent)
        private_folder(self._temporary)
        self._prune()
        with whole_file(path, durable=True, beside=self._temporary) as file:
            file.write(data)
        _sync_folder(path.parent)
        return digest

    def remove(self, digest: str) -> None:
        """Remove a file, if it is there."""
        self.path(digest).unlink(missing_ok=True)

    def digests(self) -> Iterator[tuple[str, int]]:
        """Yield ``(digest, bytes)`` of every file."""
        for path in sorted(self._objects.glob("??/*")):
            with contextlib.suppress(OSError):
                yield path.name, path.stat().st_size

    def clear(self) -> int:
        """Remove all files, temporary ones included; return how many artifacts were removed."""
        removed = 0
        for digest, _ in list(self.digests()):
            self.remove(digest)
            removed += 1
        self._prune(0.0)
        return removed

    def _prune(self, age_s: float = _STALE_S) -> None:
        now = time.time()
        with contextlib.suppress(OSError):
            for path in self._temporary.iterdir():
                if now - path.stat().st_mtime >= age_s:
                    path.unlink(missing_ok=True)


def digest_of(data: bytes) -> str:
    """Return the SHA-256 of ``data`` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power failure, where the system can."""
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
