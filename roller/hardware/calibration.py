"""Whether a device's rates were measured on the device itself: what tells a calibrated prediction from others."""

from __future__ import annotations

from roller.hardware.spec import DeviceSpec

#: Beginnings and parts of the paths of rates, by which kernels are priced.
_SECTIONS, _BANDWIDTH = ("compute.", "execution."), ".bandwidth_"


def is_calibrated(spec: DeviceSpec) -> bool:
    """Return whether rates of a device were measured on that very device, by ``roller probe``.

    A probe leaves two traces, and one suffices: the fingerprint of the machine beside measured rates, or the spread of
    the repetitions beside a measured rate. Measured numbers without either, as published ones, are those of any device
    of the name. Where numbers were set by hand the device is another one, and its predictions are none of a calibrated
    model.

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
