"""Target: what one language of kernels, or one way to run them, needs of the rest of the package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol, TypeVar

from roller.errors import BuildError, LaunchError
from roller.targets.kinds import DeviceKind
from roller.targets.lazy import loaded, module

#: A kernel, which targets pass on to their toolchain and launcher: what is in it, those know.
Kernel = TypeVar("Kernel")


class Targeted(Protocol):
    """What tells the target of a device: of a :class:`~roller.hardware.DeviceSpec`, its name and its ``target``."""

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def target(self) -> Mapping[str, str]: ...  # noqa: D102


@dataclass(frozen=True)
class Target:
    """One row of the registry.

    Modules and classes of the floors above are named as text and loaded on first use, so that a machine on which
    kernels only run can ask for them all.

    Parameters
    ----------
    name
        Of the target.
    kind
        Of its devices.
    language
        Of the kernels it emits and builds; empty where it runs those of any language of the kind.
    required_keys, optional_keys
        Of ``target`` in a specification, beside the language.
    architectures
        Numbers of the first and the last one that compilers know (``sm_30`` to ``sm_129``), where they are numbered so.
    generator
        Module of code generation, with ``lower_for``; loaded before processes are forked that use it.
    toolchain
        Module that builds: ``available``, ``build``, ``compile_source``, ``resources``; empty where lowering does.
    launcher
        ``"module:class"`` of what makes a built kernel callable.
    device
        What the names of its devices begin with (``"cuda"`` of ``"cuda:0"``); empty for this processor.
    numbered
        Whether a number follows; else the name of a specification may, with options.
    worker
        ``"module:class"`` of the device in its own process, which checks, times and probes; empty where none does.
    session_device
        Opens the device that whole models run on, given its number and the architecture it says it has.
    pretends
        Whether it computes with the reference, in predicted times: nothing is built for it, no time is kept.
    timed
        Whether seconds on its devices say how fast kernels are.
    source_only
        Said to whoever compiles for it: why there is source and no binary; empty where kernels are built.
    emulator
        ``"module:class"`` of what runs its sources on this processor; empty where nothing does.
    probe_options
        Of the compiler for a probe: subnormals are flushed, so that a special function is the instruction and nothing
        else; no two operations are packed into one, so that what is counted is what is issued.
    matrix_probe
        The probe of matrix units, and multiply-adds of a TEU in one step of it.
    innermost_channels
        Whether the convolutions of its libraries for matrix units take images with channels innermost alone.
    """

    name: str
    kind: DeviceKind
    language: str = ""
    required_keys: tuple[str, ...] = ()
    optional_keys: tuple[str, ...] = ()
    architectures: tuple[int, int] = (0, 0)
    generator: str = ""
    toolchain: str = ""
    launcher: str = ""
    device: str = ""
    numbered: bool = True
    worker: str = ""
    session_device: Callable[[int, str], Any] | None = None
    pretends: bool = False
    timed: bool = True
    source_only: str = ""
    emulator: str = ""
    probe_options: tuple[str, ...] = ()
    matrix_probe: tuple[str, int] = ("", 0)
    innermost_channels: bool = False

    @property
    def emulated(self) -> bool:
        """Whether an emulator understands its sources."""
        return bool(self.emulator)

    @property
    def first_device(self) -> str:
        """Name of the first device of a machine; empty for the processor itself."""
        return f"{self.device}:0" if self.device else ""

    def prepare(self) -> None:
        """Load the code generator and all templates, TVM with them: before processes are forked, which then have it."""
        self.generation()
        for template in self.kind.module_for("templates").TEMPLATES:
            loaded(template.emit)

    def generation(self) -> ModuleType:
        """Return the module of code generation."""
        return module(self.generator)

    def tools(self) -> ModuleType:
        """Return the toolchain's module."""
        if not self.toolchain:
            raise BuildError(f"{self.name}: expected a target that builds sources, got one that has none. Lower it.")
        return module(self.toolchain)

    def can_build(self) -> bool:
        """Whether there is a toolchain to ask, and it is installed here."""
        return bool(self.toolchain) and self.tools().available() is None

    def build(self, artifact: Kernel) -> Kernel:
        """Build a kernel, unless lowering has."""
        built: Kernel = self.tools().build(artifact) if self.toolchain else artifact
        return built

    def load(self, artifact: object) -> Any:
        """Return a built kernel, callable."""
        return loaded(self.launcher)(artifact)

    def open_worker(self, index: int, options: dict[str, str]) -> Any:
        """Open the device in the process that is to be its own."""
        return loaded(self.worker)(index, options)

    def open_session_device(self, index: int, arch: str) -> Any:
        """Open the device for whole models."""
        if self.session_device is None:
            raise LaunchError(f"device '{self.name}': expected a GPU, got this processor. Leave the device out.")
        return self.session_device(index, arch)
