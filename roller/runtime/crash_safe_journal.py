"""Journal of a run: JSON lines that survive a kill at any moment; it needs only the standard library."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from roller.errors import ArtifactError


class JournalFile:
    """An append-only file of JSON lines next to the final result.

    Parameters
    ----------
    header
        Identifies the run (bundle, device, seed); a journal of another run is refused.
    take
        Function called with every row of an earlier run; its KeyError, TypeError or ValueError marks the row as
        damaged.

    Raises
    ------
    ArtifactError
        If the file cannot be written, is damaged, or belongs to another run.
    """

    def __init__(self, path: Path, header: Mapping[str, Any], take: Callable[[dict[str, Any]], None]) -> None:
        self.path = path
        try:
            old = path.read_bytes() if path.exists() else b""
            whole = old[: old.rfind(b"\n") + 1]  # drop a line truncated by a kill
            self._read(whole, dict(header), take)
            self._file = path.open("r+b" if old else "wb")
            self._file.truncate(len(whole))
            self._file.seek(len(whole))
            if not whole:
                self.append(dict(header))
        except OSError as err:
            raise ArtifactError(f"{path}: cannot write ({err.strerror}). Choose a writable path for --json.") from err

    def append(self, line: Mapping[str, Any]) -> None:
        """Write one row; the row is not lost if this process is killed after the call."""
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()

    def sync(self) -> None:
        """Flush to disk; the rows are not lost if the machine crashes after the call."""
        os.fsync(self._file.fileno())

    def close(self, *, remove: bool) -> None:
        """Close the file; remove it if ``remove``, which means that its contents are in the final result."""
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
