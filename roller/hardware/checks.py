"""Checks of the numbers and keys in specifications."""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from roller.errors import SpecError, did_you_mean, shown
from roller.targets import KINDS

#: Sources of a number, in order of preference. ``derived``: measured on a device of the same
#: chip or generation and scaled by both data sheets; the note names the origin.
SOURCES = ("measured", "derived", "datasheet", "assumed")


@dataclass(frozen=True)
class Quantity:
    """Unit, range and type of one numeric field."""

    unit: str
    minimum: float
    maximum: float
    integer: bool = False
    kinds: tuple[str, ...] = tuple(KINDS)


_SPREAD = Quantity("", 0, 10)

# Suffixes that name a unit, as people type them; the loader takes SI base units only.
_UNIT_ENDINGS = (
    "_bytes_per_s", "_gb_per_s", "_gbps", "_gb_s", "_mb_per_s", "_tb_per_s", "_gib_per_s", "_kib", "_mib", "_gib",
    "_kb", "_mb", "_gb", "_bytes", "_hz", "_mhz", "_ghz", "_khz", "_ns", "_us", "_ms", "_cycles", "_s",
    "_mw", "_kw", "_w",
)  # fmt: skip


#: Units of measure, which may be confused with a multiple; all other units are counts.
_MEASURES = ("bytes", "bytes/s", "s", "Hz", "W", "J", "operations/cycle/unit", "relative")
#: Example values of keys without a source, and keys of whole sections.
_PLAIN = {
    "name": "mine", "kind": "gpu", "description": "Vendor, model, memory", "scope": "unit", "tiled": "true",
    "target": "{language: cuda, arch: sm_80}", "operand": "float16", "accumulator": "float32",
    "threads": "32", "m": "16", "n": "8", "k": "16", "arch": "sm_80", "mcpu": "skylake-avx512",
}  # fmt: skip
_PARTS = ("teu", "compute", "ops_per_cycle_per_unit", "execution", "limits", "memory_layers")


def spec_error(where: str, path: str, problem: str) -> SpecError:
    """Return the error for one path in a specification."""
    return SpecError(f"{where}: {path}: {problem}" if path else f"{where}: {problem}")


def check_keys(where: str, path: str, found: Iterable[Any], known: Iterable[str], required: Iterable[str] = ()) -> None:
    """Raise an error for an unknown key, with a suggestion, or a missing required key."""
    known, found = tuple(known), tuple(found)
    for key in found:
        if key not in known:
            raise spec_error(where, join_dotted_path(path, str(key)), _unknown_key_problem(str(key), known, found))
    for key in required:
        if key not in found:
            form = _PLAIN.get(key)
            remedy = f"Add it, e.g. {key}: {form}." if form else "Add it with its source, e.g. {datasheet: ...}."
            if key in _PARTS:
                remedy = "Copy this section from the nearest file of hardware_specs."
            raise spec_error(where, join_dotted_path(path, key), f"missing. {remedy}")


def _unknown_key_problem(key: str, known: tuple[str, ...], found: tuple[Any, ...]) -> str:
    stem = _without_unit_suffix(key)
    for name in known:
        if _without_unit_suffix(name) == stem and stem != name and name not in found:
            return f"wrong unit; expected '{name}' (SI base units), got '{key}'. Convert the value and rename the key."
    return f"unknown key{did_you_mean(key, known) or f'; expected one of {list(known)}.'}"


def _without_unit_suffix(key: str) -> str:
    for ending in sorted(_UNIT_ENDINGS, key=len, reverse=True):
        if key.endswith(ending):
            return key.removesuffix(ending)
    return key


def check_number(where: str, path: str, value: object, quantity: Quantity) -> float:
    """Return ``value`` if it has the field's type and lies in its range; otherwise raise an error."""
    unit = f" {quantity.unit}" if quantity.unit else ""
    if isinstance(value, str):
        raise spec_error(where, path, _problem_of_number_text(value))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise spec_error(
            where, path, f"expected a number{unit and f' in{unit}'}, got {shown(value)}. Write a plain number."
        )
    if not -sys.float_info.max <= value <= sys.float_info.max:  # of an integer too: it may be too large for any float
        raise spec_error(
            where, path, f"expected a finite number, got {shown(value)}. Leave the field out where it is unknown."
        )
    if quantity.integer and value != int(value):
        raise spec_error(where, path, f"expected a whole number of {quantity.unit}, got {shown(value)}.")
    if value < 0:
        raise spec_error(where, path, f"expected a value of at least {quantity.minimum:g}{unit}, got {shown(value)}.")
    if not quantity.minimum <= value <= quantity.maximum:
        raise spec_error(
            where,
            path,
            f"expected a value from {quantity.minimum:g} to {quantity.maximum:g}{unit}, got {shown(value)}. "
            + ("Values are in SI base units: check the unit." if quantity.unit in _MEASURES else "Correct the value."),
        )
    return int(value) if quantity.integer else float(value)


