"""What a run has done so far, one line per candidate; survives a kill at any moment."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from roller.errors import ArtifactError
from roller.runtime.records import Record


class JournalFile:
    """An append-only file of JSON lines beside the final result: what was written survives a kill at any moment.

    Parameters
    ----------
    path
        The journal.
    header
        What the run is of (bundle, device, seed); a journal of another run is refused.
    take
        Called with every row of an earlier run, the header excepted; its KeyError, TypeError or ValueError means that
        the row is damaged.

    Raises
    ------
    ArtifactError
        Where the file cannot be written, is damaged, or belongs to another run.
    """

    def __init__(self, path: Path, header: Mapping[str, Any], take: Callable[[dict[str, Any]], None]) -> None:
        self.path = path
        try:
            old = path.read_bytes() if path.exists() else b""
            whole = old[: old.rfind(b"\n") + 1]  # a line that a kill cut off was never written
            self._read(whole, dict(header), take)
            self._file = path.open("r+b" if old else "wb")
            self._file.truncate(len(whole))
            self._file.seek(len(whole))
            if not whole:
                self.append(dict(header))
        except OSError as err:
            raise ArtifactError(f"{path}: cannot write ({err.strerror}). Choose a writable path for --json.") from err

    def append(self, line: Mapping[str, Any]) -> None:
        """Write one row; a kill of this process does not lose it when this returns."""
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()

    def sync(self) -> None:
        """Put what was written on the disk; a crash of the machine does not lose it when this returns."""
        os.fsync(self._file.fileno())

    def close(self, *, remove: bool) -> None:
        """Close the file, and remove it where its content has gone into the final result."""
        self._file.close()
        if remove:
            self.path.unlink(missing_ok=True)

    def _read(self, data: bytes, header: dict[str, Any], take: Callable[[dict[str, Any]], None]) -> None:
        for number, line in enumerate(data.splitlines()):
            try:
                row = json.loads(line)
                if number:
                    take(row)
            except (ValueError, KeyError, TypeError) as err:
                raise ArtifactError(
                    f"{self.path}: line {number + 1} is damaged ({err}). Remove the file to start again."
                ) from err
            if not number and row != header:
                differs = sorted(k for k in {*row, *header} if row.get(k) != header.get(k))
                raise ArtifactError(
                    f"{self.path}: belongs to another run ({', '.join(differs)} differ). Remove it, or choose another "
                    "--json."
                )


class Journal:
    """The records of a run of kernels; parameters and errors are those of :class:`JournalFile`."""

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        #: Records by operator and candidate.
        self.records: dict[str, dict[str, Record]] = {}
        self._file = JournalFile(path, header, self._take)

    def know(self, results: Mapping[str, Any]) -> None:
        """Take over the records of an earlier result of the same run; what the journal itself says wins."""
        names = {f.name for f in fields(Record)}
        for operator in results["operators"]:
            known = self.records.setdefault(operator["id"], {})
            for row in operator["records"]:
                known.setdefault(row["candidate_id"], Record(**{k: v for k, v in row.items() if k in names}))

    def add(self, operator: str, record: Record) -> None:
        """Keep one record; it is on disk when this returns."""
        self._file.append({"operator": operator, **asdict(record)})
        self._file.sync()
        self.records.setdefault(operator, {})[record.candidate_id] = record

    def close(self, *, remove: bool) -> None:
        """Close the file, and remove it where its content has gone into the final result."""
        self._file.close(remove=remove)

    def _take(self, row: dict[str, Any]) -> None:
        operator = row.pop("operator")
        self.records.setdefault(operator, {})[row["candidate_id"]] = Record(**row)
