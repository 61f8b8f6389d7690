"""Profiles as versioned JSON, described in docs/profile-json.md."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

from roller.errors import ArtifactError, shown
from roller.insight.step_profile.batch_curve import BatchCurve, BatchLine, BatchPoint
from roller.insight.step_profile.node import Node, NodeKind, Seconds, tree_with_node_intervals
from roller.insight.step_profile.step_profile import MemoryPoint, Source, StepProfile
from roller_runtime.core.files import read_file, write_atomically

#: Name and version of the written format; all versions from 1 on can be read.
FORMAT, VERSION = "roller-profile", 2
#: Fields of a profile that are written unchanged.
_PLAIN = (
    "name", "source", "device", "iteration_s", "lower_s", "upper_s", "batch", "samples", "devices", "amp", "checkpoint",
    "policy", "bound", "capacity_bytes", "total_error_bytes", "out_of_memory", "out_of_memory_at", "notes",
)  # fmt: skip
_KINDS = frozenset(get_args(NodeKind))
_NAMES_OF_TEXT = frozenset({"name", "source", "device", "amp", "policy", "bound", "out_of_memory", "out_of_memory_at"})


def profile_to_json_data(profile: StepProfile) -> dict[str, Any]:
    """Return a profile as JSON-ready data; :func:`profile_from_json_data` is the inverse."""
    rows: list[dict[str, Any]] = []
    todo: list[tuple[Node, int]] = [(profile.root, -1)]
    while todo:
        node, parent = todo.pop()
        rows.append(_node_row(node, parent))
        todo += [(child, len(rows) - 1) for child in reversed(node.children)]
    return {
        "format": FORMAT,
        "version": VERSION,
        **{name: getattr(profile, name) for name in _PLAIN},
        "total_bytes": profile.total_bytes,
        "throughput_per_s": profile.throughput,
        "versions": dict(profile.versions),
        "is_stable": profile.is_stable,
        "is_calibrated": profile.is_calibrated,
        "categories": dict(profile.categories),
        "memory_curve": [[p.at, p.allocated_bytes, p.reserved_bytes, dict(p.kinds)] for p in profile.memory_curve],
        "memory_holders": _memory_holders_json_data(profile.memory_curve),
        "curve": None if profile.curve is None else batch_curve_json_data(profile.curve),
        "nodes": rows,
    }


def _node_row(node: Node, parent: int) -> dict[str, Any]:
    row: dict[str, Any] = {"parent": parent, "kind": node.kind, "name": node.name, "calls": node.calls}
    if node.seconds:
        row["seconds"] = {phase: list(part) for phase, part in node.seconds.items()}
    for name in ("held_bytes", "requested_bytes", "bound_s", "pipe_s"):
        if getattr(node, name):
            row[name] = dict(getattr(node, name))
    if node.error is not None:
        row["error"] = list(node.error)
    if node.registered:
        row["registered"] = list(node.registered)
    return row


def _memory_holders_json_data(points: Sequence[MemoryPoint]) -> dict[str, Any]:
    """Return the distinct holder names and, for each point, pairs of a name's index and its bytes."""
    names: dict[str, int] = {}
    rows = [[[names.setdefault(x, len(names)), size] for x, size in p.holders.items()] for p in points]
    return {"names": list(names), "points": rows} if names else {}


def _read_holders(data: Mapping[str, Any], count: int) -> list[dict[str, int]]:
    if not data:  # older files do not have it
        return [{} for _ in range(count)]
    names = [_check_text(name) for name in data["names"]]
    found = [{names[_check_number(n, int)]: _check_number(size, int) for n, size in row} for row in data["points"]]
    if len(found) != count:
        raise ValueError(f"holders of {len(found)} points of {count}")
    return found


