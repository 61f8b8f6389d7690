"""Containers of kernels for one device."""

from __future__ import annotations

from roller.backends.parse_device_names import architectures_match
from roller.errors import LaunchError
from roller_runtime.storage.verified_container import Container


class DeviceContainer(Container):
    """A folder with kernels for one device."""

    device: str
    arch: str

    def check_device(self, called: str, name: str, arch: str, spec: str, remedy: str) -> None:
        """Raise an error if the kernels are not for this device; ``spec`` is the spec of a simulated device."""
        if not (spec == self.device if spec else architectures_match(arch, self.arch)):
            raise LaunchError(f"{self.folder}: built for {self.device} ({self.arch}), {called} is {name} "
                              f"({arch or spec}). {remedy}")  # fmt: skip
