"""Checks of device data against the fields of :mod:`roller.hardware.spec`, and what to say where they fail.

A specification is data somebody typed, often in the wrong unit. Each check therefore names the file and the
dotted path, what was expected, what was found, and what to write instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from roller.errors import SpecError, did_you_mean
from roller.hardware.spec import (
    LAYER_NAMES,
    OPERATION_CLASSES,
    OPTIONAL_CLASSES,
    SOURCES,
    Compute,
    DeviceSpec,
    Execution,
    Limits,
    MemoryLayer,
    Quantity,
    Teu,
    quantities,
)

RATE = Quantity("operations/cycle/unit", 1e-3, 1e6)
DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "int32")
TARGET_KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    # language: (required, optional)
    "cuda": (("arch",), ()),
    "hip": (("arch",), ()),
    "llvm": (("mcpu",), ("mtriple",)),
}
KIND_OF_LANGUAGE = {"cuda": "gpu", "hip": "gpu", "llvm": "cpu"}
SCOPES = ("thread", "unit", "device")

# Endings that say a unit. The left-hand sides are what people type; the loader takes SI base units only.
_UNIT_ENDINGS = (
    "_bytes_per_s", "_gb_per_s", "_gbps", "_gb_s", "_mb_per_s", "_tb_per_s", "_gib_per_s", "_kib", "_mib", "_gib",
    "_kb", "_mb", "_gb", "_bytes", "_hz", "_mhz", "_ghz", "_khz", "_ns", "_us", "_ms", "_cycles", "_s",
)  # fmt: skip


def fail(where: str, path: str, problem: str) -> SpecError:
    """Return the error of one place in a specification."""
    return SpecError(f"{where}: {path}: {problem}" if path else f"{where}: {problem}")


def check_keys(where: str, path: str, found: Iterable[Any], known: Iterable[str], required: Iterable[str] = ()) -> None:
    """Refuse unknown keys (with a suggestion) and missing ones.

    Raises
    ------
    SpecError
        At the first unknown key, else at the first missing one.
    """
    known, found = tuple(known), tuple(found)
    for key in found:
        if key not in known:
            raise fail(where, _join(path, str(key)), _unknown(str(key), known, found))
    for key in required:
        if key not in found:
            raise fail(where, _join(path, key), "missing. Add it with its source, e.g. {datasheet: ...}.")


def _unknown(key: str, known: tuple[str, ...], found: tuple[Any, ...]) -> str:
    stem = _stem(key)
    for name in known:
        if _stem(name) == stem and stem != name and name not in found:
            return f"wrong unit; expected '{name}' (SI base units), got '{key}'. Convert the value and rename the key."
    return f"unknown key{did_you_mean(key, known) or f'; expected one of {list(known)}.'}"


def _stem(key: str) -> str:
    for ending in sorted(_UNIT_ENDINGS, key=len, reverse=True):
        if key.endswith(ending):
            return key.removesuffix(ending)
    return key


def check_number(where: str, path: str, value: object, quantity: Quantity) -> float:
    """Return a number that has the field's type and lies in its range.

    Raises
    ------
    SpecError
        Where it is text, not finite, not whole where it must be, negative, or implausible.
    """
    unit = f" {quantity.unit}" if quantity.unit else ""
    if isinstance(value, str):
        raise fail(where, path, _text_problem(value))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise fail(where, path, f"expected a number{unit and f' in{unit}'}, got {value!r}. Write a plain number.")
    if not math.isfinite(value):
        raise fail(where, path, f"expected a finite number, got {value!r}. Leave the field out where it is unknown.")
    if quantity.integer and value != int(value):
        raise fail(where, path, f"expected a whole number of {quantity.unit}, got {value!r}.")
    if value < 0:
        raise fail(where, path, f"expected a value of at least {quantity.minimum:g}{unit}, got {value!r}.")
    if not quantity.minimum <= value <= quantity.maximum:
        raise fail(
            where,
            path,
            f"expected a value from {quantity.minimum:g} to {quantity.maximum:g}{unit}, got {value!r}. "
            "Values are in SI base units: check the unit.",
        )
    return int(value) if quantity.integer else float(value)


def _text_problem(text: str) -> str:
    try:
        number = float(text)
    except ValueError:
        return f"expected a number, got the text {text!r}. Write a plain number."
    return (
        f"expected a number, got the text {text!r} (YAML 1.1, as PyYAML reads it, wants a dot and a signed "
        f"exponent, and no quotes). Write {_yaml_float(number)}."
    )


def _yaml_float(number: float) -> str:
    mantissa, _, exponent = f"{number:.15e}".partition("e")
    mantissa = mantissa.rstrip("0")
    return f"{mantissa}{'0' if mantissa.endswith('.') else ''}e{int(exponent):+d}"


def read_sourced(where: str, path: str, data: object, quantity: Quantity) -> tuple[float, str]:
    """Return the effective value of ``{datasheet: ..., measured: ..., note: ...}`` and its source.

    Raises
    ------
    SpecError
        Where no source is given, a source is unknown, or a value is wrong.
    """
    if isinstance(data, str):
        raise fail(where, path, _text_problem(data))
    if not isinstance(data, Mapping):
        raise fail(where, path, f"expected a mapping with the source, e.g. {{datasheet: {data}}}, got {data!r}.")
    check_keys(where, path, data, (*SOURCES, "note"))
    values = {s: check_number(where, f"{path}.{s}", data[s], quantity) for s in SOURCES if s in data}
    if not values:
        raise fail(where, path, f"expected a value from one of {list(SOURCES)}, got none. Add e.g. {{datasheet: ...}}.")
    if not isinstance(data.get("note", ""), str):
        raise fail(where, f"{path}.note", f"expected text, got {data['note']!r}. Quote it.")
    source = next(s for s in SOURCES if s in values)
    return values[source], source


def check_target(where: str, kind: str, data: object) -> tuple[tuple[str, str], ...]:
    """Return the target as sorted pairs.

    Raises
    ------
    SpecError
        Where the language is unknown, does not fit the kind of device, or keys are missing.
    """
    if not isinstance(data, Mapping) or not all(isinstance(v, str) for v in data.values()):
        raise fail(where, "target", f"expected text values such as {{language: cuda, arch: sm_70}}, got {data!r}.")
    language = data.get("language")
    if language not in TARGET_KEYS:
        hint = did_you_mean(str(language), TARGET_KEYS)
        raise fail(where, "target.language", f"expected one of {sorted(TARGET_KEYS)}, got {language!r}{hint}")
    if KIND_OF_LANGUAGE[language] != kind:
        raise fail(where, "target.language", f"expected a language of a {kind}, got {language!r}. Correct 'kind'.")
    required, optional = TARGET_KEYS[language]
    check_keys(where, "target", data, ("language", *required, *optional), required)
    return tuple(sorted(data.items()))


def check_rate_name(where: str, path: str, name: str) -> None:
    """Refuse a rate of an instruction class or dtype that does not exist.

    Raises
    ------
    SpecError
        With a suggestion.
    """
    operation, dot, dtype = str(name).partition(".")
    classes = (*OPERATION_CLASSES, *OPTIONAL_CLASSES)
    if operation not in classes:
        raise fail(where, _join(path, name), f"unknown key{did_you_mean(operation, classes) or f'; one of {classes}.'}")
    if dot and dtype not in DTYPES:
        raise fail(where, _join(path, name), f"unknown dtype '{dtype}'{did_you_mean(dtype, DTYPES)}")


def check_consistency(where: str, spec: DeviceSpec) -> None:
    """Refuse numbers that contradict each other.

    Raises
    ------
    SpecError
        Where a usable budget exceeds its hard limit, or only one of a pair is given.
    """
    limits = spec.limits
    pairs: list[tuple[str, float | None, str, float | None]] = [
        ("limits.usable_registers_per_thread", limits.usable_registers_per_thread,
         "limits.registers_per_thread", limits.registers_per_thread),
        ("limits.usable_vector_registers", limits.usable_vector_registers,
         "limits.vector_registers", limits.vector_registers),
        ("limits.threads_per_block", limits.threads_per_block, "limits.threads_per_unit", limits.threads_per_unit),
    ]  # fmt: skip
    for layer in spec.memory_layers:
        path = f"memory_layers.{layer.name}"
        pairs.append((f"{path}.usable_bytes", layer.usable_bytes, f"{path}.capacity_bytes", layer.capacity_bytes))
        if (layer.banks is None) != (layer.bank_width_bytes is None):
            raise fail(where, f"{path}.banks", "expected banks and bank_width_bytes together. Add the other one.")
        if (layer.bandwidth_per_teu_bytes_per_s is None) != (layer.saturation_exponent is None):
            problem = "expected bandwidth_per_teu_bytes_per_s and saturation_exponent together. Add the other one."
            raise fail(where, f"{path}.saturation_exponent", problem)
    for path, value, bound_path, bound in pairs:
        if value is not None and bound is not None and value > bound:
            raise fail(where, path, f"expected at most {bound_path} = {bound}, got {value}. Lower it.")


def override(spec: DeviceSpec, overrides: Mapping[str, float], source: str) -> DeviceSpec:
    """Return a copy of a spec with numbers replaced by dotted path; see ``DeviceSpec.with_overrides``.

    Raises
    ------
    SpecError
        Where a path does not exist for this kind of device, or a value is wrong.
    """
    if not overrides:
        return spec
    where = spec.name
    known = settable(spec)
    for path, value in overrides.items():
        if path not in known:
            raise fail(where, path, f"unknown field{did_you_mean(path, known) or f'; one of {sorted(known)}.'}")
        number = check_number(where, path, value, known[path])
        head, _, rest = path.partition(".")
        if head == "memory_layers":
            name, _, key = rest.partition(".")
            layers = tuple(_replaced(x, key, number) if x.name == name else x for x in spec.memory_layers)
            spec = replace(spec, memory_layers=layers)
        elif head == "compute":
            rates = spec.compute.ops_per_cycle_per_unit | {rest.partition(".")[2]: number}
            spec = replace(spec, compute=Compute(tuple(rates.items())))
        elif rest:
            spec = _replaced(spec, head, _replaced(getattr(spec, head), rest, number))
        else:
            spec = _replaced(spec, head, number)
    check_consistency(where, spec)
    return replace(spec, source_items=tuple((spec.sources | dict.fromkeys(overrides, source)).items()))


def _replaced(obj: Any, name: str, value: object) -> Any:  # noqa: ANN401 - any of the frozen sections
    return replace(obj, **{name: value})


def settable(spec: DeviceSpec) -> dict[str, Quantity]:
    """Return every numeric path of a device, given or not, with its unit and range."""
    out = dict(quantities(DeviceSpec))
    for name, section in (("teu", Teu), ("execution", Execution), ("limits", Limits)):
        out |= {f"{name}.{k}": q for k, q in quantities(section).items()}
    prefix = "compute.ops_per_cycle_per_unit"
    names = {*OPERATION_CLASSES, *OPTIONAL_CLASSES, *spec.compute.ops_per_cycle_per_unit}
    names |= {f"{c}.{d}" for c in ("fma", "add", "matrix") for d in DTYPES}
    out |= {f"{prefix}.{name}": RATE for name in sorted(names)}
    for layer in LAYER_NAMES[spec.kind]:
        out |= {f"memory_layers.{layer}.{k}": q for k, q in quantities(MemoryLayer).items()}
    return out


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else str(key)
