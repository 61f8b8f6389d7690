"""Compares the values that the driver reports with a specification."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from roller.backends.parse_device_names import DeviceProperties, architectures_match, find_matching_spec
from roller.errors import SpecError
from roller.hardware import DeviceSpec
from roller.hardware.spec import settable_fields

#: Relative tolerance of byte sizes (driver-reserved memory, decimal against binary units); counts must be equal.
SAME = 0.08
_CAPACITY, _BUDGET = "memory_layers.shared.capacity_bytes", "memory_layers.shared.usable_bytes"


def choose_base_spec(properties: DeviceProperties, specs: Iterable[DeviceSpec]) -> DeviceSpec:
    """Return the specification from which a probe starts: that of the architecture, or else the nearest, adapted."""
    known = [s for s in specs if "arch" in s.target]
    if any(architectures_match(s.target.get("arch", ""), properties.arch) for s in known):
        return find_matching_spec(properties, known)
    prefix = re.sub(r"[\d].*", "", properties.arch)
    fitting = [s for s in known if s.target["arch"].startswith(prefix)]
    if not prefix or not fitting:
        archs = sorted({s.target["arch"] for s in known})
        raise SpecError(f"{properties.name}: expected an architecture like {archs}, got '{properties.arch}'.")
    own = _architecture_number(properties.arch)
    near = min(
        fitting,
        key=lambda s: (
            _architecture_number(s.target["arch"]) > own,
            abs(_architecture_number(s.target["arch"]) - own),
            s.name,
        ),
    )
    return _spec_for_other_architecture(near, properties)


def _spec_for_other_architecture(near: DeviceSpec, properties: DeviceProperties) -> DeviceSpec:
    """Return a specification for a device of a different architecture, with the features common to both."""
    target = tuple((k, properties.arch if k == "arch" else v) for k, v in near.target_items)
    fragments, execution = near.fragments, near.execution
    if _architecture_number(near.target["arch"]) > _architecture_number(properties.arch):
        fragments, execution = (), replace(execution, async_copy_bytes=None)
    # Kernels with architecture-specific instructions do not load on later architectures.
    kept = tuple(f for f in fragments if not f.arch or architectures_match(f.arch, properties.arch))
    text = f"{properties.name}, starting from {near.name}"
    spec = replace(near, target_items=target, description=text, fragments=kept, execution=execution)
    # A block's scratchpad limit depends on the architecture: the opt-in limit, otherwise the static one.
    stated, shared = dict(properties.stated), spec.layer("shared")
    known = shared.usable_bytes or shared.capacity_bytes
    budget = stated.get(_BUDGET) or min(known, stated.get("limits.shared_bytes_per_block", known))
    capacity = stated.get(_CAPACITY, max(budget, shared.capacity_bytes))
    changed = {p: v for p, v in ((_CAPACITY, capacity), (_BUDGET, min(budget, capacity))) if v != spec.values().get(p)}
    return spec.with_overrides(changed, "detected")


def _architecture_number(arch: str) -> int:
    """Return an architecture's number; AMD's last two digits may be hexadecimal.

    >>> _architecture_number("sm_89"), _architecture_number("gfx90a") - _architecture_number("gfx906")
    (89, 4)
    """
    digits = re.sub(r"^\D+", "", arch)
    return int(digits, 16) if arch.startswith("gfx") else int(re.sub(r"\D", "", digits) or 0)


def correct_by_driver_numbers(spec: DeviceSpec, properties: DeviceProperties) -> DeviceSpec:
    """Return ``spec`` with the driver's values wherever they contradict its own."""
    known, before = settable_fields(spec), spec.values()
    changed: dict[str, float] = {}
    for path, value in properties.stated:
        tolerance = SAME if path.endswith("_bytes") else 0.0
        if path in known and path != _BUDGET and abs(value / before.get(path, value) - 1.0) > tolerance:
            changed[path] = value
    # A budget may be smaller than the limits of a block and of a unit, but not larger.
    limits = [changed[_CAPACITY]] if _CAPACITY in changed else []
    limits += [value for path, value in properties.stated if path == _BUDGET]
    budget = before.get(_BUDGET, 0.0)
    if limits and budget > min(limits):
        changed[_BUDGET] = min(limits)
    return spec.with_overrides(changed, "detected") if changed else spec
