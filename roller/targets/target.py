"""Target: a kernel language, or a way to run kernels, as a row of module names and properties."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol, TypeVar

from roller.errors import BuildError, LaunchError
from roller.targets.kinds import DeviceKind
from roller.targets.lazy import import_object, lazy_module

#: A kernel artifact, opaque to targets: only toolchain and launcher look inside.
Kernel = TypeVar("Kernel")


class HasTarget(Protocol):
    """The part of a device specification that the choice of a target needs."""

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def target(self) -> Mapping[str, str]: ...  # noqa: D102


@dataclass(frozen=True)
class Target:
    """One row of the registry; modules and classes from layers above are given as text and loaded on first use."""

    name: str
    kind: DeviceKind
    #: Language of the kernels it emits and builds; empty if it runs kernels of any language of the kind.
    language: str = ""
    #: Keys of ``target`` in a specification, in addition to the language.
    required_keys: tuple[str, ...] = ()
    optional_keys: tuple[str, ...] = ()
    #: First and last architecture number that compilers know (``sm_30`` to ``sm_129``), for numbered architectures.
    architectures: tuple[int, int] = (0, 0)
    generator: str = ""  #: Code generation module with ``lower_for``; loaded before worker processes are forked
    #: Build module (``available``, ``build``, ``compile_source``, ``resources``); empty if lowering builds.
    toolchain: str = ""
    launcher: str = ""  #: ``"module:class"`` that makes a built kernel callable
    device: str = ""  #: Prefix of device names (``"cuda"`` in ``"cuda:0"``); empty for this CPU
    numbered: bool = True  #: Whether a number follows the prefix; otherwise a spec name with options may
    #: ``"module:class"`` of the device in its worker process, which checks, times and probes; empty without one.
    worker: str = ""
    #: Opens the device for whole models, given its number and architecture.
    session_device: Callable[[int, str], Any] | None = None
    #: Whether it computes with the reference and reports predicted times: nothing is built or recorded as measured.
    pretends: bool = False
    timed: bool = True  #: Whether times on its devices reflect kernel speed
    source_only: str = ""  #: Reason why compiling gives source without a binary; empty if kernels are built
    emulator: str = ""  #: ``"module:class"`` that emulates its sources on this CPU; empty without one
    #: Compiler options of probes: flush subnormals, so that a special function is one instruction, and keep operations
    #: unpacked, so that the counted instructions are the issued ones.
    probe_options: tuple[str, ...] = ()
    matrix_probe: tuple[str, int] = ("", 0)  #: Matrix unit probe, and multiply-adds of a TEU in one of its steps
    innermost_channels: bool = False  #: Whether its libraries' matrix-unit convolutions need channels-last images

    @property
    def emulated(self) -> bool:
        """Whether an emulator runs the target's sources."""
        return bool(self.emulator)

    @property
    def first_device(self) -> str:
        """Name of the machine's first device; empty for the CPU itself."""
        return f"{self.device}:0" if self.device else ""

    def prepare(self) -> None:
        """Load the code generator, all templates and TVM, so that forked processes inherit them."""
        self.generation()
        for template in self.kind.module_for("templates").TEMPLATES:
            import_object(template.emit)

    def generation(self) -> ModuleType:
        """Return the code generation module."""
        return lazy_module(self.generator)

    def toolchain_module(self) -> ModuleType:
        """Return the toolchain module."""
        if not self.toolchain:
            raise BuildError(f"{self.name}: expected a target that builds sources, got one that has none. Lower it.")
        return lazy_module(self.toolchain)

    def can_build(self) -> bool:
        """Return whether the target has a toolchain that is installed."""
        return bool(self.toolchain) and self.toolchain_module().available() is None

    def build(self, artifact: Kernel) -> Kernel:
        """Return the built kernel; without a toolchain, lowering has already built it."""
        built: Kernel = self.toolchain_module().build(artifact) if self.toolchain else artifact
        return built

    def load(self, artifact: object) -> Any:
        """Return a callable for a built kernel."""
        return import_object(self.launcher)(artifact)

    def open_worker(self, index: int, options: dict[str, str]) -> Any:
        """Open the device in the current process, which becomes its worker."""
        return import_object(self.worker)(index, options)

    def open_session_device(self, index: int, arch: str) -> Any:
        """Open the device for whole models."""
        if self.session_device is None:
            raise LaunchError(f"device '{self.name}': expected a GPU, got this processor. Leave the device out.")
        return self.session_device(index, arch)
