"""The memory of a device as programs see it: what drivers report, not what the data sheet calls it."""

from __future__ import annotations

from dataclasses import dataclass

from roller.core.display import bytes_text
from roller.hardware.spec import DeviceSpec

#: What is left of a data sheet's gigabytes, at the least, on devices whose reported memory is known (a T4, of 16 GiB).
_LEAST_OF_DATASHEET = 0.91
#: Sources of a capacity that is that of the very device, or what somebody wants it to be.
_OF_THIS = ("detected", "override")


@dataclass(frozen=True)
class Capacity:
    """Bytes a process may use at most, its context included.

    Parameters
    ----------
    bytes
        What is counted on: the least that drivers were seen to report.
    most_bytes
        The most they were seen to report.
    doubtful_bytes
        What may be missing of ``bytes``, where nobody reported the memory of this device.
    source
        ``"measured"`` where it was reported, ``"derived"`` from other devices, ``"datasheet"`` where nobody reported
        it, ``"detected"`` or ``"override"``.
    """

    bytes: int
    most_bytes: int
    doubtful_bytes: int
    source: str

    @property
    def text(self) -> str:
        """Say what it is and where it is from.

        Examples
        --------
        >>> from roller.hardware import load_spec
        >>> capacity_of(load_spec("rtx3090")).text
        'drivers report 23.69 to 23.7 GiB'
        """
        least, most = bytes_text(self.bytes, 4), bytes_text(self.most_bytes, 4)
        span = least if least == most else f"{least.partition(' ')[0]} to {most}"
        if self.source == "measured":
            return f"drivers report {span}"
        if self.source == "derived":
            return f"{span} are derived from what other devices report"
        if self.source in _OF_THIS:
            return f"{span} are {self.source}"
        return f"{span} are the data sheet's, of which drivers report up to {1 - _LEAST_OF_DATASHEET:.0%} less"


def capacity_of(spec: DeviceSpec) -> Capacity:
    """Return the memory of a device in which tensors lie between kernels.

    Examples
    --------
    >>> from roller.hardware import load_spec
    >>> f"{capacity_of(load_spec('h100')).bytes / 2**30:.2f} GiB"
    '79.11 GiB'
    >>> capacity_of(load_spec("h100", {"memory_layers.global.capacity_bytes": 10**11})).bytes
    100000000000
    """
    layer = spec.layer("global" if spec.traits.discrete else spec.traits.home)
    path, size = f"memory_layers.{layer.name}", int(layer.capacity_bytes)
    source = spec.sources.get(f"{path}.capacity_bytes", "override")
    told = spec.sources.get(f"{path}.reported_bytes", "override")
    if layer.reported_bytes is None or (source in _OF_THIS and told not in _OF_THIS):
        doubtful = int(size * (1 - _LEAST_OF_DATASHEET)) if spec.traits.discrete and source not in _OF_THIS else 0
        return Capacity(size, size, doubtful, source if source in _OF_THIS else "datasheet")
    least = int(layer.reported_bytes)
    return Capacity(least, max(least, int(layer.reported_most_bytes or 0)), 0, told)
