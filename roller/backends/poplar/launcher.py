"""Launcher for codelets, which always raises an error: roller does not drive the vendor's runtime."""

from __future__ import annotations

from typing import Never

from roller.artifact import KernelArtifact
from roller.backends.poplar.toolchain import SOURCE_ONLY
from roller.errors import LaunchError
from roller.targets import check_language


class PoplarKernel:
    """Kernel that cannot be launched; always raises :class:`LaunchError`."""

    def __init__(self, artifact: KernelArtifact) -> None:
        check_language(artifact.language, ("poplar",), "Poplar launcher", LaunchError, "Load it with its own target.")
        self._refuse()

    @staticmethod
    def _refuse() -> Never:
        raise LaunchError(
            f"Poplar launcher: expected a device and its runtime, got none: {SOURCE_ONLY}. Run it on the emulator "
            "(roller.emulator.prove)."
        )
