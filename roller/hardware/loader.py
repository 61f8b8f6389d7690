"""Loads device specifications by shipped name, YAML path, or ``cpu`` for this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping

from roller.errors import SpecError
from roller.hardware.detect_cpu_spec import detect_cpu
from roller.hardware.reader import read_spec
from roller.hardware.spec import DeviceSpec
from roller.targets import THIS_MACHINE, canonical_device_name
from roller_runtime.core.validation import validate_path


def load_spec(name_or_path: str | os.PathLike[str], overrides: Mapping[str, float] | None = None) -> DeviceSpec:
    """Return a device specification.

    Parameters
    ----------
    name_or_path
        A shipped name (``"v100"``), ``"cpu"`` for this machine, or the path of a YAML file.
    overrides
        Replacement values, keyed by dotted path.

    Returns
    -------
    DeviceSpec
        Frozen specification; the same object for the same file without overrides.

    Raises
    ------
    SpecError
        If the device is unknown, or its file or an override is invalid.

    Examples
    --------
    >>> load_spec("v100").layer("global").bandwidth_bytes_per_s
    826000000000.0
    >>> load_spec("v100", {"units": 40}).sources["units"]
    'override'
    """
    name = str(
        validate_path(name_or_path, "device", error=SpecError, what="the name of a device or the path of a YAML")
    )
    spec = detect_cpu() if canonical_device_name(name) == THIS_MACHINE else read_spec(name)
    return spec if overrides is None else spec.with_overrides(overrides)
