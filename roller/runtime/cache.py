"""Cache of compiled kernels: one SQLite index and content-addressed artifact files in a folder.

A file is written before its row, and both are verified when they are read. Therefore, any process may be killed and any
file may be damaged; at worst, a kernel is compiled again.
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
from roller.core.trusted_library_cache import (
    UntrustedFileError,
    check_folder_trusted,
    make_trusted_folder,
    refusal,
    remove_cached_libraries,
)
from roller.errors import ArtifactError, RollerError, RollerWarning
from roller.runtime.cache_database import Database, Row, is_damage
from roller.runtime.cache_entry import (
    CachedCandidate,
    CacheEntry,
    Measurement,
    host_fingerprint,
    measurements_of,
    parse_artifact,
    parse_candidates,
    serialise_artifact,
    serialise_candidates,
)
from roller.runtime.cache_key import CacheKey
from roller.runtime.cache_limit import is_trim_due, read_limit_and_origin, trim
from roller.runtime.cache_lock import file_lock, remove_unheld_lock
from roller.runtime.content_addressed_files import DAMAGE, ObjectFiles
from roller.runtime.small_result_cache import clear_small_results

__all__ = ["CacheEntry", "CacheKey", "CachedCandidate", "KernelCache", "Measurement"]

T = TypeVar("T")

#: Prefix of the lock names of machines.
_MACHINE = "machine-"

#: Folders and entries whose problems this process has already reported.
_reported: set[str] = set()


class KernelCache:
    """Kernels in one folder, shared by all processes that use it.

    Parameters
    ----------
    folder
        By default ``ROLLER_CACHE_DIR`` or the user's cache folder; created when the first entry is stored.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder if folder is not None else cache_folder()
        self.files = ObjectFiles(self.folder)
        self.database = Database(self.folder)

    def load(
        self, key: CacheKey, *, measured: bool = False, since: float = math.inf, anew: bool = False
    ) -> CacheEntry | None:
        """Return the verified entry for a key; ``None`` if there is none."""
        # measured: accept only kernels chosen by measurement, or stored since this time (s since the epoch); anew:
        # accept only kernels stored since then. A damaged entry is reported once (a RollerWarning) and dropped. A cache
        # or an entry that cannot be read is reported once, treated as empty, and kept for processes that can read it.
        row = self._row(key, measured, since)
        if row is not None and anew and row.created_at < since:
            return None
        if row is None:
            return None
        with self._drop_if_damaged(row):
            return self._load_entry(row)
        return None

    def artifacts(
        self, keys: Sequence[CacheKey], *, measured: bool = False, since: float = math.inf, anew: bool = False
    ) -> dict[str, KernelArtifact]:
        """Return cached kernels for many keys by digest, with one query and without candidates; see :meth:`load`."""
        try:
            rows = self._guarded(lambda: self.database.rows_of_keys(sorted({k.digest for k in keys})))
        except (OSError, sqlite3.Error) as err:
            self._warn_unusable_once(err)
            return {}
        found: dict[str, KernelArtifact] = {}
        for row in rows:
            if (anew or (measured and not row.measured)) and row.created_at < since:
                continue
            with self._drop_if_damaged(row):
                found[row.key] = self._artifact(row)
        return found

    @contextlib.contextmanager
    def claim(self, key: CacheKey, *, wait: bool = False) -> Iterator[bool]:
        """Lock a key for compilation; yield whether it was free (always with ``wait``, or if locks are unavailable)."""
        # The holder queries the cache again before it compiles: another process may just have stored the kernel.
        with contextlib.ExitStack() as stack:
            free = True
            try:
                stack.enter_context(self._folder_lock(key.digest, wait=wait))
            except BlockingIOError:
                free = False
            except OSError as err:
                self._warn_unusable_once(err)
            yield free

    @contextlib.contextmanager
    def machine(self, *, alone: bool) -> Iterator[None]:
        """Lock this machine, exclusively (``alone``) to time kernels or shared to build; wait for conflicting locks."""
        # Several machines may share the folder, so each has its own lock.
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._folder_lock(f"{_MACHINE}{host_fingerprint()}", shared=not alone, keep=True))
            except OSError as err:
                self._warn_unusable_once(err)
            yield

    def store(self, key: CacheKey, entry: CacheEntry, measurements: Sequence[Measurement] | None = None) -> bool:
        """Store the result of a compilation and its measurements; return whether it was stored."""
        # A predicted choice does not replace a measured one. An entry loaded from the cache keeps its time of storage.
        if measurements is None:
            measurements = measurements_of(str(key.parts["spec"]), entry)
        try:
            with self.lock_for_writing():
                row = self.make_row(key, entry)
                self.put([row], measurements)
            if is_trim_due(self.folder, self.files, self._limit_bytes(), row.artifact_bytes):
                self.trim(keep=[row.artifact])
        except (OSError, sqlite3.Error) as err:
            self._warn_unusable_once(err)
            return False
        return True

    def load_or_build(
        self, key: CacheKey, build: Callable[[], CacheEntry], *, measured: bool = False, anew: bool = False
    ) -> CacheEntry:
        """Return the entry for a key; if there is none, one process builds it while the others wait."""
        # A waiting process takes the other's result even if it is doubtful: measuring again on the same busy machine
        # would not be better. If build raises, the next waiting process tries.
        asked_at = time.time()
        # The first query reports nothing: only the process that rebuilds a damaged entry reports it.
        row = None if anew else self._row(key, measured)
        if row is not None:
            with contextlib.suppress(OSError, ValueError):
                return self._load_entry(row)
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._folder_lock(key.digest))
            except OSError as err:
                self._warn_unusable_once(err)
                return build()
            found = self.load(key, measured=measured, since=asked_at, anew=anew)
            if found is None:
                found = build()
                self.store(key, found)
            return found

    def trim(self, limit_bytes: float | None = None, keep: Sequence[str] = ()) -> tuple[int, int]:
        """Remove the least recently used files until the rest fits; return how many files and bytes are gone."""
        if not self.folder.exists():
            return 0, 0
        most = read_limit_and_origin(self.folder)[0] if limit_bytes is None else limit_bytes
        with self.lock_for_writing(alone=True):
            return self._guarded(lambda: trim(self.database, self.files, most, keep))

    def rows(self) -> list[Row]:
        """Return the rows of all entries, oldest first."""
        return self._guarded(self.database.rows)

    def put(self, rows: Sequence[Row], measurements: Sequence[Measurement]) -> int:
        """Add rows whose files already exist; return the number of rows written."""
        make_trusted_folder(self.folder)
        return self._guarded(lambda: self.database.put(rows, measurements))

    def add_measurements(self, measurements: Sequence[Measurement]) -> bool:
        """Append measurements from another machine without adding an entry; return whether they were stored."""
        try:
            self.put([], measurements)
        except (OSError, sqlite3.Error) as err:
            self._warn_unusable_once(err)
            return False
        return True

    def measurements(self, spec_key: str | None = None) -> tuple[Measurement, ...]:
        """Return all measurements, or those of one device spec, in insertion order."""
        try:
            return self._guarded(lambda: self.database.measurements(spec_key))
        except (OSError, sqlite3.Error) as err:
            self._warn_unusable_once(err)
            return ()

    def info(self) -> dict[str, Any]:
        """Return the location, the counts and the sizes, in bytes, as plain data."""
        try:
            entries, measured, measurements = self._guarded(self.database.counts)
        except (OSError, sqlite3.Error) as err:
            raise self.unusable_folder_error(err) from err
        sizes = [size for _, size in self.files.digests_and_sizes()]
        limit_bytes, source = read_limit_and_origin(self.folder)
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
        """Remove all kernels and, if ``measurements``, all measurements; return the number of artifacts removed."""
        if not self.folder.exists():
            return 0
        try:
            with self.lock_for_writing(alone=True):
                self._guarded(lambda: self.database.clear(measurements))
                removed = self.files.clear()
                clear_small_results(self.folder)
                remove_cached_libraries(self.folder)
            with contextlib.suppress(sqlite3.OperationalError):  # another process reads; the space is reused later
                self.database.compact()
        except (OSError, sqlite3.Error) as err:
            raise self.unusable_folder_error(err) from err
        for path in (self.folder / "locks").glob("*.lock"):
            if path.name not in ("writing.lock", "database.lock") and not path.name.startswith(_MACHINE):
                remove_unheld_lock(path)
        return removed

    def lock_for_writing(self, *, alone: bool = False) -> contextlib.AbstractContextManager[None]:
        """Keep other processes from removing files and, if ``alone``, from writing."""
        return self._folder_lock("writing", shared=not alone, keep=True)

    def _folder_lock(self, name: str, **options: bool) -> contextlib.AbstractContextManager[None]:
        """Return a lock in this folder; raise ``OSError`` if the folder cannot be created or is writable by others."""
        return file_lock(make_trusted_folder(self.folder) / "locks" / f"{name}.lock", **options)

    def make_row(self, key: CacheKey, entry: CacheEntry) -> Row:
        """Write the artifact's file and return the row that refers to it."""
        data = serialise_artifact(entry.artifact)
        digest = self.files.write(data)
        text = serialise_candidates(entry.candidates)
        name, device = entry.artifact.expression.name, entry.artifact.device
        at = time.time() if entry.stored_at is None else entry.stored_at
        return Row(key.digest, key.text, digest, len(data), text, int(entry.measured), name, device, at)

    def _load_entry(self, row: Row) -> CacheEntry:
        """Load the entry of a row; raise the errors of :meth:`_artifact`, also for damaged candidates."""
        artifact = self._artifact(row)
        return CacheEntry(
            artifact, parse_candidates(row.candidates, str(self.files.path(row.artifact))), row.created_at
        )

    def _artifact(self, row: Row) -> KernelArtifact:
        """Load the kernel of a row; raise an error in ``DAMAGE`` if row or file is damaged, otherwise ``OSError``."""
        if row.sum() != row.checksum:
            raise ValueError("checksum of the row does not match")
        return parse_artifact(self.files.read(row.artifact), str(self.files.path(row.artifact)))

    def _row(self, key: CacheKey, measured: bool, since: float = math.inf) -> Row | None:
        try:
            row = self._guarded(lambda: self.database.row(key.digest))
        except (OSError, sqlite3.Error) as err:
            self._warn_unusable_once(err)
            return None
        return row if row is not None and (row.measured or not measured or row.created_at >= since) else None

    @contextlib.contextmanager
    def _drop_if_damaged(self, row: Row) -> Iterator[None]:
        """Drop the row if the block finds it damaged; keep it if it merely cannot be read now."""
        try:
            yield
        except DAMAGE as err:
            self._drop_damaged_row(row, err)
        except OSError as err:
            self._warn_unusable_once(err)

    def _drop_damaged_row(self, row: Row, why: Exception) -> None:
        """Remove a damaged entry and report it."""
        try:
            with self.lock_for_writing(alone=True):
                if not self.files.whole(row.artifact):
                    self.files.remove(row.artifact)
                report = self.database.remove(row.key, row.checksum)  # else another process removed and reported it
        except (OSError, sqlite3.Error):
            report = row.key not in _reported
            _reported.add(row.key)
        if report:
            self._warn(f"{self.folder}: the cached kernel of {row.expression} for {row.device} was damaged ({why}). "
                       "It is compiled again.")  # fmt: skip

    def _guarded(self, operation: Callable[[], T]) -> T:
        """Run a database operation; move a damaged file aside, report it, and retry the operation once."""
        check_folder_trusted(self.folder)
        check_folder_trusted(self.database.path)
        try:
            return operation()
        except sqlite3.Error as err:
            if not is_damage(err):
                raise
            moved = self.database.set_aside_if_damaged()
            if moved is not None:
                self._warn(f"{self.database.path}: the index of the cache was damaged ({err}). It was moved to "
                           f"{moved.name}; kernels are compiled again as they are asked for.")  # fmt: skip
            return operation()

    def _limit_bytes(self) -> float:
        """Return the size limit; report an unreadable limit once and treat it as infinite."""
        try:
            return read_limit_and_origin(self.folder)[0]
        except RollerError as err:
            if str(err) not in _reported:
                _reported.add(str(err))
                self._warn(str(err))
            return math.inf

    def _warn_unusable_once(self, err: Exception) -> None:
        if str(self.folder) not in _reported:
            _reported.add(str(self.folder))
            self._warn(str(self.unusable_folder_error(err)))

    def unusable_folder_error(self, err: Exception) -> ArtifactError:
        """Return the error for a folder that cannot be used."""
        if isinstance(err, UntrustedFileError):
            return ArtifactError(refusal(err))
        return ArtifactError(
            f"{self.folder}: expected a cache folder that can be read and written, got '{err}'. Kernels compile all "
            "the same; set ROLLER_CACHE_DIR to a writable folder, or pass cache=False."
        )

    @staticmethod
    def _warn(text: str) -> None:
        warnings.warn(text, RollerWarning, stacklevel=2)
