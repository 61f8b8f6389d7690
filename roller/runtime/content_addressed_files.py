"""Content-addressed files: named by the SHA-256 of their bytes, written atomically."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from roller_runtime.core.files import make_private_folder, read_file, write_atomically
from roller_runtime.storage.verified_container import content_sha256

#: Age, in seconds, at which a temporary file counts as left behind by a killed process.
_STALE_S = 3600.0
#: Time, in seconds, within which a repeated read does not update the time of last use.
_RECENT_S = 60.0


#: Errors of :meth:`ObjectFiles.read` for a damaged or missing file; any other OSError is no sign of damage.
DAMAGE = (ValueError, FileNotFoundError)


class ObjectFiles:
    """Artifact files of a cache folder, in ``objects/ab/abcdef...``."""

    def __init__(self, folder: Path) -> None:
        self._objects = folder / "objects"
        self._temporary = folder / "tmp"

    def path(self, digest: str) -> Path:
        """Return the path for a digest."""
        return self._objects / digest[:2] / digest

    def read(self, digest: str) -> bytes:
        """Return the verified bytes of a file and update its time of last use."""
        path = self.path(digest)
        data = read_file(path)
        if content_sha256(data) != digest:
            raise ValueError(f"checksum of {path.name[:12]} does not match ({len(data)} bytes)")
        with contextlib.suppress(OSError):  # in a read-only folder nothing is removed by age either
            if time.time() - path.stat().st_mtime > _RECENT_S:
                os.utime(path)
        return data

    def used_at(self, digest: str) -> float | None:
        """Return a file's time of last use, in seconds since the epoch (to a minute); ``None`` if it is missing."""
        try:
            return self.path(digest).stat().st_mtime
        except OSError:
            return None

    def whole(self, digest: str) -> bool:
        """Return whether the file exists undamaged."""
        try:
            self.read(digest)
        except DAMAGE:
            return False
        return True

    def write(self, data: bytes) -> str:
        """Store bytes atomically and return their digest."""
        digest = content_sha256(data)
        path = self.path(digest)
        with contextlib.suppress(OSError):  # an unreadable file is replaced by the same bytes
            if self.whole(digest):
                return digest
        make_private_folder(path.parent)
        make_private_folder(self._temporary)
        self._remove_old_temporary_files()
        with write_atomically(path, durable=True, beside=self._temporary) as file:
            file.write(data)
        _sync_folder(path.parent)
        return digest

    def remove(self, digest: str) -> None:
        """Remove a file if it exists."""
        self.path(digest).unlink(missing_ok=True)

    def digests_and_sizes(self) -> Iterator[tuple[str, int]]:
        """Yield the digest and the size, in bytes, of every file."""
        for path in sorted(self._objects.glob("??/*")):
            with contextlib.suppress(OSError):
                yield path.name, path.stat().st_size

    def clear(self) -> int:
        """Remove all files, including temporary files; return the number of artifacts removed."""
        removed = 0
        for digest, _ in list(self.digests_and_sizes()):
            self.remove(digest)
            removed += 1
        self._remove_old_temporary_files(0.0)
        return removed

    def _remove_old_temporary_files(self, age_s: float = _STALE_S) -> None:
        now = time.time()
        with contextlib.suppress(OSError):
            for path in self._temporary.iterdir():
                if now - path.stat().st_mtime >= age_s:
                    path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Flush a folder so that a rename survives a power failure, if the system supports it."""
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