def _problem_of_number_text(text: str) -> str:
    try:
        number = float(text)
    except ValueError:
        return f"expected a number, got the text {shown(text)}. Write a plain number."
    if not math.isfinite(number):
        return f"expected a finite number, got the text {shown(text)}. Leave the field out where it is unknown."
    return (
        f"expected a number, got the text {shown(text)} (YAML 1.1, as PyYAML reads it, wants a dot and a signed "
        f"exponent, and no quotes). Write {_format_yaml_float(number)}."
    )


def _format_yaml_float(number: float) -> str:
    mantissa, _, exponent = f"{number:.15e}".partition("e")
    mantissa = mantissa.rstrip("0")
    return f"{mantissa}{'0' if mantissa.endswith('.') else ''}e{int(exponent):+d}"


def value_and_source_of_number(where: str, path: str, data: object, quantity: Quantity) -> tuple[float, str]:
    """Return the effective value of ``{datasheet: ..., measured: ..., note: ..., spread: ...}`` and its source."""
    if isinstance(data, str):
        raise spec_error(where, path, _problem_of_number_text(data))
    if not isinstance(data, Mapping):
        got = shown(data)
        raise spec_error(where, path, f"expected a mapping with the source, e.g. {{datasheet: {got}}}, got {got}.")
    check_keys(where, path, data, (*SOURCES, "spread", "note"))
    values = {s: check_number(where, f"{path}.{s}", data[s], quantity) for s in SOURCES if s in data}
    if not values:
        raise spec_error(
            where, path, f"expected a value from one of {list(SOURCES)}, got none. Add e.g. {{datasheet: ...}}."
        )
    if "spread" in data:
        check_number(where, f"{path}.spread", data["spread"], _SPREAD)
    if not isinstance(data.get("note", ""), str):
        raise spec_error(where, f"{path}.note", f"expected text, got {shown(data['note'])}. Quote it.")
    source = next(s for s in SOURCES if s in values)
    return values[source], source


def join_dotted_path(path: str, key: str) -> str:
    """Return the dotted path of a key; an empty ``path`` is the root."""
    return f"{path}.{key}" if path else str(key)


def unknown_path_hint(path: str, known: Mapping[str, Quantity]) -> str:
    """Return a hint for an unknown path: the closest known path, otherwise the fields of its section."""
    section, _, last = path.rpartition(".")
    begun = [name for name in known if len(path) > 2 and name.rpartition(".")[2].startswith(path)]
    if len({name.rpartition(".")[0] for name in begun}) > 1:  # a field of several layers: any may be meant
        least = min(len(name.rpartition(".")[2]) for name in begun)
        shortest = [name for name in begun if len(name.rpartition(".")[2]) == least]
        return f"; expected one of {shortest}."
    while section and not any(name.startswith(f"{section}.") for name in known):
        section, _, last = section.rpartition(".")
    under = [name.removeprefix(f"{section}.") for name in known if not section or name.startswith(f"{section}.")]
    part, _, field = path.removeprefix(f"{section}.").partition(".")
    for head in difflib.get_close_matches(part, sorted({n.partition(".")[0] for n in under}), n=1, cutoff=0.6):
        if field and head != part:  # a layer's name that is misspelt comes before its field
            hint = join_dotted_path(section, head)
            full = f"{hint}.{field}"
            nested = unknown_path_hint(full, known)
            return nested if "did you mean" in nested else f"; did you mean '{full if full in known else hint}'?"
    ends: dict[str, str] = {}
    for name in under:  # of several layers that have the field, the first is shown
        ends.setdefault(name.rpartition(".")[2], name)
        ends.setdefault(name, name)
    for near in difflib.get_close_matches(last, list(ends), n=1, cutoff=0.5):
        return f"; did you mean '{join_dotted_path(section, ends[near])}'?"
    fields = sorted({name.partition(".")[0] for name in under})
    if section:
        return f"; {section} has {fields}."
    return f"; expected one of {fields} or a path under it. `roller devices --show DEVICE` lists all."
