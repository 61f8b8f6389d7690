"""Kinds of devices and their properties: code depends on properties, never on the kind's name."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

from roller.errors import BuildError
from roller.targets.lazy import lazy_module


@dataclass(frozen=True)
class DeviceKind:
    """Properties common to all devices of a kind.

    >>> GPU.scratchpad, CPU.discrete
    ('shared', False)
    """

    name: str
    layers: tuple[str, ...]  #: Memory layers, fastest first
    unit: str  #: Plural noun for its units, for people
    #: Whether the device has its own memory: arrays and weights are copied there; kernels are launched, checked in a
    #: separate process, cross-compiled and shipped in bundles. Otherwise, kernels are functions on the caller's arrays.
    discrete: bool
    blocks: bool  #: Whether a kernel is a grid of thread blocks; otherwise it is the tasks of a loop
    simd: bool  #: Whether a unit executes vectors of one thread and is one TEU; otherwise lanes are threads
    scratchpad: str  #: Layer into which kernels copy reused data; empty if caches hold it
    keeps_caches: bool  #: Whether caches keep their contents from one kernel to the next
    value_align_bytes: int  #: Alignment of a value stored inside another one: the widest access
    resource: str  #: Resource name of Dask workers that measure kernels for such devices
    home: str  #: Layer that stores tensors between kernels, and from which kernels load tiles
    #: Whether units read only their own scratchpad, filled by exchange in words that may be smaller than an element.
    exchanges: bool = False

    def module_for(self, package: str, name: str = "") -> ModuleType:
        """Return this kind's subpackage, or a module in it, for example ``roller.templates.gpu.checks``."""
        return lazy_module(f"roller.{package}.{self.name}" + (f".{name}" if name else ""))

    def check_kind(self, found: str, where: str) -> None:
        """Raise an error if ``found``, the kind that a program is for, differs from this kind."""
        if found != self.name:
            raise BuildError(
                f"{where}: expected a program for a {self.name}, got one for a {found}. Construct it for a {self.name}."
            )


GPU = DeviceKind(
    "gpu", ("register", "shared", "l2", "global"), "units", discrete=True, blocks=True, simd=False,
    scratchpad="shared", keeps_caches=False, value_align_bytes=16, resource="gpu", home="global",
)  # fmt: skip
CPU = DeviceKind(
    "cpu", ("register", "l1", "l2", "l3", "dram"), "cores", discrete=False, blocks=False, simd=True, scratchpad="",
    keeps_caches=True, value_align_bytes=1, resource="cpu_slot", home="dram",
)  # fmt: skip
#: Bulk-synchronous parallel: every unit reads only its own scratchpad, which is filled
#: by an exchange among all units between two compute steps.
BSP = DeviceKind(
    "bsp", ("register", "scratchpad", "exchange", "streaming"), "tiles", discrete=True, blocks=False, simd=True,
    scratchpad="scratchpad", keeps_caches=False, value_align_bytes=8, resource="bsp", home="exchange",
    exchanges=True,
)  # fmt: skip
#: Kinds by name.
KINDS = {kind.name: kind for kind in (GPU, CPU, BSP)}
