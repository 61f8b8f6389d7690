"""Scenarios: named what-ifs with parameters, from a file or an option."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_args

import yaml

from roller.errors import RollerError, did_you_mean, shown
from roller.insight.whatif.what_if import WhatIf, plain_types_in_annotation, type_hints_of
from roller.insight.whatif.whatifs import WHATIFS
from roller_runtime.core.files import read_text

_KEYS = {"device", "measured_us", "prices", "changes", "scenarios"}
#: Maps former names of what-ifs to their present names.
_RENAMED = {"free": "zero-time"}


@dataclass(frozen=True)
class Scenarios:
    """Scenarios in a file."""

    changes: Mapping[str, tuple[WhatIf, ...]]  # maps a scenario's name to its what-ifs, in the order applied
    device: str | None = None  # device of the profile; ``None`` if the file does not name one
    measured_us: Mapping[str, float] = field(default_factory=dict)  # maps a kernel's name to its measured microseconds


def read_scenarios(path: str | Path) -> Scenarios:
    """Read a YAML file with ``changes`` (a list) or ``scenarios`` (lists by name), ``device`` and ``measured_us``.

    Examples
    --------
    A file with two scenarios:

    .. code-block:: yaml

        device: v100
        scenarios:
          half: [amp]
          eight: [amp: {dtype: fp16}, ddp: {devices: 8, bandwidth: 25e9}]
    """
    where = str(path)
    try:
        data = yaml.safe_load(read_text(path))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        why = str(error).partition("\n")[0]
        raise RollerError(
            f"{where}: expected a scenario, got a file that cannot be read ({why}). Correct it."
        ) from error
    if not isinstance(data, Mapping) or not data.keys() <= _KEYS:
        raise RollerError(
            f"{where}: expected device, measured_us and changes or scenarios, got {shown(data)}. Name what to change."
        )
    if "prices" in data:
        warnings.warn(f"{where}: prices is now called measured_us.", DeprecationWarning, stacklevel=2)
    measured = data.get("measured_us", data.get("prices")) or {}
    if not isinstance(measured, Mapping) or not all(map(_is_duration, measured.values())):
        raise RollerError(f"{where}: measured_us: expected microseconds by name, got {shown(measured)}. Correct them.")
    given, device = data.get("scenarios") or {}, data.get("device")
    if not isinstance(given, Mapping):
        raise RollerError(f"{where}: scenarios: expected lists of what-ifs by name, got {shown(given)}. Name them.")
    if device is not None and not isinstance(device, str):
        raise RollerError(f"{where}: device: expected the name of a device, got {shown(device)}. Name one.")
    lists = dict(given)
    if data.get("changes") or not lists:
        lists["changes"] = data.get("changes")
    made = {str(name): parse_what_ifs(rows, f"{where}: {name}") for name, rows in lists.items()}
    return Scenarios(made, device, {str(k): float(v) for k, v in measured.items()})


def parse_what_ifs(rows: Any, where: str) -> tuple[WhatIf, ...]:
    """Return the what-ifs in a YAML list of names, or of names with parameters."""
    if not isinstance(rows, Sequence) or isinstance(rows, str) or not rows:
        raise RollerError(f"{where}: expected a list of what-ifs, got {shown(rows)}. Name one of {', '.join(WHATIFS)}.")
    found = []
    for row in rows:
        if isinstance(row, str):
            row = {row: {}}
        if not isinstance(row, Mapping) or len(row) != 1:
            raise RollerError(
                f"{where}: expected a what-if with its parameters, got {shown(row)}. Write name: {{...}}."
            )
        ((name, parameters),) = row.items()
        found.append(parse_what_if(str(name), parameters or {}, where))
    return tuple(found)


def parse_what_if(name: str, parameters: Any, where: str) -> WhatIf:
    """Return the what-if with the given name in scenarios, and with parameters read from YAML."""
    if name in _RENAMED:
        warnings.warn(f"{where}: {name} is now called {_RENAMED[name]}.", DeprecationWarning, stacklevel=2)
        name = _RENAMED[name]
    if name not in WHATIFS:
        raise RollerError(
            f"{where}: expected one of {', '.join(WHATIFS)}, got {shown(name)}{did_you_mean(name, WHATIFS)}."
        )
    kind = WHATIFS[name]
    known = {one.name: one for one in fields(kind)}
    if not isinstance(parameters, Mapping) or not parameters.keys() <= known.keys():
        wrong = (
            parameters if not isinstance(parameters, Mapping) else sorted(map(str, parameters.keys() - known.keys()))
        )
        raise RollerError(
            f"{where}: {name}: expected parameters among {', '.join(known) or 'none'}, got {shown(wrong)}. "
            f"Correct them."
        )
    hints = type_hints_of(kind)
    given = {str(k): _to_parameter_type(v, hints.get(str(k))) for k, v in parameters.items()}
    try:
        return kind(**given)
    except TypeError as error:
        raise RollerError(
            f"{where}: {name}: expected all its parameters, got {shown(given)} ({error}). Add them."
        ) from None


def parse_what_if_option(text: str) -> WhatIf:
    """Return the what-if in an option such as ``ddp:devices=4,bandwidth=25e9``.

    Examples
    --------
    >>> str(parse_what_if_option("ddp:devices=4,bandwidth=25e9"))
    'DDP(devices=4, bandwidth=25000000000.0)'
    """
    name, _, rest = text.partition(":")
    pairs = [pair.partition("=") for pair in _COMMA.split(rest) if pair]
    if any(not equals for _, equals, _ in pairs):
        raise RollerError(f"{text}: expected parameters as name=value, got {shown(rest)}. Write ddp:devices=4.")
    return parse_what_if(name, {key.strip(): _parse_yaml_value(value) for key, _, value in pairs}, text)


#: Pattern of a comma outside lists.
_COMMA = re.compile(r",(?![^\[]*\])")


def _parse_yaml_value(value: str) -> Any:
    try:
        return yaml.safe_load(value)
    except (yaml.YAMLError, ValueError, RecursionError):
        return value  # a pattern such as *.fc


def _is_duration(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf")


def _to_parameter_type(value: Any, hint: Any) -> Any:
    """Convert a YAML value to a parameter's type: layer names to text, and 25e9 (a text in YAML) to a number."""
    plain = plain_types_in_annotation(hint)
    if isinstance(value, list):
        return tuple(_to_parameter_type(v, hint) for v in value)
    if isinstance(value, Mapping):
        return {str(k): _to_parameter_type(v, get_args(hint)[-1] if get_args(hint) else None) for k, v in value.items()}
    if str in plain and not plain & {int, float}:
        return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value
    if isinstance(value, str) and plain & {int, float}:
        with contextlib.suppress(ValueError):
            return float(value) if float in plain else int(value)
    return value
