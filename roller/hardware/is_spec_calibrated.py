"""Decides whether a specification was measured on the device itself, so that predictions count as calibrated."""

from __future__ import annotations

from roller.hardware.spec import DeviceSpec

#: Path prefixes, and a path fragment, of the rates that price kernels.
_SECTIONS, _BANDWIDTH = ("compute.", "execution."), ".bandwidth_"


def is_calibrated(spec: DeviceSpec) -> bool:
    """Return whether ``roller probe`` measured the specification's rates on this very device.

    >>> from dataclasses import replace
    >>> from roller.hardware import load_spec
    >>> published = load_spec("a100")
    >>> is_calibrated(published), is_calibrated(replace(published, machine="this one"))
    (False, True)
    """
    # A probe leaves the machine's fingerprint or the spread over repetitions; published measurements have neither.
    if spec.modified:  # a different device
        return False
    measured = {p for p, s in spec.sources.items() if s == "measured" and (p.startswith(_SECTIONS) or _BANDWIDTH in p)}
    repeated = {number.path for number in spec.written if number.spread is not None}
    return bool(measured) and (spec.machine != "" or not measured.isdisjoint(repeated))
