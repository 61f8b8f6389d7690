"""All that a run brings home, in one file of JSON lines: what was written survives a kill at any moment.

Every line says which phase it is of and, in seconds, when it was written after the call began; the first line of a call
holds the device. Standard library only: it is read where nothing is installed.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from roller.errors import ArtifactError
from roller.runtime.candidate_records import Record
from roller.runtime.crash_safe_journal import JournalFile

FORMAT, VERSION = "roller-gpu-run", 1
FILE = "results.jsonl"


class RunJournal:
    """The results of all calls.

    Parameters
    ----------
    folder
        Where results are kept; made where it is missing.
    header
        What the run is of: ``pack`` (its checksum), ``card`` and ``kind`` of device. Results of another are refused.
    clock
        Tells seconds.
    durable
        Whether every line is on the disk when :meth:`write` returns.

    Raises
    ------
    ArtifactError
        Where the folder cannot be written, or holds the results of another run.
    """

    def __init__(
        self, folder: Path, header: Mapping[str, Any], clock: Callable[[], float] = time.monotonic,
        durable: bool = True,
    ) -> None:  # fmt: skip
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise ArtifactError(f"{folder}: cannot write ({err.strerror}). Choose a writable --results.") from err
        self.folder, self.data = folder, Results()
        whole = {"format": FORMAT, "version": VERSION, **header}
        self._file = JournalFile(folder / FILE, whole, self.data.take)
        self._clock, self._durable, self._start = clock, durable, clock()

    def write(self, phase: str, **line: Any) -> None:
        """Keep one line of a phase; it is on disk when this returns."""
        row = {"phase": phase, "at_s": round(self._clock() - self._start, 3), **line}
        self._file.append(row)
        if self._durable:
            self._file.sync()
        self.data.take(json.loads(json.dumps(row)))

    def keep_record(self, phase: str, part: str, operator: str, record: Record) -> None:
        """Keep the record of a kernel of a part of the pack."""
        self.write(phase, part=part, operator=operator, record=dict(record.__dict__))

    def keep_case(self, phase: str, plan: str, case: str, result: dict[str, Any]) -> None:
        """Keep the result of a probe's case."""
        self.write(phase, plan=plan, case=case, result=result)

    def close(self) -> None:
        """Close the file."""
        self._file.close(remove=False)


class Results:
    """What the lines of a journal say, all calls together."""

    def __init__(self) -> None:
        #: Records of kernels, by part of the pack, operator and candidate.
        self.records: dict[str, dict[str, dict[str, Record]]] = {}
        #: Results of probes, by plan and case.
        self.cases: dict[str, dict[str, Any]] = {}
        #: Records of peers by task, rows of models by name and phase, figures of the profiler by operator.
        self.peers: dict[str, list[dict[str, Any]]] = {}
        self.models: dict[str, dict[str, Any]] = {}
        self.profiles: dict[str, dict[str, Any]] = {}
        #: Why a phase could not run, by phase; versions of the peers.
        self.skipped: dict[str, str] = {}
        self.versions: dict[str, str] = {}
        #: What people should know of how a phase ran.
        self.remarks: list[str] = []
        #: What the device says of itself, and when the calls began.
        self.properties: dict[str, Any] = {}
        self.calls: list[str] = []
        #: Seconds by phase, over all calls.
        self.spent_s: Counter[str] = Counter()
        self._at_s = 0.0

    def take(self, row: dict[str, Any]) -> None:
        """Take one line."""
        phase, at_s = row["phase"], float(row["at_s"])
        if phase == "call":  # the clock of every call starts at 0
            self.properties, self._at_s = row["properties"], 0.0
            self.calls.append(row["date"])
        self.spent_s[phase] += max(0.0, at_s - self._at_s)
        self._at_s = at_s
        if "remark" in row:
            self.remarks.append(f"{phase}: {row['remark']}")
        if "record" in row:
            record = Record(**row["record"])
            self.records.setdefault(row["part"], {}).setdefault(row["operator"], {})[record.candidate_id] = record
        if "result" in row:
            self.cases.setdefault(row["plan"], {})[row["case"]] = row["result"]
        if "peers" in row:
            self.peers[row["key"]] = row["peers"]
        if "model" in row:
            self.models.setdefault(row["model"], {})[row["row"]["phase"]] = row["row"]
        if "profile" in row:
            self.profiles[row["operator"]] = row["profile"]
        if "skipped" in row:
            self.skipped[phase] = row["skipped"]
        self.versions.update(row.get("versions", {}))


def read(folder: Path) -> tuple[dict[str, Any], Results]:
    """Return the header and what all lines say.

    Raises
    ------
    ArtifactError
        Where there is no such file, or it is damaged.
    """
    path = folder / FILE if folder.is_dir() else folder
    data = Results()
    try:
        text = path.read_bytes()
        lines = text[: text.rfind(b"\n") + 1].splitlines()
        header = json.loads(lines[0])
        if (header["format"], header["version"]) != (FORMAT, VERSION):
            raise ValueError(f"expected {FORMAT} {VERSION}")
        for line in lines[1:]:
            data.take(json.loads(line))
    except (OSError, IndexError, KeyError, TypeError, ValueError) as err:
        raise ArtifactError(f"{path}: cannot read the results ({err!r}). Give the folder that run.py wrote.") from err
    return header, data


def write_whole(path: Path, text: str) -> None:
    """Write a file that appears whole or not at all.

    Raises
    ------
    ArtifactError
        Where the path cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as err:
        raise ArtifactError(f"{path}: cannot write ({err.strerror}). Choose a writable path.") from err
