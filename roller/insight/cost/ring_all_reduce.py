"""Devices of one machine in a ring, and the time of an all-reduce around the ring."""

from __future__ import annotations

from dataclasses import dataclass

from roller.errors import RollerError, SpecError, shown
from roller.hardware import DeviceSpec


@dataclass(frozen=True)
class Ring:
    """Devices of one kind in a ring.

    Parameters
    ----------
    devices
        Number of devices.
    bytes_per_s
        Bandwidth of a link in one direction.
    latency_s
        Latency of one hop.
    """

    devices: int
    bytes_per_s: float
    latency_s: float = 0.0

    @classmethod
    def of(cls, spec: DeviceSpec, devices: int) -> Ring:
        """Return a ring of ``devices`` devices, connected by the links that ``spec`` describes.

        Raises
        ------
        RollerError
            If ``devices`` is not a positive integer.
        SpecError
            If ``devices`` is above 1 and the specification does not describe a link.
        """
        if isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
            raise RollerError(f"devices: expected a whole number of at least 1, got {shown(devices)}. Raise it.")
        if devices > 1 and spec.link_bytes_per_s is None:
            raise SpecError(
                f"{spec.name}: link_bytes_per_s: expected the bandwidth between devices, got none. Give it in the "
                f"specification, or with --set link_bytes_per_s=NUMBER."
            )
        return cls(devices, spec.link_bytes_per_s or float("inf"), spec.link_latency_s or 0.0)

    def all_reduce_s(self, size_bytes: float) -> float:
        """Return the time of a ring all-reduce in seconds: 2 (n - 1) / n S / B + 2 (n - 1) a.

        S bytes pass around n devices over links with bandwidth B and latency a per hop.

        Examples
        --------
        >>> round(Ring(4, 300e9, 3e-6).all_reduce_s(25 << 20) * 1e6, 1)
        149.1
        """
        hops = self.devices - 1
        return 2 * hops / self.devices * size_bytes / self.bytes_per_s + 2 * hops * self.latency_s
