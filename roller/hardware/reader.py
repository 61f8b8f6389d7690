"""Finds, parses and checks the YAML files of device specifications in ``hardware_specs/``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from roller.errors import SpecError, did_you_mean, shown
from roller.hardware.checks import check_keys, join_dotted_path, spec_error, value_and_source_of_number
from roller.hardware.consistency import check_consistency, check_spec_file
from roller.hardware.read_matrix_fragment_specs import read_fragments
from roller.hardware.sections import (
    DTYPES,
    OPERATION_CLASSES,
    OPTIONAL_CLASSES,
    RATE,
    Accuracy,
    Compute,
    Execution,
    Limits,
    MemoryLayer,
    Teu,
    numeric_fields,
)
from roller.hardware.sourced_numbers import collect_sourced_numbers
from roller.hardware.spec import DeviceSpec
from roller.targets import KINDS, LANGUAGES, THIS_MACHINE
from roller_runtime.core.files import read_text

SCOPES = ("thread", "unit", "device")

#: Optional values of the board, which no kernel depends on.
_OF_THE_BOARD = (
    "power_w", "process_bytes", "process_convolution_bytes", "process_eager_bytes", "process_least_bytes",
    "process_most_bytes", "link_bytes_per_s", "link_latency_s",
)  # fmt: skip
_SECTIONS = ("name", "kind", "description", "target", "units", "clock_hz", "teu", "compute", "execution", "limits")


def spec_folder() -> Path:
    """Return the folder of the shipped specifications: in the installed package or in the checkout."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "hardware_specs", package.parent / "hardware_specs"):
        if folder.is_dir():
            return folder
    raise SpecError("hardware_specs: expected the folder beside the package, found none. Reinstall roller.")


def list_specs() -> tuple[str, ...]:
    """Return the sorted names of the shipped devices.

    Examples
    --------
    >>> "v100" in list_specs()
    True
    """
    return tuple(sorted(p.stem for p in spec_folder().glob("*.yaml")))


def read_spec(name_or_path: str) -> DeviceSpec:
    """Return the specification for a shipped name or YAML file, parsed once per version of the file."""
    path = _find_spec_file(name_or_path)
    return _parse_spec_file_cached(path, _modification_time_ns(path))


def spec_path(name_or_path: str) -> Path:
    """Return the file for a shipped name or path.

    >>> spec_path("V100").name
    'v100.yaml'
    """
    return _find_spec_file(name_or_path)


#: Maximum length of a file name, in characters, that every system accepts.
_MOST_NAME = 200


def _find_spec_file(name: str) -> Path:
    if name.endswith((".yaml", ".yml")) or os.sep in name:
        return Path(name)
    small = name.lower()
    path = spec_folder() / f"{small if small in list_specs() else name}.yaml"
    if len(name) > _MOST_NAME or not path.is_file():
        known = (*list_specs(), THIS_MACHINE)
        hint = did_you_mean(name.lower(), known)
        raise SpecError(f"device '{name}': unknown{hint or '.'} Known: {', '.join(known)}; or give the path of a YAML.")
    return path


def _modification_time_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError as err:
        raise SpecError(f"{path}: cannot read the specification ({err.strerror}). Check the path.") from err


@lru_cache(maxsize=64)
def _parse_spec_file_cached(path: Path, stamp: int) -> DeviceSpec:
    del stamp  # part of the key only: an edited file is a different entry
    where = f"{path.parent.name}/{path.name}" if path.parent.name == "hardware_specs" else str(path)
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as err:
        raise SpecError(f"{where}: cannot read the specification ({err}). Check the path.") from err
    return parse_spec(text, where)


