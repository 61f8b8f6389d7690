"""Index of the cache: one SQLite file in WAL mode, opened for each operation.

Opening takes well under a millisecond, so no connection crosses a fork, and a killed process holds no locks. SQLite
rolls back an unfinished transaction when the file is next opened.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from roller.runtime.cache_entry import Measurement
from roller.runtime.cache_lock import file_lock

#: Version of the tables; each version has its own file, so that different releases can share a folder.
LAYOUT = 1
_BUSY_S = 60.0
#: Maximum number of values in one statement; SQLite before 3.32 allows 999.
_VARIABLES = 900
#: Whether ``os.access`` can test the effective user's rights, which apply when files are opened.
_AS_OPENED = os.access in os.supports_effective_ids
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, parts TEXT NOT NULL, artifact TEXT NOT NULL, "
    "artifact_bytes INTEGER NOT NULL, candidates TEXT NOT NULL, measured INTEGER NOT NULL, expression TEXT NOT NULL, "
    "device TEXT NOT NULL, created_at REAL NOT NULL, checksum TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS measurements (id INTEGER PRIMARY KEY AUTOINCREMENT, candidate TEXT NOT NULL, "
    "spec TEXT NOT NULL, device TEXT NOT NULL, measured_s REAL NOT NULL, predicted_s REAL, status TEXT NOT NULL, "
    "measured_at REAL NOT NULL, host TEXT NOT NULL, detail TEXT NOT NULL, "
    "UNIQUE (candidate, spec, measured_at, host))",
    f"PRAGMA user_version = {LAYOUT}",
)
_COLUMNS = "key, parts, artifact, artifact_bytes, candidates, measured, expression, device, created_at, checksum"
_FIELDS = "candidate, spec, device, measured_s, predicted_s, status, measured_at, host, detail"


@dataclass(frozen=True)
class Row:
    """A row of ``entries``; ``candidates`` and ``parts`` are JSON texts, and ``artifact`` is a digest."""

    key: str
    parts: str
    artifact: str
    artifact_bytes: int
    candidates: str
    measured: int
    expression: str
    device: str
    created_at: float
    checksum: str = ""

    def sum(self) -> str:
        """Return the SHA-256 hash of all other fields."""
        return hashlib.sha256(json.dumps(astuple(self)[:-1]).encode()).hexdigest()


class Database:
    """The SQLite file of a cache folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"cache-v{LAYOUT}.sqlite"
        self._lock = folder / "locks" / "database.lock"

    def row(self, key: str) -> Row | None:
        """Return the row for a key; ``None`` if there is none."""
        with self._reading_connection() as db:
            found = db.execute(f"SELECT {_COLUMNS} FROM entries WHERE key = ?", (key,)).fetchone() if db else None
        return Row(*found) if found else None

    def rows_of_keys(self, keys: Sequence[str]) -> list[Row]:
        """Return the rows that exist for the given keys."""
        found: list[Any] = []
        with self._reading_connection() as db:
            for start in range(0, len(keys) if db else 0, _VARIABLES):
                some = keys[start : start + _VARIABLES]
                marks = ", ".join("?" * len(some))
                assert db is not None
                found += db.execute(f"SELECT {_COLUMNS} FROM entries WHERE key IN ({marks})", some).fetchall()
        return [Row(*r) for r in found]

    def rows(self) -> list[Row]:
        """Return all rows, oldest first."""
        with self._reading_connection() as db:
            found = db.execute(f"SELECT {_COLUMNS} FROM entries ORDER BY created_at, key").fetchall() if db else []
        return [Row(*r) for r in found]

    def counts(self) -> tuple[int, int, int]:
        """Return the numbers of entries, measured entries and measurements."""
        with self._reading_connection() as db:
            if db is None:
                return 0, 0, 0
            entries, measured = db.execute("SELECT count(*), coalesce(sum(measured), 0) FROM entries").fetchone()
            return entries, measured, db.execute("SELECT count(*) FROM measurements").fetchone()[0]

    def measurements(self, spec_key: str | None = None) -> tuple[Measurement, ...]:
        """Return all measurements, or those of one spec, in insertion order."""
        with self._reading_connection() as db:
            query = f"SELECT {_FIELDS} FROM measurements WHERE ?1 IS NULL OR spec = ?1 ORDER BY id"
            found = db.execute(query, (spec_key,)).fetchall() if db else []
        return tuple(replace(Measurement(*r), detail=tuple((k, v) for k, v in json.loads(r[-1]))) for r in found)

    def put(self, rows: Iterable[Row], measurements: Iterable[Measurement]) -> int:
        """Add rows and measurements in one transaction; return the number of rows written."""
        # A predicted choice never replaces a measured one, and known measurements are not added twice.
        write = (
            f"INSERT INTO entries ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET "
            + ", ".join(f"{c} = excluded.{c}" for c in _COLUMNS.split(", ")[1:])
            + " WHERE excluded.measured >= entries.measured"
        )
        with self._write_transaction() as db:
            count = sum(db.execute(write, (*astuple(r)[:-1], r.sum())).rowcount for r in rows)
            db.executemany(
                f"INSERT OR IGNORE INTO measurements ({_FIELDS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [(*astuple(m)[:-1], json.dumps(m.detail)) for m in measurements],
            )
        return count

    def remove(self, key: str, checksum: str) -> bool:
        """Remove the row for a key if it has this checksum; return whether it was removed."""
        with self._write_transaction() as db:
            return db.execute("DELETE FROM entries WHERE key = ? AND checksum = ?", (key, checksum)).rowcount > 0

    def forget(self, artifacts: Sequence[str]) -> None:
        """Remove the rows that refer to any of these files."""
        with self._write_transaction() as db:
            db.executemany("DELETE FROM entries WHERE artifact = ?", [(digest,) for digest in artifacts])

    def clear(self, measurements: bool) -> None:
        """Remove all entries and, if ``measurements``, all measurements."""
        with self._write_transaction() as db:
            db.execute("DELETE FROM entries")
            if measurements:
                db.execute("DELETE FROM measurements")

    def compact(self) -> None:
        """Return the space of removed rows to the file system."""
        with contextlib.closing(self._open()) as db:
            db.execute("VACUUM")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def bytes(self) -> int:
        """Return the total size of the file and its log, in bytes."""
        total = 0
        for path in self._files():
            with contextlib.suppress(OSError):
                total += path.stat().st_size
        return total

    def set_aside_if_damaged(self) -> Path | None:
        """Rename a damaged file and its log; return the file's new path, or ``None`` if the file is intact."""
        with file_lock(self._lock):
            if self._is_intact():
                return None
            stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
            target = self.path.with_name(f"{self.path.name}.damaged-{stamp}-{os.getpid()}")
            for path in self._files():
                if path.exists():
                    os.replace(path, str(target) + path.name[len(self.path.name) :])
            return target

    def _files(self) -> tuple[Path, ...]:
        return tuple(self.path.with_name(self.path.name + end) for end in ("", "-wal", "-shm"))

    def _is_intact(self) -> bool:
        if not self.path.exists():
            return True
        try:
            with contextlib.closing(self._connect()) as db:
                tables = {r[0] for r in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
                complete = db.execute("PRAGMA user_version").fetchone()[0] == 0 or {"entries", "measurements"} <= tables
                return complete and db.execute("PRAGMA integrity_check(1)").fetchone()[0] == "ok"
        except sqlite3.DatabaseError as err:
            if not is_damage(err):  # e.g. busy: not a sign of damage
                raise
            return False

    @contextlib.contextmanager
    def _reading_connection(self) -> Iterator[sqlite3.Connection | None]:
        """Yield a connection, or ``None`` if the file does not exist."""
        if not self.path.exists():
            yield None
            return
        with contextlib.closing(self._open_for_reading()) as db:
            yield db

    @contextlib.contextmanager
    def _write_transaction(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(self._open()) as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # a full disk has rolled it back already
                    db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")

    def _open_for_reading(self) -> sqlite3.Connection:
        try:
            return self._open()
        except (sqlite3.OperationalError, OSError):
            if all(os.access(p, os.W_OK, effective_ids=_AS_OPENED) for p in (self.path, self.path.parent)):
                raise
            # WAL needs files next to the database; if they cannot be created, no process here writes either.
            return self._connect(f"{self.path.absolute().as_uri()}?mode=ro&immutable=1")

    def _open(self) -> sqlite3.Connection:
        """Connect to the file; one process at a time creates the tables."""
        if self.path.exists():
            db = self._connect()
            if self._has_current_layout(db):
                return db
            db.close()
        with file_lock(self._lock):
            db = self._connect()
            try:
                if not self._has_current_layout(db):
                    db.execute("PRAGMA journal_mode = WAL")
                    db.execute("BEGIN IMMEDIATE")
                    for statement in _SCHEMA:
                        db.execute(statement)
                    db.execute("COMMIT")
            except BaseException:
                db.close()
                raise
        return db

    def _connect(self, uri: str | None = None) -> sqlite3.Connection:
        db = sqlite3.connect(uri or str(self.path), timeout=_BUSY_S, isolation_level=None, uri=uri is not None)
        with contextlib.suppress(sqlite3.OperationalError):
            # In WAL mode this may lose the last entries in a power failure, never the consistency of the file.
            db.execute("PRAGMA synchronous = NORMAL")
        return db

    @staticmethod
    def _has_current_layout(db: sqlite3.Connection) -> bool:
        try:
            return bool(db.execute("PRAGMA user_version").fetchone()[0] == LAYOUT)
        except BaseException:
            db.close()
            raise


def is_damage(err: sqlite3.Error) -> bool:
    """Return whether an error indicates a damaged file rather than a busy, full or read-only one."""
    text: Any = str(err)
    return type(err) is sqlite3.DatabaseError or "malformed" in text or "no such" in text
