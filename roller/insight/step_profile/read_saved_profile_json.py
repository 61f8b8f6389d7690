"""Reads the output of ``roller profile --json``: a profile, optionally with hints and a difference."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from roller.errors import ArtifactError, shown
from roller.insight.step_profile.profile_json import load_profile, read_profile_file_json
from roller.insight.step_profile.step_profile import StepProfile

_TEXT, _NUMBER, _FLAG, _MAYBE, _LIST = "a text", "a number", "true or false", "a number or null", "a list of texts"
#: Maps each key of a hint that the page reads to its type; :mod:`hints_difference_json` writes all of them.
_HINT = {
    **dict.fromkeys(("change", "origin", "kind", "line", "memory_note", "rests_on", "not_asked", "price_per"), _TEXT),
    **dict.fromkeys(("iteration_s", "lower_s", "upper_s", "delta_s", "line_delta_s"), _NUMBER),
    **dict.fromkeys(("upper_bound", "hardly_anything", "in_place"), _FLAG),
    **dict.fromkeys(("memory_delta_bytes", "price_before", "price_after"), _MAYBE),
    "assumptions": _LIST,
}
_PRICE = {
    **dict.fromkeys(("currency", "source", "date"), _TEXT), "per_hour": _NUMBER, "is_old": _FLAG
}  # fmt: skip
_DIFFERENCE = {"kind": _TEXT, "delta_s": _NUMBER, "delta_bytes": _NUMBER}
_SIDE = {
    **dict.fromkeys(("name", "source", "device", "amp"), _TEXT),
    **dict.fromkeys(("devices", "batch", "iteration_s", "lower_s", "upper_s", "total_bytes"), _NUMBER),
}
_CHANGES = ("before_s", "after_s", "delta_s", "before_bytes", "after_bytes", "delta_bytes")
_LINE = {"name": _TEXT, **dict.fromkeys((*_CHANGES, "made_delta_s", "made_delta_bytes"), _NUMBER)}


class SavedParts(NamedTuple):
    """A profile, with ``hints``, ``price`` and ``difference`` if the file has them."""

    profile: StepProfile
    parts: Mapping[str, Any]


def load_profile_with_hints(path: str | Path) -> SavedParts:
    """Read a profile written by ``--out``, or ``roller profile --json`` output for one device and batch."""
    data, profile = read_profile_file_json(path), load_profile(path)
    names = ("hints", "price", "difference") if "profile" in data else ()
    return SavedParts(profile, _check_parts({x: data[x] for x in names if x in data}, str(path)))


def _check_parts(parts: dict[str, Any], path: str) -> dict[str, Any]:
    for row in _require_list(parts.get("hints", []), f"{path}: hints"):
        _check_fields(row, _HINT, f"{path}: hints")
    if parts.get("price") is not None:
        _check_fields(parts["price"], _PRICE, f"{path}: price")
    if "difference" in parts:
        found, where = parts["difference"], f"{path}: difference"
        _check_fields(found, _DIFFERENCE, where)
        for name, kinds in (("before", _SIDE), ("after", _SIDE)):
            _check_fields(found.get(name), kinds, f"{where}: {name}")
        for row in _require_list(found.get("lines"), f"{where}: lines"):
            _check_fields(row, _LINE, f"{where}: lines")
    return parts


def _require_list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise _invalid_part_error(where, "a list", value)
    return value


def _check_fields(row: Any, kinds: Mapping[str, str], where: str) -> None:
    if not isinstance(row, Mapping):
        raise _invalid_part_error(where, "an object", row)
    for name, kind in kinds.items():
        if not _has_type(row.get(name), kind):
            raise _invalid_part_error(f"{where}: {name}", kind, row.get(name))


def _has_type(value: Any, kind: str) -> bool:
    if kind == _MAYBE and value is None:
        return True
    if kind in (_NUMBER, _MAYBE):
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if kind == _LIST:
        return isinstance(value, list) and all(isinstance(one, str) for one in value)
    return isinstance(value, bool if kind == _FLAG else str)


def _invalid_part_error(where: str, expected: str, got: Any) -> ArtifactError:
    return ArtifactError(
        f"{where}: expected {expected}, got {shown(got)}. Write the file again: roller profile --json."
    )
