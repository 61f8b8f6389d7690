"""Kinds of devices, as facts about them: whoever has to decide asks for the fact, never for the kind's name.

A kind is a row here and a folder of its name in ``templates/`` and in ``probing/``: how its programs are offered,
priced and emitted, and how its devices are measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

from roller.errors import BuildError
from roller.targets.lazy import module


@dataclass(frozen=True)
class DeviceKind:
    """What all devices of a kind have in common.

    Parameters
    ----------
    name
        As specifications and programs name it.
    layers
        Memory layers, fastest first.
    unit
        What a person calls its units, in plural.
    discrete
        Whether it stands beside the processor that calls it: with memory of its own, in which arrays have to be, and
        in which a model's weights are; kernels are launched, checked in a process apart, compiled where no such device
        is, and carried to it in bundles. Else a kernel is a function of this process, called on the caller's arrays.
    blocks
        Whether a kernel is a grid of blocks of threads; else it is tasks of a loop.
    simd
        Whether a unit executes vectors of one thread, along one axis, and so is a TEU; else lanes are threads.
    scratchpad
        Layer into which kernels copy what they read again; empty where caches keep it.
    keeps_caches
        Whether a kernel finds in the device's caches what the one before it left there.
    value_align_bytes
        What the first byte of a value within another one is a multiple of: the widest access.
    resource
        What a Dask worker has that judges kernels of such a device.
    home
        Layer in which tensors lie between kernels, and from which tiles are read.
    exchanges
        Whether units read nothing but their own scratchpad: slices come to it, in words that may be less than an
        element.

    Examples
    --------
    >>> GPU.scratchpad, CPU.discrete
    ('shared', False)
    """

    name: str
    layers: tuple[str, ...]
    unit: str
    discrete: bool
    blocks: bool
    simd: bool
    scratchpad: str
    keeps_caches: bool
    value_align_bytes: int
    resource: str
    home: str
    exchanges: bool = False

    def module_for(self, package: str, name: str = "") -> ModuleType:
        """Return this kind's part of a package, or a module of it: ``roller.templates.gpu.checks``."""
        return module(f"roller.{package}.{self.name}" + (f".{name}" if name else ""))

    def expect(self, found: str, where: str) -> None:
        """Refuse a program for devices of another kind."""
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
#: Bulk-synchronous parallel: every unit has a scratchpad of its own and reads nothing else; what it needs comes through
#: an exchange among all units, between one step of computing and the next.
BSP = DeviceKind(
    "bsp", ("register", "scratchpad", "exchange", "streaming"), "tiles", discrete=True, blocks=False, simd=True,
    scratchpad="scratchpad", keeps_caches=False, value_align_bytes=8, resource="bsp", home="exchange",
    exchanges=True,
)  # fmt: skip
#: By name.
KINDS = {kind.name: kind for kind in (GPU, CPU, BSP)}