class _UniqueKeyLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # the C parser where it was built
    """Safe YAML loader that rejects duplicate keys, which PyYAML would silently overwrite."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key '{key}' is given twice", key_node.start_mark)
            if isinstance(key, str):
                seen.add(key)
        found: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return found


def parse_spec(text: str, where: str) -> DeviceSpec:
    """Return the specification in a YAML text; ``where`` names the file in error messages."""
    try:
        data = yaml.load(text, Loader=_UniqueKeyLoader)
    # Not only YAMLError: also a number with thousands of digits, an impossible date, or deep nesting.
    except (yaml.YAMLError, ValueError, RecursionError) as err:
        mark = getattr(err, "problem_mark", None)
        place = f" at line {mark.line + 1}" if mark is not None else ""
        problem = getattr(err, "problem", None) or "a number, a date or its nesting is beyond reading"
        raise SpecError(f"{where}: not valid YAML{place}: {problem}. Correct the file.") from err
    if not isinstance(data, Mapping):
        raise SpecError(f"{where}: expected a mapping of sections, got {type(data).__name__}. See v100.yaml.")
    check_keys(
        where,
        "",
        data,
        (*_SECTIONS, "machine", *_OF_THE_BOARD, "memory_layers", "accuracy", "fragments"),
        (*_SECTIONS, "memory_layers"),
    )
    return _spec_from_data(where, data)


def _spec_from_data(where: str, data: Mapping[str, Any]) -> DeviceSpec:
    sources: dict[str, str] = {}
    kind = data["kind"]
    if kind not in KINDS:
        raise spec_error(where, "kind", f"expected one of {sorted(KINDS)}, got {shown(kind)}.")
    declared, given = numeric_fields(DeviceSpec), _split_clocks(where, data)
    top = _read_numbers(where, "", given, {k: declared[k] for k in declared if k in given}, sources)
    teu = _read_section_numbers(where, "teu", data["teu"], kind, sources, extra=("name",))
    spec = DeviceSpec(
        name=_read_text_field(where, "name", data["name"]),
        kind=kind,
        description=_read_text_field(where, "description", data["description"]),
        target_items=_read_target(where, kind, data["target"]),
        teu=Teu(name=_read_text_field(where, "teu.name", data["teu"].get("name")), **teu),
        compute=_read_compute(where, data["compute"], sources),
        execution=Execution(**_read_section_numbers(where, "execution", data["execution"], kind, sources)),
        limits=Limits(**_read_section_numbers(where, "limits", data["limits"], kind, sources)),
        memory_layers=_read_layers(where, data["memory_layers"], kind, sources),
        machine=_read_text_field(where, "machine", data["machine"]) if "machine" in data else "",
        accuracy=Accuracy(**_read_section_numbers(where, "accuracy", data.get("accuracy", {}), kind, sources)),
        fragments=read_fragments(where, data.get("fragments", [])),
        source_items=tuple(sources.items()),
        written=collect_sourced_numbers(data),
        **top,
    )
    check_consistency(where, spec)
    check_spec_file(where, spec)
    return spec if _errors_are_validated(where, spec, data.get("accuracy", {})) else spec.with_unvalidated_accuracy()


def _split_clocks(where: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the top-level data with ``clock_hz: {boost, sustained}`` as two numbers; a single number is boost."""
    clocks = data["clock_hz"]
    if not isinstance(clocks, Mapping) or not {"boost", "sustained"} & set(clocks):
        return dict(data)
    check_keys(where, "clock_hz", clocks, ("boost", "sustained"), ("boost", "sustained"))
    return {**data, "clock_hz": clocks["boost"], "sustained_clock_hz": clocks["sustained"]}


def _errors_are_validated(where: str, spec: DeviceSpec, accuracy: Mapping[str, Any]) -> bool:
    """Return whether the file's measured errors were validated with exactly the file's values."""
    # A copied file whose numbers were changed is not validated; unmeasured errors claim nothing.
    given = accuracy.get(VALIDATED_WITH)
    if given is not None:
        given = _read_text_field(where, f"accuracy.{VALIDATED_WITH}", given)
    measured = any(p.startswith("accuracy.") and source == "measured" for p, source in spec.sources.items())
    return not measured or given == spec.numbers_key


#: Key of ``accuracy`` with the :attr:`DeviceSpec.numbers_key` that measured errors were validated with.
VALIDATED_WITH = "validated_with"
_CLASSES = {"teu": Teu, "execution": Execution, "limits": Limits, "accuracy": Accuracy}


def _read_section_numbers(
    where: str, name: str, data: object, kind: str, sources: dict[str, str], extra: tuple[str, ...] = ()
) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise spec_error(where, name, f"expected a mapping of fields, got {shown(data)}.")
    declared = numeric_fields(_CLASSES[name])
    required = [k for k, q in declared.items() if kind in q.kinds]
    texts = (VALIDATED_WITH,) if name == "accuracy" else ()
    check_keys(where, name, data, (*extra, *texts, *declared), (*extra, *required))
    return _read_numbers(where, name, data, declared, sources)


def _read_numbers(
    where: str, path: str, data: Mapping[str, Any], declared: Mapping[str, Any], sources: dict[str, str]
) -> dict[str, Any]:
    out = {}
    for key, quantity in declared.items():
        if key in data:
            dotted = join_dotted_path(path, key)
            out[key], sources[dotted] = value_and_source_of_number(where, dotted, data[key], quantity)
    return out


