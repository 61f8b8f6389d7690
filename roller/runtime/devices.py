"""Reachable devices by name: ``cuda:0``, ``rocm:1``, ``null:v100``; and which specification fits one.

This file knows properties, not products: a device takes the specification of the same architecture whose
units and memory are nearest. Specifications are handed in, so that a bare machine needs none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roller.errors import LaunchError, SpecError, did_you_mean

if TYPE_CHECKING:
    from roller.hardware import DeviceSpec

#: Backends with a device of their own; each is a folder of ``roller/backends`` with a module ``device``.
KINDS = ("cuda", "rocm", "null")
_NULL_OPTIONS = ("noise", "seed", "delay", "hang", "crash", "wrong", "out_of_bounds")


@dataclass(frozen=True)
class DeviceHandle:
    """A device that can be asked to run something.

    Parameters
    ----------
    kind
        One of :data:`KINDS`.
    index
        Number of the device on this machine (GPUs).
    spec
        Name of the specification it stands for (``null``).
    options
        ``((name, value), ...)`` of a null device: ``noise`` (relative standard deviation of its times), ``seed``,
        ``delay`` (seconds a check takes), and the positions of candidates that ``hang``, ``crash``, are ``wrong`` or
        write ``out_of_bounds``.

    Examples
    --------
    >>> parse("null:v100?noise=0.1&hang=2").text
    'null:v100?noise=0.1&hang=2'
    """

    kind: str
    index: int = 0
    spec: str = ""
    options: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        """The name :func:`parse` reads back."""
        if self.kind != "null":
            return f"{self.kind}:{self.index}"
        options = "&".join(f"{k}={v}" for k, v in self.options)
        return f"null:{self.spec}" + (f"?{options}" if options else "")


@dataclass(frozen=True)
class DeviceProperties:
    """What a device says of itself.

    Parameters
    ----------
    name
        For people.
    arch
        Architecture as specifications name it (``"sm_90"``, ``"gfx90a"``); empty for a null device.
    units
        SMs or CUs.
    memory_bytes
        Device memory.
    cache_bytes
        Last-level cache.
    versions
        ``((component, version), ...)``: CuPy, driver, runtime.
    stated
        ``((path of a specification's field, number), ...)``: limits and sizes as the driver gives them.
    """

    name: str
    arch: str = ""
    units: int = 0
    memory_bytes: int = 0
    cache_bytes: int = 0
    versions: tuple[tuple[str, str], ...] = ()
    stated: tuple[tuple[str, int], ...] = ()


def is_reachable(device: object) -> bool:
    """Return whether a device name means a device to run on, not a specification.

    Examples
    --------
    >>> is_reachable("cuda:0"), is_reachable("v100"), is_reachable("null:v100")
    (True, False, True)
    """
    return isinstance(device, str) and (device in ("cuda", "rocm") or device.partition(":")[0] in KINDS)


def parse(device: str) -> DeviceHandle:
    """Return the handle a name stands for.

    Raises
    ------
    LaunchError
        Where the name is malformed.

    Examples
    --------
    >>> parse("cuda").index, parse("rocm:1").index, parse("null:h200").spec
    (0, 1, 'h200')
    """
    kind, colon, rest = device.partition(":")
    if kind in ("cuda", "rocm") and re.fullmatch(r"(:\d+)?", colon + rest):
        return DeviceHandle(kind, int(rest or 0))
    if kind == "null" and rest:
        spec, _, options = rest.partition("?")
        pairs = tuple((k, v) for k, _, v in (p.partition("=") for p in options.split("&") if p))
        for key, value in pairs:
            if key not in _NULL_OPTIONS or not re.fullmatch(r"[0-9.,]+", value):
                raise LaunchError(
                    f"device '{device}': option '{key}={value}': expected NAME=NUMBER with one of "
                    f"{_NULL_OPTIONS}{did_you_mean(key, _NULL_OPTIONS)}"
                )
        return DeviceHandle("null", 0, spec, pairs)
    raise LaunchError(
        f"device '{device}': expected cuda:N, rocm:N or null:SPEC. For a device that is not here, name its spec "
        "(`roller devices`)."
    )


def match(properties: DeviceProperties, specs: Iterable[DeviceSpec]) -> DeviceSpec:
    """Return the specification of the same architecture with the nearest units and memory.

    Raises
    ------
    SpecError
        Where no specification has the architecture.
    """
    known = list(specs)
    fitting = [s for s in known if same_arch(s.target.get("arch", ""), properties.arch)]
    if not fitting:
        archs = sorted({s.target["arch"] for s in known if s.kind == "gpu"})
        raise SpecError(
            f"{properties.name}: expected a specification of '{properties.arch}', found only {archs}. Write one YAML "
            "(see hardware_specs/), pass its path as the device to construct and build, and run its bundle here."
        )

    def distance(spec: DeviceSpec) -> tuple[float, str]:
        memory = spec.memory_layers[-1].capacity_bytes
        units = abs(math.log(max(properties.units, 1) / spec.units))
        return units + abs(math.log(max(properties.memory_bytes, 1) / memory)), spec.name

    return min(fitting, key=distance)


def resolve(device: str, names: Iterable[str], load: Callable[[str], DeviceSpec]) -> tuple[DeviceSpec, DeviceHandle]:
    """Return the specification and the handle of a reachable device.

    Parameters
    ----------
    device
        ``cuda:N``, ``rocm:N`` or ``null:SPEC``.
    names
        Specifications to choose from.
    load
        Reads one.

    Raises
    ------
    LaunchError
        Where the device cannot be reached; the message says what to install.
    SpecError
        Where no specification fits.
    """
    handle = parse(device)
    if handle.kind == "null":
        spec = load(handle.spec)
        if spec.kind != "gpu":
            raise LaunchError(f"device '{device}': expected the specification of a GPU, got a {spec.kind}.")
        return spec, handle
    from roller.runtime.child import DeviceProcess

    with DeviceProcess(handle) as process:
        properties = process.properties()
    return match(properties, (load(n) for n in names)), handle


def properties_of(data: Mapping[str, object]) -> DeviceProperties:
    """Return properties from the plain data a device process sends."""
    values = dict(data)
    raw = values.pop("versions", {})
    versions = tuple((str(k), str(v)) for k, v in raw.items()) if isinstance(raw, dict) else ()
    said = values.pop("stated", {})
    stated = tuple((str(k), int(v)) for k, v in said.items()) if isinstance(said, dict) else ()
    return DeviceProperties(versions=versions, stated=stated, **values)  # type: ignore[arg-type]


def same_arch(one: str, other: str) -> bool:
    """Return whether two architectures are one, features aside.

    Examples
    --------
    >>> same_arch("sm_90", "sm_90a"), same_arch("sm_90", "sm_80")
    (True, False)
    """
    return _base(one) == _base(other)


def _base(arch: str) -> str:
    """Drop the suffix of architecture-specific features: ``sm_90a`` runs where ``sm_90`` is."""
    return re.sub(r"^(sm_\d+)[a-z]$", r"\1", arch)