def batch_curve_json_data(curve: BatchCurve) -> dict[str, Any]:
    """Return throughput and memory over the batch as JSON-ready data."""
    return {
        "line": None if curve.line is None else curve.line._asdict(),
        "computed": [p._asdict() for p in curve.computed],
        "largest": curve.largest,
        "limit_by": curve.limit_by,
        "most_throughput": curve.most_throughput,
        "most_computed": None if (most := curve.most_computed) is None else most.batch,
        "diminishing_from": curve.diminishing_from() if curve.limit_by else None,
        "notes": list(curve.notes),
    }


def profile_from_json_data(data: Any, where: str = "profile") -> StepProfile:
    """Create a profile from data in the format of :func:`profile_to_json_data`, and check that its parts add up."""
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise ArtifactError(f"{where}: expected a profile of roller, got JSON of another kind. Write it with --out.")
    version = data.get("version")
    if type(version) is not int or not 1 <= version <= VERSION:
        raise ArtifactError(
            f"{where}: expected a profile of version 1 to {VERSION}, got version {shown(version)}. "
            f"Read it with the roller that wrote it, or profile the step again."
        )
    try:
        found = _read_profile(data)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise ArtifactError(
            f"{where}: expected the JSON of a profile, got what cannot be read ({error!r}). Profile the step again."
        ) from error
    found.check()
    return found


def _read_profile(data: Mapping[str, Any]) -> StepProfile:
    known = {field.name for field in fields(StepProfile)}
    plain = {name: _read_plain_field(name, data[name]) for name in _PLAIN if name in data and name in known}
    if plain["source"] not in get_args(Source):
        raise ValueError(f"source {plain['source']!r}")
    curve = data.get("memory_curve", ())
    holders = _read_holders(data.get("memory_holders", {}), len(curve))
    found = StepProfile(
        root=_read_tree(data["nodes"]),
        versions={_check_text(name): _check_text(value) for name, value in data.get("versions", {}).items()},
        is_stable=data.get("is_stable", True) is True,
        is_calibrated=data.get("is_calibrated", False) is True,
        categories=_check_numbers(data.get("categories", {}), float),
        memory_curve=tuple(_read_memory_point(row, held) for row, held in zip(curve, holders, strict=True)),
        curve=None if data.get("curve") is None else _read_batch_curve(data["curve"]),
        **plain,
    )
    if found.out_of_memory_at:
        _check_line_name(found.out_of_memory_at)
    if min(found.batch, found.samples, found.devices) < 0 or not 0 <= found.throughput < math.inf:
        counts = f"a batch of {found.batch}, {found.samples:g} samples and {found.devices} devices"
        raise ValueError(f"{counts} in {found.iteration_s:g} s")
    return found


def _read_plain_field(name: str, value: Any) -> Any:
    if name in _NAMES_OF_TEXT:
        return _check_text(value)
    if name in ("checkpoint", "notes"):
        return tuple(_check_text(part) for part in value)
    return _check_number(value, float if name.endswith("_s") or name == "samples" else int)


def _check_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} for a text")
    return value


def _check_number(value: Any, kind: type[int] | type[float]) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else int):
        raise TypeError(f"{type(value).__name__} for a number")
    if not math.isfinite(value):
        raise ValueError(f"the number {value}")
    return kind(value)


def _check_numbers(data: Mapping[str, Any], kind: type[int] | type[float]) -> dict[str, Any]:
    return {_check_text(name): _check_number(value, kind) for name, value in data.items()}


def _read_memory_point(row: Sequence[Any], holders: Mapping[str, int]) -> MemoryPoint:
    at, allocated, reserved, kinds = row
    sizes = _check_number(allocated, int), _check_number(reserved, int)
    return MemoryPoint(_check_number(at, float), *sizes, _check_numbers(kinds, int), holders)


