"""Replaces values of a device by dotted path, reversibly: setting them back restores the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from roller.errors import SpecError, shown
from roller.hardware.checks import Quantity, check_number, spec_error, unknown_path_hint
from roller.hardware.consistency import check_consistency
from roller.hardware.sections import NOT_OF_KERNELS, Compute
from roller.hardware.spec import DeviceSpec

#: Source of values set by hand.
_BY_HAND = "override"


def apply_overrides(
    spec: DeviceSpec, overrides: Mapping[str, float], source: str, known: Mapping[str, Quantity]
) -> DeviceSpec:
    """Return a copy of ``spec`` with some values replaced; see ``DeviceSpec.with_overrides``."""
    numbers = _check_overrides(spec.name, overrides, known)
    if not numbers:
        return spec
    if source != _BY_HAND:
        return _replace_sources(_replace_numbers(spec, numbers), dict.fromkeys(numbers, source))
    base = spec.base or spec
    by_hand = {p: v for p, v in spec.values().items() if spec.sources.get(p) == _BY_HAND} | numbers
    before = base.values()
    is_validated = all(_is_accuracy_path(p) or p in NOT_OF_KERNELS or before.get(p) == v for p, v in by_hand.items())
    errors = base if is_validated else base.with_unvalidated_accuracy()
    made = replace(spec, accuracy=errors.accuracy, doubt=errors.doubt)
    # An error set by hand stays, whatever the other values are.
    kinds = _scaled_traffic_bandwidths(base, by_hand)
    made = _replace_numbers(made, kinds | numbers | {p: v for p, v in by_hand.items() if _is_accuracy_path(p)})
    before, sources = errors.values(), {p: s for p, s in spec.sources.items() if not _is_accuracy_path(p)}
    sources |= {p: s for p, s in errors.sources.items() if _is_accuracy_path(p) or p in by_hand}
    changed = {p: _BY_HAND for p, v in by_hand.items() if before.get(p) != v}
    made = replace(made, base=base if changed else None, source_items=tuple(sources.items()))
    return _replace_sources(made, changed)


def _is_accuracy_path(path: str) -> bool:
    return path.startswith("accuracy.")


def _check_overrides(where: str, overrides: Mapping[str, float], known: Mapping[str, Quantity]) -> dict[str, float]:
    if not isinstance(overrides, Mapping):
        raise SpecError(f"{where}: overrides: expected a mapping from paths to numbers, got {shown(overrides)}.")
    numbers = dict[str, float]()
    for path, value in overrides.items():
        if not isinstance(path, str):
            raise SpecError(f"{where}: overrides: expected dotted paths such as 'units', got {shown(path)}.")
        if path not in known:
            raise spec_error(where, path, f"unknown field{unknown_path_hint(path, known)}")
        numbers[path] = check_number(where, path, value, known[path])
    return numbers


def _scaled_traffic_bandwidths(base: DeviceSpec, by_hand: Mapping[str, float]) -> dict[str, float]:
    """Return read and triad bandwidths scaled in proportion to an overridden copy bandwidth."""
    found = dict[str, float]()
    for layer in base.memory_layers:
        where = f"memory_layers.{layer.name}"
        given = by_hand.get(f"{where}.bandwidth_bytes_per_s")
        if given is None:
            continue
        for kind in ("read_bandwidth_bytes_per_s", "triad_bandwidth_bytes_per_s"):
            own = getattr(layer, kind)
            if own is not None and f"{where}.{kind}" not in by_hand:
                found[f"{where}.{kind}"] = own * (given / layer.bandwidth_bytes_per_s)
    return found


def _replace_numbers(spec: DeviceSpec, numbers: Mapping[str, float]) -> DeviceSpec:
    for path, given in numbers.items():
        head, _, rest = path.partition(".")
        if head == "memory_layers":
            name, _, key = rest.partition(".")
            layers = tuple(_replace_dataclass_field(x, key, given) if x.name == name else x for x in spec.memory_layers)
            spec = replace(spec, memory_layers=layers)
        elif head == "compute":
            rates = spec.compute.ops_per_cycle_per_unit | {rest.partition(".")[2]: given}
            spec = replace(spec, compute=Compute(tuple(rates.items())))
        elif rest:
            spec = _replace_dataclass_field(spec, head, _replace_dataclass_field(getattr(spec, head), rest, given))
        else:
            spec = _replace_dataclass_field(spec, head, given)
    check_consistency(spec.name, spec)
    return spec


def _replace_sources(spec: DeviceSpec, sources: Mapping[str, str]) -> DeviceSpec:
    return replace(spec, source_items=tuple({**spec.sources, **sources}.items()))


def _replace_dataclass_field(obj: Any, name: str, value: object) -> Any:
    return replace(obj, **{name: value})
