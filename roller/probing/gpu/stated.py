"""What the driver says of a device, held against a specification: this one, or one like it.

A device of a known architecture takes the nearest specification; one of an architecture nobody wrote down yet takes
that of the nearest number in its language, so that a probe has something to start from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from roller.errors import SpecError
from roller.hardware import DeviceSpec
from roller.hardware.spec import settable
from roller.runtime.devices import DeviceProperties, match, same_arch

#: Bytes that differ less are the same: memory of the driver's own, decimal against binary units. Counts are exact.
SAME = 0.08


def base_of(properties: DeviceProperties, specs: Iterable[DeviceSpec]) -> DeviceSpec:
    """Return the specification to start from.

    Parameters
    ----------
    properties
        What the device says.
    specs
        To choose from.

    Raises
    ------
    SpecError
        Where none is of the device's language.
    """
    known = [s for s in specs if s.kind == "gpu"]
    if any(same_arch(s.target.get("arch", ""), properties.arch) for s in known):
        return match(properties, known)
    prefix = re.sub(r"[\d].*", "", properties.arch)
    fitting = [s for s in known if s.target["arch"].startswith(prefix)]
    if not prefix or not fitting:
        archs = sorted({s.target["arch"] for s in known})
        raise SpecError(f"{properties.name}: expected an architecture like {archs}, got '{properties.arch}'.")
    near = min(fitting, key=lambda s: (abs(_number(s.target["arch"]) - _number(properties.arch)), s.name))
    target = tuple((k, properties.arch if k == "arch" else v) for k, v in near.target_items)
    return replace(near, target_items=target, description=f"{properties.name}, starting from {near.name}")


def _number(arch: str) -> int:
    """Return an architecture's number; AMD's last two digits may be hexadecimal.

    Examples
    --------
    >>> _number("sm_89"), _number("gfx90a") - _number("gfx906")
    (89, 4)
    """
    digits = re.sub(r"^\D+", "", arch)
    return int(digits, 16) if arch.startswith("gfx") else int(re.sub(r"\D", "", digits) or 0)


def as_stated(spec: DeviceSpec, properties: DeviceProperties) -> DeviceSpec:
    """Return a specification with the driver's numbers where they contradict it.

    Parameters
    ----------
    spec
        The base.
    properties
        What the device says.

    Returns
    -------
    DeviceSpec
        The same object where nothing contradicts; else the driver's numbers are marked ``detected``.
    """
    known, before = settable(spec), spec.values()
    changed: dict[str, float] = {
        path: value
        for path, value in properties.stated
        if path in known and abs(value / before.get(path, value) - 1.0) > (SAME if path.endswith("_bytes") else 0.0)
    }
    if not changed:
        return spec
    shared = spec.layer("shared")
    capacity = changed.get("memory_layers.shared.capacity_bytes")
    if capacity is not None and shared.usable_bytes and shared.usable_bytes > capacity:
        changed["memory_layers.shared.usable_bytes"] = capacity  # a budget cannot exceed what there is
    return spec.with_overrides(changed, "detected")