def _read_batch_curve(data: Mapping[str, Any]) -> BatchCurve:
    line = data["line"]
    if line is not None:
        a, b, c, d = (_check_number(line[name], float) for name in "abcd")
        line = BatchLine(a, b, c, d, tuple(_check_number(n, int) for n in line["batches"]), bool(line["holds"]))
    points = tuple(
        BatchPoint(
            _check_number(row["batch"], int), _check_number(row["iteration_s"], float),
            _check_number(row["throughput"], float),
            _check_number(row["allocated_bytes"], int), _check_number(row["total_bytes"], int), bool(row["fits"]),
            _check_text(row["bound"]), _check_text(row.get("peak_phase", "")),  # version 1 does not have it
        )
        for row in data["computed"]
    )  # fmt: skip
    return BatchCurve(line, points, _check_number(data["largest"], int), tuple(_check_text(n) for n in data["notes"]))


def _read_tree(rows: Sequence[Mapping[str, Any]]) -> Node:
    children: list[list[Node]] = [[] for _ in rows]
    for number in range(len(rows) - 1, -1, -1):  # parents come before their children
        row, parent = rows[number], rows[number]["parent"]
        if type(parent) is not int or not (parent == -1 if number == 0 else 0 <= parent < number):
            raise ValueError(f"node {number} of parent {parent!r}")
        if row["kind"] not in _KINDS:
            raise ValueError(f"node {number} of kind {row['kind']!r}")
        name = _check_text(row["name"])
        if row["kind"] == "line":
            _check_line_name(name)
        node = Node(
            row["kind"], name, _check_number(row["calls"], int),
            {_check_text(p): Seconds(*(_check_number(x, float) for x in part)) for p, part in row.get("seconds",
                                                                                                      {}).items()},
            _check_numbers(row.get("held_bytes", {}), int), _check_numbers(row.get("requested_bytes", {}), int),
            _check_numbers(row.get("bound_s", {}), float), _check_numbers(row.get("pipe_s", {}), float),
            tuple(_check_line_name(x) for x in row.get("registered", ())), tuple(reversed(children[number])),
            _read_relative_interval(row.get("error")),
        )  # fmt: skip
        if parent == -1:
            return tree_with_node_intervals(node)
        children[parent].append(node)
    raise ValueError("no nodes")


def _read_relative_interval(value: Any) -> tuple[float, float] | None:
    if value is None:  # older files do not have it
        return None
    lower, upper = (_check_number(x, float) for x in value)
    if not 0.0 <= lower <= 1.0 <= upper:
        raise ValueError(f"the error {value!r}")
    return lower, upper


def _check_line_name(value: Any) -> str:
    if int(_check_text(value).rpartition(":")[2]) < 1:  # editors and SARIF count lines from 1
        raise ValueError(f"the line {value!r}")
    return str(value)


def save_profile(profile: StepProfile, path: str | Path) -> None:
    """Write a profile as JSON, replacing any existing file atomically."""
    with write_atomically(Path(path)) as file:
        file.write(json.dumps(profile_to_json_data(profile), allow_nan=False).encode())


def load_profile(path: str | Path) -> StepProfile:
    """Read a profile written by :func:`save_profile` or printed by ``roller profile --json``.

    Raises
    ------
    ArtifactError
        If the file cannot be read, contains several profiles, or has an unknown version.
    """
    data = read_profile_file_json(path)
    if isinstance(data, Mapping) and "profile" in data:
        return profile_from_json_data(data["profile"], f"{path}: profile")
    return profile_from_json_data(data, str(path))


def read_profile_file_json(path: str | Path) -> Any:
    """Return the JSON content of a file or, if it is a list, the only item of the list."""
    try:
        data = json.loads(read_file(path))
    except (OSError, ValueError, RecursionError) as error:
        raise ArtifactError(
            f"{path}: expected a profile of roller, got what cannot be read ({error}). Write it with --out."
        ) from error
    if not isinstance(data, list) or not data:
        return data
    if len(data) > 1:
        raise ArtifactError(
            f"{path}: expected one profile, got {len(data)}. Write each one alone: name one device and one batch."
        )
    return data[0]
