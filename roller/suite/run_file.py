"""The file of a suite run: measured or predicted rows, and a header with date, environment and settings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from roller.errors import RollerError, shown
from roller.probing.environment import collect_environment
from roller_runtime.core.files import read_file, write_atomically

FORMAT, VERSION = "roller suite run", 1
#: Parts of an environment that affect times.
_PARTS = ("roller", "python", "system", "packages", "processor", "devices", "variables")
#: Bounds on plausible times per iteration, in seconds.
_SHORTEST_S, _LONGEST_S = 1e-9, 1e9
#: Keys of each row.
_KEYS = frozenset({"model", "device", "batch", "kind", "throughput_per_s"})


@dataclass(frozen=True)
class SuiteRun:
    """A run of the suite.

    Parameters
    ----------
    head
        Date, environment, seed and rule, as plain data.
    rows
        JSON-ready data from :class:`~roller.suite.prediction.Prediction` and
        :class:`~roller.suite.measuring.Measurement`.
    """

    head: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {"format": FORMAT, "version": VERSION, "run": dict(self.head), "rows": [dict(row) for row in self.rows]}


def run_header(release: str, *, now: datetime | None = None, **more: Any) -> dict[str, Any]:
    """Return the header for a run on this machine."""
    moment = (now or datetime.now(timezone.utc)).isoformat(timespec="seconds")
    return {"date": moment, "environment": timing_environment(release), **more}


def timing_environment(release: str) -> dict[str, Any]:
    """Return the properties of this process's environment that affect times; ``release`` is roller's version."""
    found = collect_environment(release)
    return {name: found[name] for name in _PARTS}


def write_run(path: Path, run: SuiteRun) -> None:
    """Write a run as JSON."""
    write_json(path, run.to_dict())


def write_json(path: Path, data: Any) -> None:
    """Write plain data as indented JSON."""
    with write_atomically(path) as file:
        file.write(json.dumps(data, indent=1).encode() + b"\n")


def read_run(path: Path) -> SuiteRun:
    """Read a run.

    Raises
    ------
    RollerError
        If the file cannot be read or is not a run.
    """
    data = read_json(path, "a run of the suite")
    known = isinstance(data, Mapping) and data.get("format") == FORMAT
    rows: Any = data.get("rows") if known else None
    if (
        not known
        or data.get("version") != VERSION
        or not isinstance(rows, list)
        or not isinstance(data.get("run"), Mapping)
    ):
        got = f"version {data.get('version')}" if known and data.get("version") != VERSION else "another file"
        raise RollerError(
            f"{path}: expected a run of the suite of version {VERSION}, got {got}. Write one with `roller suite run "
            f"--out FILE` or `roller suite predict --out FILE`."
        )
    keys = [] if any(map(_describe_row_problem, rows)) else row_keys(rows)
    problem = next(filter(None, map(_describe_row_problem, rows)), "")
    if len(set(keys)) < len(keys):
        problem = "two rows of one model, batch and kind"
    if problem:
        raise RollerError(f"{path}: expected rows of a run of the suite, got {shown(problem)}. Write the run again.")
    return SuiteRun(data["run"], tuple(rows))


def read_json(path: Path, what: str) -> Any:
    """Read JSON; ``what`` names its content in the error message."""
    try:
        return json.loads(read_file(path))
    except (OSError, ValueError, RecursionError) as error:
        raise RollerError(
            f"{path}: expected the JSON of {what}, got {shown(str(error))}. Write it with --out."
        ) from error


def _describe_row_problem(row: Any) -> str:
    if not isinstance(row, Mapping) or not row.keys() >= _KEYS:
        return "a row without what every row has"
    if not all(isinstance(row[name], str) for name in ("model", "device", "kind")) or not isinstance(row["batch"], int):
        return "a row whose model, device, kind or batch is none"
    pair = row.get("pair")
    rounds = [] if pair is None else pair.get("rounds_s") if isinstance(pair, Mapping) else None
    groups: list[Any] = [row.get("samples_s") or [], rounds]
    if not all(isinstance(own, list) and all(isinstance(one, list) for one in own) for own in groups):
        return f"times of {row['model']} that are no lists"
    times = [time for own in groups for one in own for time in one]
    if row.get("iteration_s") is not None:
        times.append(row["iteration_s"])
    if not all(map(_is_plausible_time, times)):
        return f"times of {row['model']} that are no positive numbers of seconds"
    return ""


def _is_plausible_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and _SHORTEST_S < value < _LONGEST_S


def flatten_mapping(data: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Flatten nested mappings, joining their keys with dots.

    Examples
    --------
    >>> flatten_mapping({"a": {"b": 1}, "c": [2]})
    {'a.b': 1, 'c': [2]}
    """
    found: dict[str, Any] = {}
    for name, value in data.items():
        found |= (
            flatten_mapping(value, f"{before}{name}.") if isinstance(value, Mapping) else {f"{before}{name}": value}
        )
    return found


def row_keys(rows: Iterable[Mapping[str, Any]]) -> list[tuple[str, int, str, str]]:
    """Return the key of each row: model, batch, kind, and for a prediction, the device."""
    return [
        (row["model"], row["batch"], row["kind"], row["device"] if row["kind"] == "predicted" else "") for row in rows
    ]
