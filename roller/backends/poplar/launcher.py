"""Launching codelets: no runtime of the vendor is driven here."""

from __future__ import annotations

from typing import Never

from roller.artifact import KernelArtifact
from roller.backends.poplar.toolchain import SOURCE_ONLY
from roller.errors import LaunchError
from roller.targets import expect_language


class PoplarKernel:
    """A kernel that cannot be launched.

    Raises
    ------
    LaunchError
        Always: there is no runtime.
    """

    def __init__(self, artifact: KernelArtifact) -> None:
        expect_language(artifact.language, ("poplar",), "Poplar launcher", LaunchError, "Load it with its own target.")
        self._refuse()

    @staticmethod
    def _refuse() -> Never:
        raise LaunchError(
            f"Poplar launcher: expected a device and its runtime, got none: {SOURCE_ONLY}. Run it on the emulator "
            "(roller.emulator.prove)."
        )
