"""Parses names of reachable devices (``cuda:0``, ``rocm:1``, ``null:v100``) and matches devices to specifications.

A device gets the specification with the same architecture and the closest number of units and memory size.
Specifications are passed in, so that a bare machine needs none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roller.errors import LaunchError, SpecError, did_you_mean
from roller.targets import DEVICES, Target, canonical_device_name

if TYPE_CHECKING:
    from roller.hardware import DeviceSpec

#: Prefixes of device names whose kernels are checked and timed in a separate process.
KINDS = tuple(name for name, target in DEVICES.items() if target.worker)
_NULL_OPTIONS = ("noise", "seed", "delay", "hang", "crash", "wrong", "out_of_bounds")


@dataclass(frozen=True)
class DeviceHandle:
    """Device that can run kernels.

    Parameters
    ----------
    kind
        One of :data:`KINDS`.
    index
        Index of the device on this machine.
    spec
        Name of the specification, for a device without an index.
    options
        ``((name, value), ...)`` for a null device: ``noise`` (relative standard deviation of its times), ``seed``,
        ``delay`` (seconds per check), and the positions of candidates that ``hang``, ``crash``, are ``wrong`` or write
        ``out_of_bounds``.

    Examples
    --------
    >>> parse_device_name("null:v100?noise=0.1&hang=2").text
    'null:v100?noise=0.1&hang=2'
    """

    kind: str
    index: int = 0
    spec: str = ""
    options: tuple[tuple[str, str], ...] = ()

    @property
    def target(self) -> Target:
        """Target that describes this kind of device."""
        return DEVICES[self.kind]

    @property
    def text(self) -> str:
        """Name that :func:`parse_device_name` accepts."""
        if self.target.numbered:
            return f"{self.kind}:{self.index}"
        options = "&".join(f"{k}={v}" for k, v in self.options)
        return f"{self.kind}:{self.spec}" + (f"?{options}" if options else "")


@dataclass(frozen=True)
class DeviceProperties:
    """Properties reported by a device.

    Parameters
    ----------
    arch
        Architecture, written as in specifications (``"sm_90"``, ``"gfx90a"``); empty for a null device.
    units
        Number of SMs or CUs.
    cache_bytes
        Size of the last-level cache.
    versions
        ``((component, version), ...)`` for CuPy, the driver and the runtime.
    stated
        ``((field of a specification, value), ...)``: limits and sizes reported by the driver.
    """

    name: str
    arch: str = ""
    units: int = 0
    memory_bytes: int = 0
    cache_bytes: int = 0
    versions: tuple[tuple[str, str], ...] = ()
    stated: tuple[tuple[str, int], ...] = ()


def is_reachable_device_name(device: object) -> bool:
    """Return whether ``device`` names a device to run on rather than a specification.

    Examples
    --------
    >>> is_reachable_device_name("cuda:0"), is_reachable_device_name("v100"), is_reachable_device_name("null:v100")
    (True, False, True)
    """
    if not isinstance(device, str):
        return False
    kind, colon, _ = canonical_device_name(device).partition(":")
    return kind in KINDS and (bool(colon) or DEVICES[kind].numbered)


def parse_device_name(device: str) -> DeviceHandle:
    """Parse a device name into a handle.

    Examples
    --------
    >>> parse_device_name("cuda").index, parse_device_name("rocm:1").index, parse_device_name("null:h200").spec
    (0, 1, 'h200')
    """
    kind, colon, rest = canonical_device_name(device).partition(":")
    numbered = kind in KINDS and DEVICES[kind].numbered
    if numbered and re.fullmatch(r"(:\d+)?", colon + rest):
        return DeviceHandle(kind, int(rest or 0))
    if kind in KINDS and not numbered and rest:
        spec, _, options = rest.partition("?")
        pairs = tuple((k, v) for k, _, v in (p.partition("=") for p in options.split("&") if p))
        for key, value in pairs:
            if key not in _NULL_OPTIONS or not re.fullmatch(r"[0-9.,]+", value):
                raise LaunchError(
                    f"device '{device}': option '{key}={value}': expected NAME=NUMBER with one of "
                    f"{_NULL_OPTIONS}{did_you_mean(key, _NULL_OPTIONS)}"
                )
        return DeviceHandle(kind, 0, spec, pairs)
    raise LaunchError(
        f"device '{device}': expected cuda:N, rocm:N or null:SPEC. For a device that is not here, name its spec "
        "(`roller devices`)."
    )


def find_matching_spec(properties: DeviceProperties, specs: Iterable[DeviceSpec]) -> DeviceSpec:
    """Return the specification with the same architecture and the closest number of units and memory size."""
    known = list(specs)
    fitting = [s for s in known if architectures_match(s.target.get("arch", ""), properties.arch)]
    if not fitting:
        archs = sorted({s.target["arch"] for s in known if "arch" in s.target})
        raise SpecError(
            f"{properties.name}: expected a specification of '{properties.arch}', found only {archs}. Write one YAML "
            "(see hardware_specs/), pass its path as the device to construct and build, and run its bundle here."
        )

    def distance(spec: DeviceSpec) -> tuple[float, str]:
        memory = spec.memory_layers[-1].reported_bytes or spec.memory_layers[-1].capacity_bytes
        units = abs(math.log(max(properties.units, 1) / spec.units))
        return units + abs(math.log(max(properties.memory_bytes, 1) / memory)), spec.name

    return min(fitting, key=distance)


def properties_from_data(data: Mapping[str, object]) -> DeviceProperties:
    """Convert the plain data that a device process sent to properties."""
    values = dict(data)
    raw = values.pop("versions", {})
    versions = tuple((str(k), str(v)) for k, v in raw.items()) if isinstance(raw, dict) else ()
    said = values.pop("stated", {})
    stated = tuple((str(k), int(v)) for k, v in said.items()) if isinstance(said, dict) else ()
    return DeviceProperties(versions=versions, stated=stated, **values)  # type: ignore[arg-type]


def architectures_match(one: str, other: str) -> bool:
    """Return whether two architectures are equal except for their feature suffix.

    Examples
    --------
    >>> architectures_match("sm_90", "sm_90a"), architectures_match("sm_90", "sm_80")
    (True, False)
    """
    return _without_feature_suffix(one) == _without_feature_suffix(other)


def _without_feature_suffix(arch: str) -> str:
    """Drop the suffix for architecture-specific features: ``sm_90`` devices run ``sm_90a`` code."""
    return re.sub(r"^(sm_\d+)[a-z]$", r"\1", arch)
