"""The kernel cache: what was compiled once is found again, by any process, at any time.

A folder holds one SQLite index and content-addressed artifact files. A file is written whole before its row
is; a row and its file are verified whenever they are read. So a process may be killed at any moment, any file
may be damaged, and the worst that follows is that a kernel is compiled again.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from roller.artifact import KernelArtifact
from roller.core.cache_location import cache_folder
from roller.core.kept_code import UntrustedError, check_folder, clear_kept, own_folder, refusal
from roller.errors import ArtifactError, RollerError, RollerWarning
from roller.runtime.cache_database import Database, Row, is_damage
from roller.runtime.cache_entry import (
    CachedCandidate,
    CacheEntry,
    Measurement,
    artifact_bytes,
    artifact_of,
    candidates_of,
    candidates_text,
    host_fingerprint,
    measurements_of,
)
from roller.runtime.cache_files import DAMAGE, ObjectFiles
from roller.runtime.cache_key import CacheKey
from roller.runtime.cache_limit import is_due, limit_of, trim
from roller.runtime.cache_lock import file_lock, remove_if_free
from roller.runtime.cache_notes import clear_notes

__all__ = ["CacheEntry", "CacheKey", "CachedCandidate", "KernelCache", "Measurement"]

T = TypeVar("T")

#: Beginning of the names of the locks that machines have.
_MACHINE = "machine-"

#: What this process has already reported: folders it cannot use, damaged entries it cannot remove.
_reported: set[str] = set()


class KernelCache:
    """The kernels of one folder, shared by all processes that use it.

    Parameters
    ----------
    folder
        The folder; that of the user (or ``ROLLER_CACHE_DIR``) by default. It is made when something is stored.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder if folder is not None else cache_folder()
        self.files = ObjectFiles(self.folder)
        self.database = Database(self.folder)

    def load(
        self, key: CacheKey, *, measured: bool = False, since: float = math.inf, anew: bool = False
    ) -> CacheEntry | None:
        """Return the entry of a key, verified, or ``None``.

        A damaged entry is reported once (a :class:`RollerWarning`), dropped, and ``None``; a cache, or an entry, that
        cannot be read is reported once and behaves as an empty one, and stays for whoever can.
        """
        row = self._row(key, measured, since)
        if row is not None and anew and row.created_at < since:
            return None
        if row is None:
            return None
        with self._dropping(row):
            return self._entry(row)
        return None

    def artifacts(
        self, keys: Sequence[CacheKey], *, measured: bool = False, since: float = math.inf, anew: bool = False
    ) -> dict[str, KernelArtifact]:
        """Return the kernels of those of many keys that have one, by digest; candidates are not read.

        As :meth:`load`, in one look at the index.
        """
        try:
            rows = self._guarded(lambda: self.database.rows_of(sorted({k.digest for k in keys})))
        except (OSError, sqlite3.Error) as err:
            self._unusable(err)
            return {}
        found: dict[str, KernelArtifact] = {}
        for row in rows:
            if (anew or (measured and not row.measured)) and row.created_at < since:
                continue
            with self._dropping(row):
                found[row.key] = self._artifact(row)
        return found

    @contextlib.contextmanager
    def claim(self, key: CacheKey, *, wait: bool = False) -> Iterator[bool]:
        """Hold the right to compile a key; yields whether it was free (always, where ``wait`` or nobody can lock).

        Whoever holds it looks once more before compiling: another process may just have stored the kernel.
        """
        with contextlib.ExitStack() as stack:
            free = True
            try:
                stack.enter_context(self._lock(key.digest, wait=wait))
            except BlockingIOError:
                free = False
            except OSError as err:
                self._unusable(err)
            yield free

    @contextlib.contextmanager
    def machine(self, *, alone: bool) -> Iterator[None]:
        """Hold this machine: ``alone`` to time on it, beside others to build; waits for those it excludes.

        Several machines may share the folder: each has a lock of its own.
        """
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._lock(f"{_MACHINE}{host_fingerprint()}", shared=not alone, keep=True))
            except OSError as err:
                self._unusable(err)
            yield

    def store(self, key: CacheKey, entry: CacheEntry, measurements: Sequence[Measurement] | None = None) -> bool:
        """Keep the result of a compilation, and what was measured for it."""
        if measurements is None:
            measurements = measurements_of(str(key.parts["spec"]), entry)
        try:
            with self.writing():
                row = self.make_row(key, entry)
                self.put([row], measurements)
            if is_due(self.folder, self.files, self._limit_bytes(), row.artifact_bytes):
                self.trim(keep=[row.artifact])
        except (OSError, sqlite3.Error) as err:
            self._unusable(err)
            return False
        return True

    def load_or_build(
        self, key: CacheKey, build: Callable[[], CacheEntry], *, measured: bool = False, anew: bool = False
    ) -> CacheEntry:
        """Return the entry of a key; where there is none, one process builds it and the others wait for it."""
        asked_at = time.time()
        # The quick look is silent: of many processes that meet a damaged entry, the one that rebuilds it reports.
        row = None if anew else self._row(key, measured)
        if row is not None:
            with contextlib.suppress(OSError, ValueError):
                return self._entry(row)
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._lock(key.digest))
            except OSError as err:
                self._unusable(err)
                return build()
            found = self.load(key, measured=measured, since=asked_at, anew=anew)
            if found is None:
                found = build()
                self.store(key, found)
            return found

    def trim(self, limit_bytes: float | None = None, keep: Sequence[str] = ()) -> tuple[int, int]:
        """Remove what was used least recently until the rest is within the limit; return files removed, and bytes."""
        if not self.folder.exists():
            return 0, 0
        most = limit_of(self.folder)[0] if limit_bytes is None else limit_bytes
        with self.writing(alone=True):
            return self._guarded(lambda: trim(self.database, self.files, most, keep))

    def rows(self) -> list[Row]:
        """Return the rows of all entries, oldest first, as they are stored."""
        return self._guarded(self.database.rows)

    def put(self, rows: Sequence[Row], measurements: Sequence[Measurement]) -> int:
        """Add rows whose files are there already; return how many were written."""
        own_folder(self.folder)
        return self._guarded(lambda: self.database.put(rows, measurements))

    def add_measurements(self, measurements: Sequence[Measurement]) -> bool:
        """Append measurements without an entry (they come from another machine); say whether they were kept."""
        try:
            self.put([], measurements)
        except (OSError, sqlite3.Error) as err:
            self._unusable(err)
            return False
        return True

    def measurements(self, spec_key: str | None = None) -> tuple[Measurement, ...]:
        """Return all kept measurements, or those of one device spec, in the order they were added."""
        try:
            return self._guarded(lambda: self.database.measurements(spec_key))
        except (OSError, sqlite3.Error) as err:
            self._unusable(err)
            return ()

    def info(self) -> dict[str, Any]:
        """Return location, counts and sizes (bytes) as plain data."""
        try:
            entries, measured, measurements = self._guarded(self.database.counts)
        except (OSError, sqlite3.Error) as err:
            raise self.refusal(err) from err
        sizes = [size for _, size in self.files.digests()]
        limit_bytes, source = limit_of(self.folder)
        return {
            "folder": str(self.folder),
            "entries": entries,
            "entries_measured": measured,
            "artifacts": len(sizes),
            "artifact_bytes": sum(sizes),
            "limit_bytes": limit_bytes,
            "limit_from": source,
            "database_bytes": self.database.bytes(),
            "measurements": measurements,
            "damaged_databases": sorted(p.name for p in self.folder.glob("*.damaged-*[0-9]")),
        }

    def clear(self, *, measurements: bool = False) -> int:
        """Remove all kernels, and the measurements too where asked; return how many artifacts went."""
        if not self.folder.exists():
            return 0
        try:
            with self.writing(alone=True):
                self._guarded(lambda: self.database.clear(measurements))
                removed = self.files.clear()
                clear_notes(self.folder)
                clear_kept(self.folder)
            with contextlib.suppress(sqlite3.OperationalError):  # somebody is reading: the space is reused later
                self.database.compact()
        except (OSError, sqlite3.Error) as err:
            raise self.refusal(err) from err
        for path in (self.folder / "locks").glob("*.lock"):
            if path.name not in ("writing.lock", "database.lock") and not path.name.startswith(_MACHINE):
                remove_if_free(path)
        return removed

    def writing(self, *, alone: bool = False) -> contextlib.AbstractContextManager[None]:
        """Hold off whoever removes files; with ``alone``, whoever writes them."""
        return self._lock("writing", shared=not alone, keep=True)

    def _lock(self, name: str, **options: bool) -> contextlib.AbstractContextManager[None]:
        """Return a lock of this folder; ``OSError`` where the folder cannot be made, or others can write it."""
        return file_lock(own_folder(self.folder) / "locks" / f"{name}.lock", **options)

    def make_row(self, key: CacheKey, entry: CacheEntry) -> Row:
        """Write the artifact's file and return the row that refers to it."""
        data = artifact_bytes(entry.artifact)
        digest = self.files.write(data)
        text = candidates_text(entry.candidates)
        name, device = entry.artifact.expression.name, entry.artifact.device
        at = time.time() if entry.stored_at is None else entry.stored_at
        return Row(key.digest, key.text, digest, len(data), text, int(entry.measured), name, device, at)

    def _entry(self, row: Row) -> CacheEntry:
        """Rebuild the entry of a row; raises as :meth:`_artifact`, also where its candidates are damaged."""
        artifact = self._artifact(row)
        return CacheEntry(artifact, candidates_of(row.candidates, str(self.files.path(row.artifact))), row.created_at)

    def _artifact(self, row: Row) -> KernelArtifact:
        """Rebuild the kernel of a row; raises one of ``DAMAGE`` where row or file is damaged, else OSError."""
        if row.sum() != row.checksum:
            raise ValueError("checksum of the row does not match")
        return artifact_of(self.files.read(row.artifact), str(self.files.path(row.artifact)))

    def _row(self, key: CacheKey, measured: bool, since: float = math.inf) -> Row | None:
        try:
            row = self._guarded(lambda: self.database.row(key.digest))
        except (OSError, sqlite3.Error) as err:
            self._unusable(err)
            return None
        return row if row is not None and (row.measured or not measured or row.created_at >= since) else None

    @contextlib.contextmanager
    def _dropping(self, row: Row) -> Iterator[None]:
        """Read a row's kernel within: one that is damaged is dropped; one that cannot be read now is left alone.

        Too many open files, or a right that is missing, say nothing of what lies there, which may have taken minutes
        to measure.
        """
        try:
            yield
        except DAMAGE as err:
            self._drop(row, err)
        except OSError as err:
            self._unusable(err)

    def _drop(self, row: Row, why: Exception) -> None:
        """Forget a damaged entry and say so."""
        try:
            with self.writing(alone=True):
                if not self.files.whole(row.artifact):
                    self.files.remove(row.artifact)
                report = self.database.remove(row.key, row.checksum)  # else another process has, and has said so
        except (OSError, sqlite3.Error):
            report = row.key not in _reported
            _reported.add(row.key)
        if report:
            self._warn(f"{self.folder}: the cached kernel of {row.expression} for {row.device} was damaged ({why}). "
                       "It is compiled again.")  # fmt: skip

    def _guarded(self, operation: Callable[[], T]) -> T:
        """Run a database operation; a damaged file is moved aside, reported, and the operation tried once more."""
        check_folder(self.folder)
        check_folder(self.database.path)
        try:
            return operation()
        except sqlite3.Error as err:
            if not is_damage(err):
                raise
            moved = self.database.set_aside()
            if moved is not None:
                self._warn(f"{self.database.path}: the index of the cache was damaged ({err}). It was moved to "
                           f"{moved.name}; kernels are compiled again as they are asked for.")  # fmt: skip
            return operation()

    def _limit_bytes(self) -> float:
        """Return the size limit; one that nobody can read is reported once, and limits nothing."""
        try:
            return limit_of(self.folder)[0]
        except RollerError as err:
            if str(err) not in _reported:
                _reported.add(str(err))
                self._warn(str(err))
            return math.inf

    def _unusable(self, err: Exception) -> None:
        if str(self.folder) not in _reported:
            _reported.add(str(self.folder))
            self._warn(str(self.refusal(err)))

    def refusal(self, err: Exception) -> ArtifactError:
        """Return the error of a folder that cannot be used."""
        if isinstance(err, UntrustedError):
            return ArtifactError(refusal(err))
        return ArtifactError(
            f"{self.folder}: expected a cache folder that can be read and written, got '{err}'. Kernels compile all "
            "the same; set ROLLER_CACHE_DIR to a writable folder, or pass cache=False."
        )

    @staticmethod
    def _warn(text: str) -> None:
        warnings.warn(text, RollerWarning, stacklevel=2)
