"""Device memory as drivers report it, which is less than the data sheet states."""

from __future__ import annotations

from dataclasses import dataclass

from roller.hardware.spec import DeviceSpec
from roller_runtime.core.display import bytes_text

#: Smallest known ratio of reported memory to the data sheet's (a T4, of 16 GiB).
_LEAST_OF_DATASHEET = 0.91
#: Sources of a capacity that was read from the device itself or set by the user.
_OF_THIS = ("detected", "override")


@dataclass(frozen=True)
class MemoryCapacity:
    """Memory that a process, including its context, may use."""

    bytes: int  #: Smallest capacity that drivers were seen to report
    most_bytes: int  #: Largest capacity that drivers were seen to report
    doubtful_bytes: int  #: Part of ``bytes`` that may be missing where no driver report is known
    #: ``"measured"`` (by drivers), ``"derived"`` (from others), ``"datasheet"``, ``"detected"``, ``"override"``.
    source: str

    @property
    def text(self) -> str:
        """The capacity and its origin, in words.

        >>> from roller.hardware import load_spec
        >>> device_memory_capacity(load_spec("rtx3090")).text
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


def device_memory_capacity(spec: DeviceSpec) -> MemoryCapacity:
    """Return the capacity of the device memory that stores tensors between kernels.

    >>> from roller.hardware import load_spec
    >>> f"{device_memory_capacity(load_spec('h100')).bytes / 2**30:.2f} GiB"
    '79.11 GiB'
    >>> device_memory_capacity(load_spec("h100", {"memory_layers.global.capacity_bytes": 10**11})).bytes
    100000000000
    """
    layer = spec.layer("global" if spec.traits.discrete else spec.traits.home)
    path, size = f"memory_layers.{layer.name}", int(layer.capacity_bytes)
    source = spec.sources.get(f"{path}.capacity_bytes", "override")
    details = spec.sources.get(f"{path}.reported_bytes", "override")
    if layer.reported_bytes is None or (source in _OF_THIS and details not in _OF_THIS):
        doubtful = int(size * (1 - _LEAST_OF_DATASHEET)) if spec.traits.discrete and source not in _OF_THIS else 0
        return MemoryCapacity(size, size, doubtful, source if source in _OF_THIS else "datasheet")
    least = int(layer.reported_bytes)
    return MemoryCapacity(least, max(least, int(layer.reported_most_bytes or 0)), 0, details)
