"""Whether the rates of a specification were measured on the device itself, which makes predictions calibrated."""

from __future__ import annotations

from roller.hardware.spec import DeviceSpec

#: Keys of the rates that price kernels: what their paths begin with, or contain.
_SECTIONS, _BANDWIDTH = ("compute.", "execution."), ".bandwidth_"


def is_calibrated(spec: DeviceSpec) -> bool:
    """Return whether ``roller probe`` measured rates of the specification on this very device.

    Either of two marks of a probe is enough: the fingerprint of the machine, or the spread over the repetitions of a
    measured rate. Measured rates with neither, such as published ones, may come from any device of that model. A
    specification in which the user set numbers describes another device, so it is never calibrated.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from roller.hardware import load_spec
    >>> published = load_spec("a100")
    >>> is_calibrated(published), is_calibrated(replace(published, machine="this one"))
    (False, True)
    """
    if spec.modified:
        return False
    measured = {p for p, s in spec.sources.items() if s == "measured" and (p.startswith(_SECTIONS) or _BANDWIDTH in p)}
    repeated = {number.path for number in spec.written if number.spread is not None}
    return bool(measured) and (spec.machine != "" or not measured.isdisjoint(repeated))