def _read_compute(where: str, data: object, sources: dict[str, str]) -> Compute:
    path = "compute.ops_per_cycle_per_unit"
    if not isinstance(data, Mapping):
        raise spec_error(where, "compute", f"expected a mapping of fields, got {shown(data)}.")
    check_keys(where, "compute", data, ("ops_per_cycle_per_unit",), ("ops_per_cycle_per_unit",))
    rates = data["ops_per_cycle_per_unit"]
    if not isinstance(rates, Mapping):
        raise spec_error(where, path, f"expected a mapping of rates, got {shown(rates)}.")
    for name in rates:
        _check_rate_name(where, path, name)
    check_keys(where, path, rates, rates, OPERATION_CLASSES)
    return Compute(tuple(_read_numbers(where, path, rates, dict.fromkeys(rates, RATE), sources).items()))


def _read_layers(where: str, data: object, kind: str, sources: dict[str, str]) -> tuple[MemoryLayer, ...]:
    names = KINDS[kind].layers
    if not isinstance(data, list) or not all(isinstance(x, Mapping) for x in data):
        raise spec_error(where, "memory_layers", f"expected a list of layers {list(names)}, fastest first.")
    found = [x.get("name") for x in data]
    for name in found:
        if name not in names:
            hint = did_you_mean(str(name), names)
            raise spec_error(where, f"memory_layers.{name}", f"unknown layer{hint or '.'} A {kind} has {list(names)}.")
    for name in names:
        if name not in found:
            raise spec_error(where, f"memory_layers.{name}", f"missing layer; a {kind} has {list(names)}. Add it.")
    if tuple(found) != names:
        raise spec_error(
            where, "memory_layers", f"expected the order {list(names)}, fastest first, got {found}. Reorder."
        )
    return tuple(_read_layer(where, x, kind, sources) for x in data)


def _read_layer(where: str, data: Mapping[str, Any], kind: str, sources: dict[str, str]) -> MemoryLayer:
    path = f"memory_layers.{data['name']}"
    declared = numeric_fields(MemoryLayer)
    plain = ("name", "scope", "tiled")
    required = [k for k, q in declared.items() if kind in q.kinds]
    check_keys(where, path, data, (*plain, *declared), (*plain, *required))
    if data["scope"] not in SCOPES:
        raise spec_error(where, f"{path}.scope", f"expected one of {list(SCOPES)}, got {data['scope']!r}.")
    if not isinstance(data["tiled"], bool):
        raise spec_error(where, f"{path}.tiled", f"expected true or false, got {data['tiled']!r}.")
    return MemoryLayer(
        name=data["name"],
        scope=data["scope"],
        tiled=data["tiled"],
        **_read_numbers(where, path, data, declared, sources),
    )


def _read_target(where: str, kind: str, data: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(data, Mapping) or not all(isinstance(v, str) for v in data.values()):
        raise spec_error(
            where, "target", f"expected text values such as {{language: cuda, arch: sm_70}}, got {shown(data)}."
        )
    language = data.get("language")
    if language not in LANGUAGES:
        hint = did_you_mean(str(language), LANGUAGES)
        raise spec_error(where, "target.language", f"expected one of {sorted(LANGUAGES)}, got {shown(language)}{hint}")
    found = LANGUAGES[language]
    if found.kind.name != kind:
        raise spec_error(
            where, "target.language", f"expected a language of a {kind}, got {shown(language)}. Correct 'kind'."
        )
    check_keys(where, "target", data, ("language", *found.required_keys, *found.optional_keys), found.required_keys)
    return tuple(sorted(data.items()))


def _check_rate_name(where: str, path: str, name: str) -> None:
    operation, dot, dtype = str(name).partition(".")
    classes = (*OPERATION_CLASSES, *OPTIONAL_CLASSES)
    if operation not in classes:
        hint = did_you_mean(operation, classes) or f"; expected one of {list(classes)}."
        raise spec_error(where, join_dotted_path(path, name), f"unknown key{hint}")
    if dot and dtype not in DTYPES:
        raise spec_error(
            where, join_dotted_path(path, name), f"unknown dtype '{dtype}'{did_you_mean(dtype, DTYPES) or '.'}"
        )


def _read_text_field(where: str, path: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise spec_error(where, path, f"expected text, got {shown(value)}.")
    return value
